"""Batch norm as DomainBed trains it, and forward passes that leave running statistics and other buffers alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
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
