"""What c is when nothing differs: the floor of `signed` by draws, and of `persample` by images.

    python bench/noise_floor.py

Left: three *identical* domains, so that any c is noise of the signs. Beside it the mean over 10⁵ triples of χ² means,
which is what the theory of random signs predicts. Right: three domains
drawn from one distribution, alike but for their samples.
"""

import warnings

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import dspreg


def predicted(draws: int) -> float:
    """Mean coefficient of variation of three independent means of `draws` squared normal numbers."""
    s = torch.distributions.Gamma(draws / 2, draws / 2).sample((100_000, 3))
    return float((s.std(1, correction=0) / s.mean(1)).mean())


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    warnings.simplefilter("ignore", dspreg.Notice)  # one batch has no c_debiased
    net = nn.Sequential(nn.Linear(40, 60), nn.Tanh(), nn.Linear(60, 10)).double()
    x, y = torch.randn(512, 40, dtype=torch.float64), torch.randint(10, (512,))
    signed = Table("draws", "mean c, identical domains", "predicted", title="signed")
    for draws in (1, 4, 16, 64):
        c = dspreg.measure(net, {d: [(x, y)] for d in "abc"}, estimator="signed", draws=draws, null=False).c
        signed.add_row(str(draws), f"{float(c.flat().mean()):.2f}", f"{predicted(draws):.2f}")
    persample = Table("images per domain", "mean c, alike", "mean null", "mean c debiased", title="persample")
    for batches in (2, 4, 16, 64):
        same = {d: [(torch.randn(8, 40).double(), torch.randint(10, (8,))) for _ in range(batches)] for d in "abc"}
        p = dspreg.measure(net, same)
        means = [f"{float(v.flat().mean()):.3f}" for v in (p.c, p.null, p.c_debiased)]
        persample.add_row(str(8 * batches), *means)
    Console(width=100).print(signed, persample)


if __name__ == "__main__":
    main()
