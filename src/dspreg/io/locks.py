"""A file that one process, and one thread of it, holds at a time; a holder that ends in any way lets go of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from dspreg.errors import InUse
from dspreg.io.atomic_files import open_regular_file, os_errors_as_cant_write


@contextmanager
def holding(lock: Path, wait: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold `lock` inside of the block; the file is there as long as it is held.

    Args:
        lock: A file that has no other use, in a folder that is there.
        wait: Is called whenever another has it, before the next try; may raise. None: there is no second try.

    Raises:
        InUse: Another has it, and `wait` is None.
        CantWrite: The disk refuses.
    """
    while (file := _try(lock)) is None:
        if wait is None:
            raise InUse(f"another process has {lock}; wait for it")
        wait()
    with file:
        try:
            yield
        finally:
            with suppress(OSError):
                lock.unlink()  # before it lets go: who opened it meanwhile sees that it has no name


def _try(lock: Path) -> IO[bytes] | None:
    """The file, locked; None if another has it, or took its name away."""
    with os_errors_as_cant_write(lock, 0):
        file = os.fdopen(open_regular_file(lock, os.O_RDWR | os.O_CREAT), "wb")
        try:
            _flock(file)
            if os.path.samestat(os.fstat(file.fileno()), os.stat(lock)):
                return file
        except (BlockingIOError, FileNotFoundError):
            pass
        except BaseException:
            file.close()
            raise
        file.close()
        return None


def _flock(file: IO[bytes]) -> None:
    try:
        import fcntl
    except ImportError:  # Windows: two calls at once are not kept apart there
        return
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
