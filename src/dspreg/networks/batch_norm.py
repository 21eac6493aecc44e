"""Batch norm as DomainBed trains it, and forward passes that leave running statistics and other buffers alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def freeze_statistics(net: nn.Module) -> None:
    """Put every batch norm of `net` in evaluation mode; to be repeated after each `net.train()`.

    The running mean and variance are then used and not updated, so that samples of a batch do not mix. Scale and
    shift stay trainable parameters. (The functions of that name in timm and torchvision turn all four into constants.)
    """
    for module in net.modules():
        if isinstance(module, _BatchNorm):  # also SyncBatchNorm, and timm's batch norm with a built-in activation
            module.eval()


@contextmanager
def scratch_buffers(net: nn.Module) -> Iterator[None]:
    """Inside, every buffer is a copy; afterwards the buffers are the same objects with the same contents as before.

    The originals are put back, instead of their contents being restored: a forward pass may replace a buffer by
    another tensor, and autograd cannot go back through batch norm whose statistics were changed since.
    """
    originals = [(module, name, b) for module in net.modules() for name, b in module._buffers.items() if b is not None]
    try:
        for module, name, buffer in originals:
            module._buffers[name] = buffer.clone()
        yield
    finally:
        for module, name, buffer in originals:
            module._buffers[name] = buffer


def norms_with_statistics(net: nn.Module) -> list[_BatchNorm]:
    """Every batch norm that keeps a running mean and variance."""
    return [m for m in net.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None]


def moves_statistics(net: nn.Module) -> bool:
    """Whether a training step changes running statistics: of a net in training mode, unless they are frozen."""
    return any(norm.training for norm in norms_with_statistics(net))


def copy_statistics(net: nn.Module) -> Tensor:
    """The running mean and variance of every batch norm, as one vector."""
    return torch.cat([b.detach().reshape(-1) for b in _statistics(net)])


@torch.no_grad()
def set_statistics(net: nn.Module, values: Tensor) -> None:
    """Write what `copy_statistics` returned."""
    buffers = _statistics(net)
    for buffer, value in zip(buffers, values.split([b.numel() for b in buffers]), strict=True):
        buffer.copy_(value.view_as(buffer))


@contextmanager
def standing_statistics(net: nn.Module, values: Tensor | None) -> Iterator[None]:
    """Inside, running statistics are `values`; None leaves all as it is."""
    if values is None:
        yield
        return
    with scratch_buffers(net):
        set_statistics(net, values)
        yield


@contextmanager
def estimating_statistics(net: nn.Module) -> Iterator[None]:
    """Inside, forward passes make running statistics anew, as plain averages over batches.

    Every batch counts the same: unlike a running average they do not depend on which came last. Other layers, such as
    dropout, stay in the mode they are in. Afterwards batch norms are in the mode they were in, and keep what was found.
    """
    norms = norms_with_statistics(net)
    before = [(norm.momentum, norm.training) for norm in norms]
    try:
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # the average of all batches
            norm.training = True  # its own flag: `train()` of a featurizer with frozen batch norm would not set it
        yield
    finally:
        for norm, (momentum, training) in zip(norms, before, strict=True):
            norm.momentum, norm.training = momentum, training


def _statistics(net: nn.Module) -> list[Tensor]:
    return [b for norm in norms_with_statistics(net) for b in (norm.running_mean, norm.running_var) if b is not None]
