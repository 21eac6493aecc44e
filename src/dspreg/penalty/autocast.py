"""Full precision where a penalty needs it, also inside code that enables autocast."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from dspreg.precision import full_precision


class _Off(threading.local):
    depth = 0  # how many `autocast_off` this thread is in


_off = _Off()
_installed = threading.Lock()


@contextmanager
def autocast_off(device: str) -> Iterator[None]:
    """Inside, everything is in full precision, and entering autocast has no effect.

    A training loop enters autocast inside the closure it hands over as often as around it, and torch has no switch
    that forbids it. So the first use replaces `torch.autocast.__enter__` for the whole process; outside of this block
    and in other threads it behaves as before. Three ways without a patch were tried. A `TorchFunctionMode` that
    runs every function with autocast off is right for eager models, but `torch.compile` traces the backward pass under
    the autocast it finds, and the penalty part was off by 14 %. The same with compiled models run eagerly
    (`torch.compiler.set_stance`) disables compilation for users who never enter autocast. Refusing autocast in closures
    would have to detect it first, which is the same problem. Autocast written inside a compiled module is part of its
    graph and not seen.
    """
    if _installed.acquire(blocking=False):  # once, and never released
        _patch_autocast()
    _off.depth += 1
    try:
        with full_precision(device):
            yield
    finally:
        _off.depth -= 1


def _patch_autocast() -> None:
    enter: Any = torch.autocast.__enter__

    def enter_unless_off(self: Any) -> Any:
        if not _off.depth:
            return enter(self)
        enabled, self._enabled = self._enabled, False
        try:
            return enter(self)
        finally:
            self._enabled = enabled

    torch.autocast.__enter__ = enter_unless_off  # type: ignore[method-assign]
