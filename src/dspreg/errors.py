"""Errors by what has to be fixed: a setting, the data, a file, the machine. `exit_code` is that of the command line."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager


class DspregError(Exception):
    """Base class. The message says what is wrong and what to do."""

    exit_code = 1


class ConfigError(DspregError, ValueError):
    """An option, a spec or a setting is wrong."""

    exit_code = 2


class DataError(DspregError, ValueError):
    """The data do not fit the computation."""

    exit_code = 3


class IntegrityError(DspregError):
    """A file is damaged or not what it claims to be."""

    exit_code = 4


class ResourceError(DspregError):
    """Disk, permission, memory or network is missing."""

    exit_code = 6


class CantWrite(ResourceError):
    """The disk is full or read-only, so that further writes would fail as well."""


class InUse(ResourceError):
    """Another process is using the folder."""


NO_MEMORY = ("can't allocate memory", "cannot allocate memory", "not enough memory", "out of memory", "bad_alloc")


def missing_resource(error: BaseException) -> str | None:
    """What the machine had too little of, if that is why an error was raised; torch's are known by their words."""
    number, words = getattr(error, "errno", None), str(error).lower()
    if isinstance(error, MemoryError) or number == errno.ENOMEM:
        return "not enough memory"
    if isinstance(error, RuntimeError) and any(text in words for text in NO_MEMORY):
        return "not enough memory"
    if number in (errno.EMFILE, errno.ENFILE):
        return "too many open files (`ulimit -n` says how many are allowed)"
    if isinstance(error, RuntimeError) and "can't start new thread" in words:
        return "no more threads or processes may be started (`ulimit -u`)"
    return None


@contextmanager
def resource_errors(remedy: str) -> Iterator[None]:
    """Errors for want of memory, open files or threads, as a `ResourceError` that says what needs less."""
    try:
        yield
    except DspregError:
        raise
    except (MemoryError, RuntimeError, OSError) as error:
        missing = missing_resource(error)
        if missing is None:
            raise
        raise ResourceError(f"{missing}; {remedy}") from error


class Preempted(DspregError):
    """Stopped from outside, by a signal or a scheduler; the run can be resumed."""

    exit_code = 75


class Diverged(DspregError):
    """A loss, a parameter or an output became NaN or infinite."""

    exit_code = 5

    def __init__(self, message: str, step: int):
        super().__init__(message)
        self.step = step


class Notice(UserWarning):
    """Something worth knowing that is not an error: a fallback, a default, an unusual magnitude."""
