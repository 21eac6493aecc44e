"""What can go wrong, sorted by who can mend it. The exit code is the command line's."""


class DspregError(Exception):
    """Anything dspreg refuses, with a message that says what to do."""

    exit_code = 1


class ConfigError(DspregError, ValueError):
    """An option, a spec or a setting is wrong."""

    exit_code = 2


class DataError(DspregError, ValueError):
    """The data are not what the computation needs."""

    exit_code = 3


class IntegrityError(DspregError):
    """A file is damaged or not what it claims to be."""

    exit_code = 4


class ResourceError(DspregError):
    """Disk, permission, memory or network is not there."""

    exit_code = 6


class CantWrite(ResourceError):
    """The disk is full, or refuses: whatever comes next would meet the same."""


class InUse(ResourceError):
    """Another process works there."""


class Preempted(DspregError):
    """Told to stop; the run can be resumed."""

    exit_code = 75


class Diverged(DspregError):
    """Training came to something that is not a number."""

    exit_code = 5

    def __init__(self, message: str, step: int):
        super().__init__(message)
        self.step = step


class Notice(UserWarning):
    """Something worth knowing that is not an error: a fallback, a floor, an odd magnitude."""
