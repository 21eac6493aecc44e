"""A few steps of DSP-Reg in plain torch, which the integrations are compared with."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dspreg

STEPS, EVERY, OPTIONS = 7, 3, {"weight": 0.05, "engine": "lookahead"}
MEASURE = {"null": False}


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))


def data():
    random = torch.Generator().manual_seed(2)
    x, y = torch.randn(56, 5, generator=random), torch.randint(3, (56,), generator=random)
    return TensorDataset(x, y)


def loader():
    return DataLoader(data(), 8)  # seven batches


def domains():
    x, y = data().tensors
    return {"a": list(zip(x[:20].split(10), y[:20].split(10), strict=True)),
            "b": list(zip(x[20:50].split(15), y[20:50].split(15), strict=True))}  # fmt: skip


def plain(steps=STEPS, schedule=False, clip=False, options=OPTIONS, decay=0.01):
    """The network after training, the losses, and the penalty."""
    model = network().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-2, weight_decay=decay)
    rate = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5) if schedule else None
    penalty, losses = dspreg.Penalty(model, **options), []
    torch.manual_seed(1)
    for step, (x, y) in zip(range(steps), loader(), strict=False):
        if step and step % EVERY == 0:
            penalty.refresh(domains(), **MEASURE)
        losses.append(penalty.backward(lambda: F.cross_entropy(model(x), y)).item())  # noqa: B023
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
        if rate:
            rate.step()
    return model, losses, penalty


def equal(model, other):
    """To the bit, buffers included."""
    pairs = zip(model.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)
