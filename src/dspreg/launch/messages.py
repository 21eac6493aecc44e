"""What is said about the runs of a sweep between the workers that attempt them and the launcher that hands them out.

One set of messages for all launchers: they are pickled, and go through a pipe or through Ray.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dspreg.errors import DspregError
from dspreg.runs.status import RunState


@dataclass(frozen=True)
class Progress:
    """Something was done, and where the run is now."""

    step: int
    steps: int  # 0: not known yet
    doing: str = ""


@dataclass(frozen=True)
class NoticeIssued:
    """A `Notice` of the worker's process."""

    text: str


@dataclass(frozen=True)
class Files:
    """What is new in a run's folder, by name, and which checkpoints there are now. From workers without the store."""

    new: Mapping[str, bytes]
    checkpoints: tuple[str, ...] = ()


# How an attempt ends.


@dataclass(frozen=True)
class Outcome:
    """The attempt is over, and what became of it is in the store."""

    state: RunState | None  # None: another process has the run
    already: bool = False  # whether it stood like that before, and nothing was to be done


@dataclass(frozen=True)
class Succeeded:
    """Training came to its end, in a worker without the store: its files are on their way, to be verified there."""


@dataclass(frozen=True)
class Failed:
    """Training ended in an error, in a worker without the store. As text: its class may be known to the worker alone.

    Attributes:
        kind: Name of the error's class.
        text: Its message.
        traceback: With its traceback.
        expected: Whether it is an error of dspreg, which says what to do, and no bug.
        diverged: Then the run's own folder says so.
    """

    kind: str
    text: str = ""
    traceback: str = ""
    expected: bool = False
    diverged: bool = False

    def to_error(self) -> Exception:
        """The error it was, as far as one can be made here."""
        if self.expected:
            return DspregError(self.text)
        error: Exception = type(self.kind, (Exception,), {})(self.text)
        error.add_note(self.traceback)
        return error


@dataclass(frozen=True)
class Stopped:
    """The worker ends before its time; the run it had can be resumed, and has lost no attempt."""


@dataclass(frozen=True)
class WorkerDied:
    """The worker is gone without a word; said by the launcher's own side."""

    reason: str


@dataclass(frozen=True)
class Refused:
    """The disk is full or can't be written, which the other runs would meet, too: the sweep has to end."""

    reason: str


Event = Progress | NoticeIssued | Outcome | Stopped | WorkerDied | Refused  # what a dispatcher handles
TaskMessage = Progress | NoticeIssued | Files | Succeeded | Failed  # what a worker without the store sends
