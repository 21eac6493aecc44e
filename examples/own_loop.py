"""DSP-Reg in a training loop of your own: three lines, marked below.

    python examples/own_loop.py

A small network on three domains of digits. `with_lightning.py`, `with_accelerate.py` and `with_transformers.py` do the
same inside those trainers, and say how far their numbers are from this loop's.
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, TensorDataset

import dspreg
from dspreg.data import Digits

SOURCES = ("handwritten", "outline", "print")
STEPS, REFRESH = 60, 20


def data() -> dict[str, TensorDataset]:
    """The images of each domain, 0 to 1, and their labels."""
    arrays = {name: Digits().arrays(name) for name in SOURCES}
    return {
        name: TensorDataset(torch.tensor(x).permute(0, 3, 1, 2) / 255, torch.tensor(y))
        for name, (x, y) in arrays.items()
    }


def loader(domains: dict[str, TensorDataset]) -> DataLoader:
    return DataLoader(ConcatDataset(domains.values()), 48, shuffle=True, generator=torch.Generator().manual_seed(0))


def to_measure_on(domains: dict[str, TensorDataset]) -> dict[str, DataLoader]:
    return {name: DataLoader(torch.utils.data.Subset(each, range(128)), 32) for name, each in domains.items()}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.BatchNorm2d(32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(0.2), nn.Linear(128, 10),
    )  # fmt: skip


def train() -> nn.Module:
    domains, model = data(), network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    penalty = dspreg.Penalty(model, weight=1e-2, engine="lookahead")  # 1
    torch.manual_seed(1)
    for step, (x, y) in zip(range(STEPS), loader(domains), strict=False):
        if step and step % REFRESH == 0:
            penalty.refresh(to_measure_on(domains), null=False)  # 2
        loss = penalty.backward(lambda: F.cross_entropy(model(x), y), record=step % REFRESH == 0)  # 3  # noqa: B023
        optimizer.step()
        optimizer.zero_grad()
        if step % REFRESH == 0:
            c = penalty.coefficients.flat().mean()
            print(f"step {step:2}: loss {loss:.3f}, mean c {c:.2f}, penalty/gradient {penalty.record.ratio:.1%}")
    return model


def difference(model: nn.Module, other: nn.Module) -> float:
    """The largest difference between two networks' parameters and buffers."""
    pairs = zip(model.state_dict().values(), other.state_dict().values(), strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs)


if __name__ == "__main__":
    train()
