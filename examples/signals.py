"""DSP-Reg for signals and numbers: the speed of a machine from its vibration, on a machine that was never seen.

    python examples/signals.py                                                          a loop of its own
    PYTHONPATH=examples dspreg train --dataset signals.Machines --model signals.Encoder \\
        --target press --algorithm DSPReg --out runs/press                              the same by dspreg train

The first takes `dspreg.Penalty` and torch alone. The second is a whole run: split, selected by R² on held-out signals
of the sources, resumable and recorded. What is particular to numbers is marked: `measure` wants one loss per sample.
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset

import dspreg

DAMPING = {"drill": 0.2, "lathe": 0.5, "mill": 0.8, "press": 1.1}
STEPS, REFRESH = 120, 40


def signals(machine: str, count: int = 96) -> TensorDataset:
    """Two channels of 64 values each, and the speed, from 1 to 3 turns in the window."""
    random = torch.Generator().manual_seed(list(DAMPING).index(machine))
    speed = 1 + 2 * torch.rand(count, 1, generator=random)
    time = torch.linspace(0, 1, 64)
    wave = (2 * torch.pi * speed * time + torch.rand(count, 1, generator=random)).sin()
    x = torch.stack([wave, wave * (-DAMPING[machine] * time).exp()], 1)
    return TensorDataset(x + 0.1 * torch.randn(x.shape, generator=random), speed)


class Encoder(nn.Module):
    """Signals (B, 2, 64) to features (B, 32)."""

    width = 32  # `dspreg train` puts a linear layer behind it, with one output for each number

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(2, 16, 9, 2), nn.ReLU(), nn.Conv1d(16, 32, 9, 2), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Machines(dspreg.DomainDataset):
    """The machines as domains, for `dspreg train`."""

    name, kind, tensors, small = "Machines", "regression", True, True
    domains, classes = tuple(DAMPING), ("speed",)
    steps, evaluate_every = STEPS, REFRESH

    def domain(self, name: str) -> TensorDataset:
        self.check_domain(name)
        return signals(name)


def loss_per_signal(out: torch.Tensor, speed: torch.Tensor) -> torch.Tensor:
    """Squared error. (B,)"""
    return F.mse_loss(out, speed, reduction="none").mean(1)  # particular to it


def main() -> None:
    machines = {name: signals(name) for name in DAMPING}
    unseen = machines.pop("press")
    torch.manual_seed(0)
    model = nn.Sequential(Encoder(), nn.Linear(Encoder.width, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    penalty = dspreg.Penalty(model, weight=1e-3)
    loader = DataLoader(ConcatDataset(machines.values()), 32, shuffle=True, generator=torch.Generator().manual_seed(0))
    batches = (batch for _ in range(STEPS) for batch in loader)
    for step, (x, speed) in zip(range(STEPS), batches, strict=False):
        if step and step % REFRESH == 0:
            few = {name: DataLoader(Subset(each, range(64)), 32) for name, each in machines.items()}
            penalty.refresh(few, loss=loss_per_signal)  # particular to it
        loss = penalty.backward(lambda: loss_per_signal(model(x), speed).mean())  # noqa: B023
        optimizer.step()
        optimizer.zero_grad()
        if step and step % REFRESH == 0:
            c, null = (float(each.flat().mean()) for each in (penalty.profile.c, penalty.profile.null))
            print(f"step {step}: loss {loss:.3f}, mean c {c:.2f}, under random domain labels {null:.2f}")
    x, speed = unseen.tensors
    with torch.no_grad():
        unexplained = (model(x) - speed).square().sum() / (speed - speed.mean()).square().sum()
    print(f"R² on the unseen machine: {1 - float(unexplained):.2f}")


if __name__ == "__main__":
    main()
