"""Batch norm as DomainBed trains it."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


def freeze_statistics(net: nn.Module) -> None:
    """Put every batch norm of `net` in evaluation mode; to be repeated after each `net.train()`.

    The running mean and variance are then used and not updated, so that samples of a batch do not mix. Scale and
    shift stay trainable parameters. (The functions of that name in timm and torchvision turn all four into constants.)
    """
    for module in net.modules():
        if isinstance(module, _BatchNorm):  # also SyncBatchNorm, and timm's, which has the activation in it
            module.eval()
