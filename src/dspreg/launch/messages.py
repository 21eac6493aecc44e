"""Messages from the workers of a sweep to its launcher.

All launchers share them. They are pickled, and travel through a pipe or through Ray.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dspreg.errors import DspregError
from dspreg.runs.status import RunState


@dataclass(frozen=True)
class Progress:
    """Progress of a run, with the seconds that it still takes and those of the whole run, by its own clock."""

    step: int
    steps: int  # 0: not known yet
    doing: str = ""
    left: float | None = None  # not known yet
    whole: float | None = None


@dataclass(frozen=True)
class NoticeIssued:
    """A `Notice` issued in the worker's process."""

    text: str


@dataclass(frozen=True)
class Files:
    """New files of a run's folder, by name, and its checkpoints. Sent by workers without access to the store."""

    new: Mapping[str, bytes]
    checkpoints: tuple[str, ...] = ()


# How an attempt ends.


@dataclass(frozen=True)
class Outcome:
    """The attempt has ended, and its outcome is in the store."""

    state: RunState | None  # None: another process works on the run
    already: bool = False  # whether the run had this status before, so that nothing was done


@dataclass(frozen=True)
class Succeeded:
    """Training finished, in a worker without access to the store. Its files follow, and are verified on arrival."""


@dataclass(frozen=True)
class Failed:
    """Training failed, in a worker without access to the store. Text only: the worker alone may know the error's class.

    Attributes:
        kind: Name of the error's class.
        text: Message of the error.
        traceback: Message and traceback.
        expected: Whether it is an error of dspreg, with a remedy, rather than a bug.
        diverged: Whether the training diverged; the run's folder records that.
    """

    kind: str
    text: str = ""
    traceback: str = ""
    expected: bool = False
    diverged: bool = False

    def to_error(self) -> Exception:
        """The error, rebuilt as far as this process can."""
        if self.expected:
            return DspregError(self.text)
        error: Exception = type(self.kind, (Exception,), {})(self.text)
        error.add_note(self.traceback)
        return error


@dataclass(frozen=True)
class Stopped:
    """The worker stops early. Its run can be resumed, and no attempt is counted."""


@dataclass(frozen=True)
class WorkerDied:
    """The worker died without a message; created by the launcher."""

    reason: str


@dataclass(frozen=True)
class Refused:
    """The disk is full or not writable. The other runs would fail in the same way, so the sweep has to end."""

    reason: str


Event = Progress | NoticeIssued | Outcome | Stopped | WorkerDied | Refused  # what a dispatcher handles
TaskMessage = Progress | NoticeIssued | Files | Succeeded | Failed  # what a worker without the store sends
