"""Full precision where a penalty needs it, also inside code that asks for less."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class _Off(threading.local):
    depth = 0  # how many `autocast_off` this thread is in


_off = _Off()
_installed = threading.Lock()


@contextmanager
def autocast_off(device: str) -> Iterator[None]:
    """Inside, autocast is off, and entering it has no effect.

    A training loop enters autocast inside the closure it hands over as often as around it, and torch has no switch
    that forbids it. So the first use replaces `torch.autocast.__enter__` for the whole process; outside of this block
    and in other threads it does what it always did. Three ways without a patch were tried. A `TorchFunctionMode` that
    runs every function with autocast off is right for eager models, but `torch.compile` traces the backward pass under
    the autocast it finds, and the penalty part was off by 14 %. The same with compiled models run eagerly
    (`torch.compiler.set_stance`) takes compilation from those who never use autocast. Refusing autocast in closures
    would have to notice it first, which is the same problem. Autocast written inside a compiled module is part of its
    graph and not seen.
    """
    if _installed.acquire(blocking=False):  # once, and never released
        _watch()
    _off.depth += 1
    try:
        with torch.autocast(device, enabled=False):
            yield
    finally:
        _off.depth -= 1


def _watch() -> None:
    enter: Any = torch.autocast.__enter__

    def watched(self: Any) -> Any:
        if not _off.depth:
            return enter(self)
        wanted, self._enabled = self._enabled, False
        try:
            return enter(self)
        finally:
            self._enabled = wanted

    torch.autocast.__enter__ = watched  # type: ignore[method-assign]
