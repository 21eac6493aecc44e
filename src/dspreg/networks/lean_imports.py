"""timm and torchvision without torch's compiler, which takes longer to import than both, and 150 MB.

One module of torchvision imports it for one question, asked when a region is pooled on a GPU, and one of timm to keep
it from one function. While torchvision and timm are imported, what they take from it is put off until it is called.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from types import ModuleType
from typing import Any

from torch import compiler
from torch._compile import _disable_dynamo

COMPILER = "torch._dynamo.utils"  # importing it imports all of the compiler
LOCK = RLock()


def import_timm() -> ModuleType:
    """timm, imported where it is needed: it takes a second."""
    with compiler_deferred():
        import timm

        return timm


def import_torchvision_models() -> ModuleType:
    with compiler_deferred():
        return importlib.import_module("torchvision.models")


@contextmanager
def compiler_deferred() -> Iterator[None]:
    """Within it, `torch._dynamo.utils` is a stand-in, and `torch.compiler.disable` waits for the first call.

    No other thread should import the compiler meanwhile.
    """
    with LOCK:
        if COMPILER in sys.modules:  # it has been imported, or this is already under way
            yield
            return
        sys.modules[COMPILER] = stand_in = Deferred(COMPILER)
        disable, compiler.disable = compiler.disable, disable_later
        try:
            yield
        finally:
            compiler.disable = disable
            if sys.modules.get(COMPILER) is stand_in:
                del sys.modules[COMPILER]


def disable_later(fn: Any = None, recursive: bool = True, *, reason: str | None = None) -> Any:  # noqa: ARG001
    """`torch.compiler.disable`, which imports the compiler at once; this is how torch itself puts that off."""
    return _disable_dynamo(fn, recursive)


class Deferred(ModuleType):
    """Answers as the module of its name does, which it imports when it is asked for anything that is not here."""

    def is_compile_supported(self, device_type: str) -> Any:
        return self._real().is_compile_supported(device_type)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked by the import system itself
            raise AttributeError(name)
        return getattr(self._real(), name)

    def _real(self) -> ModuleType:
        with LOCK:
            if sys.modules.get(self.__name__) is self:
                del sys.modules[self.__name__]
            return importlib.import_module(self.__name__)
