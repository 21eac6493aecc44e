"""A network with one domain-specific and one invariant parameter: c tells them apart, its floor does not.

    python examples/measure_sensitivity.py

f(x) = specific · x₀ + invariant · x₁. The domains scale x₀ by 1, 2 and 3 and leave x₁ alone, so s of `specific` is
1, 4, 9 and its c is √(98/9) / (14/3) = 0.707; that of `invariant` is 0.
"""

import torch
from torch import nn

import dspreg


class TwoWeights(nn.Module):
    def __init__(self):
        super().__init__()
        self.specific = nn.Parameter(torch.tensor([0.7]))
        self.invariant = nn.Parameter(torch.tensor([0.7]))

    def forward(self, x):
        return self.specific * x[:, :1] + self.invariant * x[:, 1:]


def domains(batches: int = 8, size: int = 128) -> dict[str, list[torch.Tensor]]:
    random = torch.Generator().manual_seed(0)
    scales = {f"x₀ times {k}": torch.tensor([float(k), 1.0]) for k in (1, 2, 3)}
    return {name: [k * torch.randn(size, 2, generator=random) for _ in range(batches)] for name, k in scales.items()}


if __name__ == "__main__":
    for estimator, draws in (("loop", None), ("persample", None), ("signed", 64)):
        profile = dspreg.measure(TwoWeights(), domains(), of="output", estimator=estimator, draws=draws)
        for name in profile.c:
            numbers = profile.c[name], profile.null[name], profile.c_debiased[name]
            c, null, debiased = (float(n) for n in numbers)
            print(f"{estimator:10} {name:10} c {c:.3f}   null {null:.3f}   c without noise {debiased:.3f}")
