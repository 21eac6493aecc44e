"""Buffers that a forward pass may write to without consequence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def scratch_buffers(net: nn.Module) -> Iterator[None]:
    """Inside, every buffer is a copy; afterwards the buffers are the same objects with the same contents as before.

    Copies take the originals' place, instead of the contents being restored: a forward pass may put another tensor
    in a buffer's place, and autograd refuses to go back through batch norm whose statistics were changed since.
    """
    kept = [(module, name, b) for module in net.modules() for name, b in module._buffers.items() if b is not None]
    try:
        for module, name, buffer in kept:
            module._buffers[name] = buffer.clone()
        yield
    finally:
        for module, name, buffer in kept:
            module._buffers[name] = buffer
