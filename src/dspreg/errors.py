"""Errors by what has to be fixed: a setting, the data, a file, the machine. `exit_code` is that of the command line."""


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
