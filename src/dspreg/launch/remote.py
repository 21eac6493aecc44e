"""What runs on another machine: one attempt at one run, in a folder that is gone afterwards.

The store is not there. The run comes as files, and goes home as files: after every checkpoint, and at the end. Ray is
not needed to read this: `attempted` is a generator, and Ray carries what it yields.
"""

from __future__ import annotations

import queue
import shutil
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspreg.errors import Diverged, DspregError, Notice, Preempted
from dspreg.launch.carrying import Files, Packer, unpack
from dspreg.protocol.settings import Execution
from dspreg.runs.process_id import is_gone, this_process
from dspreg.training.display import Display
from dspreg.training.loop import train

OFTEN = 1.0  # seconds between two words about progress
WAITING = 4  # words that nobody has fetched, after which training waits
PLACE = "dspreg-ray-"


@dataclass(frozen=True)
class Assignment:
    """A run to attempt."""

    settings: Mapping[str, Any]
    execution: Execution
    plan: Mapping[str, Any]
    files: Files
    path: tuple[str, ...] = ()  # where the user's own modules may lie


@dataclass(frozen=True)
class Moved:
    """Something was done, and where the run is."""

    step: int
    steps: int
    doing: str


@dataclass(frozen=True)
class Ended:
    """The attempt is over. An error as text: its class may be one that only this machine has.

    Attributes:
        kind: Name of the error's class; None: the run is finished.
        ours: Whether it is an error of dspreg, which says what to do, and not somebody's bug.
        diverged: Then the run's own folder says so.
    """

    kind: str | None = None
    text: str = ""
    traceback: str = ""
    ours: bool = False
    diverged: bool = False

    def error(self) -> Exception:
        """The error it was, as far as one can be made here."""
        if self.ours:
            return DspregError(self.text)
        error: Exception = type(str(self.kind), (Exception,), {})(self.text)
        error.add_note(self.traceback)
        return error


Said = Moved | Notice | Files | Ended


def attempted(assignment: Assignment) -> Iterator[Said]:
    """Train, in a thread of its own, and tell how it goes; the last word is `Ended`. Closing it ends the training."""
    sys.path.extend(path for path in assignment.path if path not in sys.path)
    attempt = Attempt(assignment)
    thread = threading.Thread(target=attempt.go)
    thread.start()
    try:
        while True:
            said = attempt.next()
            yield said
            if isinstance(said, Ended):
                return
    finally:
        attempt.stopped.set()
        thread.join()


class Attempt(Display):
    """The training, and what it has to say."""

    def __init__(self, assignment: Assignment):
        self.given = assignment
        self.stopped = threading.Event()
        self.words: queue.Queue[Said] = queue.Queue(WAITING)
        self.step = self.steps = 0
        self.what = ""
        self.last = 0.0

    def next(self) -> Said:
        while True:
            try:
                return self.words.get(timeout=OFTEN)  # not longer: Ray ends tasks by a signal
            except queue.Empty:
                continue

    def say(self, word: Said) -> None:
        while not self.stopped.is_set():
            try:
                return self.words.put(word, timeout=OFTEN)
            except queue.Full:
                continue
        raise Preempted("nobody wants to know any more")

    # The thread.

    def go(self) -> None:
        clear_places()
        try:
            with tempfile.TemporaryDirectory(prefix=PLACE) as place, warnings.catch_warnings():
                (Path(place) / "process").write_text(this_process(), encoding="utf-8")
                warnings.simplefilter("always", Notice)
                warnings.showwarning = self._warned
                self._go(Path(place) / "run")
        except Preempted:
            pass  # by `stopped`: there is nobody to be told
        except BaseException as error:  # the folder could not be made or filled
            with suppress(Preempted):
                self.say(ending(error))

    def _go(self, folder: Path) -> None:
        self._tell("starting")
        unpack(self.given.files, folder)
        self.packer = Packer(folder, known=True)
        try:
            train(
                self.given.settings, self.given.execution, folder,
                display=self, pause=self.pause, plan=self.given.plan,
            )  # fmt: skip
            ended = Ended()
        except Preempted:
            raise
        except BaseException as error:
            ended = ending(error)
        self.say(self.packer.packed())
        self.say(ended)

    def pause(self) -> None:
        """Given to the trainer, which writes nothing while it is in here."""
        if self.stopped.is_set():
            raise Preempted("stopped")
        if self.packer.has_new_checkpoint():
            self.say(self.packer.packed())
        self._tell_sometimes()

    def _warned(self, message: Warning | str, *_: Any, **__: Any) -> None:
        self.say(Notice(str(message)))

    # Its display.

    def _tell(self, what: str) -> None:
        self.last, self.what = time.monotonic(), what
        self.say(Moved(self.step, self.steps, what))

    def _tell_sometimes(self) -> None:
        if time.monotonic() - self.last > OFTEN:
            self._tell(self.what)

    def checking(self, done: int, total: int) -> None:
        self.what = f"looking at image {done:,} of {total:,}"

    def started(self, experiment: Any, t: int) -> None:
        self.step, self.steps = t, experiment.settings.steps
        self._tell("")

    def doing(self, what: str) -> None:
        self._tell(what)

    def alive(self) -> None:
        self._tell_sometimes()

    def stepped(self, t: int, log: dict[str, float]) -> None:
        self.step, self.what = t + 1, f"loss {log['loss']:.2f}"


def ending(error: BaseException) -> Ended:
    told = "".join(traceback.format_exception(error))
    ours = isinstance(error, DspregError)
    return Ended(type(error).__name__, str(error), told, ours, isinstance(error, Diverged))


def clear_places() -> None:
    """Remove what tasks left on this machine that were killed."""
    for place in Path(tempfile.gettempdir()).glob(f"{PLACE}*"):
        try:
            gone = is_gone((place / "process").read_text(encoding="utf-8"))
        except OSError:  # somebody else's, or being made or removed now
            continue
        if gone:
            shutil.rmtree(place, ignore_errors=True)
