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

    A training loop enters autocast inside the function it hands over, as often as around it, and torch offers no way
    to forbid that from outside. So entering is watched from the first use on; elsewhere and in other threads it is
    what it always was. Autocast inside a compiled module is part of its graph and not seen.
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
