"""Locks on files: one process, and one thread of it, holds a lock at a time; a holder that ends in any way lets go.

Where the system has `fcntl`, open files are locked. Windows has none: there filelock locks files by their names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from dspreg.errors import InUse
from dspreg.io.atomic_files import holds_file, open_regular_file, os_errors_as_cant_write

try:
    import fcntl
except ImportError:
    LOCKS_OPEN_FILES = False
else:
    LOCKS_OPEN_FILES = True


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
    take = _take if LOCKS_OPEN_FILES else take_by_name
    while (held := take(lock)) is None:
        if wait is None:
            raise InUse(f"another process has {lock}; wait for it")
        wait()
    with held:
        try:
            yield
        finally:
            if LOCKS_OPEN_FILES:
                with suppress(OSError):
                    lock.unlink()  # before it lets go: who opened it meanwhile sees that it has no name


@contextmanager
def waiting_for(lock: Path) -> Iterator[None]:
    """Hold `lock` inside of the block, and wait for it before. For short work, done often: the file stays."""
    if LOCKS_OPEN_FILES:
        with open(lock, "a") as file:
            lock_open_file(file, wait=True)
            yield
        return
    while (held := take_by_name(lock, wait=True)) is None:
        pass
    with held:
        yield


def lock_open_file(file: IO[Any], *, wait: bool = False) -> None:
    """Lock a file until it is closed, here and in processes that were forked meanwhile; only where LOCKS_OPEN_FILES.

    Raises:
        BlockingIOError: Another has it, and `wait` is False.
    """
    fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def take_by_name(lock: Path, *, wait: bool = False) -> AbstractContextManager[object] | None:
    """Lock a file by filelock, until the block of what is returned ends; None if another has it.

    Raises:
        IntegrityError: The name is that of a link, a folder or a device.
        CantWrite: The disk refuses.
    """
    import filelock

    with os_errors_as_cant_write(lock, 0):
        holds_file(lock)
        os.stat(lock.parent)  # filelock would make it
        try:
            return filelock.FileLock(lock).acquire(timeout=1.0 if wait else 0.0)
        except filelock.Timeout:
            return None


def _take(lock: Path) -> IO[bytes] | None:
    """The file, locked; None if another has it, or took its name away."""
    with os_errors_as_cant_write(lock, 0):
        file = os.fdopen(open_regular_file(lock, os.O_RDWR | os.O_CREAT), "wb")
        try:
            lock_open_file(file)
            if os.path.samestat(os.fstat(file.fileno()), os.stat(lock)):
                return file
        except (BlockingIOError, FileNotFoundError):
            pass
        except BaseException:
            file.close()
            raise
        file.close()
        return None
