"""What all trackers share: which scalars a record has, and that each of them arrives once."""

from __future__ import annotations

import time
import uuid
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from io import StringIO
from typing import TYPE_CHECKING, Any, NamedTuple

from dspreg.errors import Notice, Preempted
from dspreg.io.atomic_files import holds_file, read_json
from dspreg.kinds import figures_of
from dspreg.randomness import untouched
from dspreg.runs.folder import TRACKING, RunFolder
from dspreg.training.callbacks import Callback

if TYPE_CHECKING:
    from dspreg.training.experiment import Experiment

AGAIN = 60.0  # seconds after which a tracker that could not be reached is tried again
PROJECT = "dspreg"  # of trackers that have projects, unless their own variable of the environment names one


class TrackedRun(NamedTuple):
    """What a tracker is told about a run.

    Attributes:
        key: Its own, made once: a run that goes on elsewhere is the same to a tracker, and a copy of it is, too.
        id: Of the training, as in run.json.
        title: For people.
        settings: Options by name.
    """

    key: str
    id: str
    title: str
    settings: dict[str, Any]


class Tracker(Callback):
    """Sends the scalars of each record, at its step, once.

    A training that is killed takes up to some minutes of its steps again, and records them again. So a tracker is asked
    what it has before anything is sent, and what it lacks is sent: records of earlier calls as well.

    A tracker that can't be reached does not end the training. What it did not get is sent with a later record, or by
    the next call that resumes the run.

    Args:
        folder: Of the run. Its file tracking.json has the key under which trackers know it.
    """

    name = ""

    def __init__(self, folder: RunFolder):
        self.folder = folder
        self.run: TrackedRun | None = None
        self.records: list[Mapping[str, Any]] = []  # all of the run so far
        self.sent = 0  # of these, or seen there
        self.summarised = False
        self.opened = False
        self.summary: dict[str, float] = {}  # of the selected step, once the last one was taken
        self.failed_at: float | None = None
        self.error: BaseException | None = None

    # What differs between trackers.

    @abstractmethod
    def open(self, run: TrackedRun) -> None:
        """Begin, or go on with, a run of this key."""

    @abstractmethod
    def has(self, name: str, step: int) -> bool:
        """Whether it had this scalar when it was opened, or got it since."""

    @abstractmethod
    def send(self, step: int, scalars: Mapping[str, float]) -> None:
        """Have it keep these. Returns once they survive the death of this process, where that can be known."""

    def select(self, scalars: Mapping[str, float]) -> None:
        """Have it keep the scalars of the selected step, as the summary of the run."""

    @abstractmethod
    def close(self, status: str) -> None:
        """End, with `"finished"`, `"stopped"` or `"failed"`."""

    # What the training says.

    def on_train_start(self, experiment: Experiment, step: int) -> None:  # noqa: ARG002
        s = experiment.settings
        title = f"{experiment.data.name}, {s.algorithm} → {', '.join(s.targets) or 'no target'}, trial {s.trial}"
        title += f", draw {s.draw}" if s.draw else ""
        self.run = TrackedRun(key_of(self.folder), self.folder.description()["id"], title, s.to_record())
        self.flush()

    def on_resume(self, records: Sequence[Mapping[str, Any]]) -> None:
        self.records += records
        self.flush()

    def on_evaluation(self, record: dict[str, Any]) -> None:
        self.records.append(record)
        self.flush()

    def on_selected(self, record: dict[str, Any]) -> None:
        self.summary = {**scalars_of(record), "selected_step": record["step"]}
        self.flush(last=True)

    def on_error(self, error: BaseException) -> None:
        self.error = error

    def on_train_end(self) -> None:
        if self.run is None:
            return
        self.flush(last=True)
        if self.opened:
            going_on = isinstance(self.error, Preempted | KeyboardInterrupt)
            status = "stopped" if going_on else "failed" if self.error is not None else "finished"
            self._attempt(lambda: self.close(status))
        if missing := len(self.records) - self.sent:
            again = "they are in records.jsonl" if self.summary else "the next start sends them"
            text = f"{missing} records of {self.folder.path} did not reach {self.name}; {again}"
            warnings.warn(text, Notice, stacklevel=2)

    # Sending.

    def flush(self, *, last: bool = False) -> None:
        """Send what waits, unless the tracker could not be reached a moment ago."""
        if self.failed_at is not None and not last and time.monotonic() - self.failed_at < AGAIN:
            return
        if self._attempt(self._flush):
            self.failed_at = None

    def _flush(self) -> None:
        assert self.run is not None
        if not self.opened:
            self.open(self.run)
            self.opened, self.sent, self.summarised = True, 0, False
        for record in self.records[self.sent :]:
            new = {name: v for name, v in scalars_of(record).items() if not self.has(name, record["step"])}
            if new:
                self.send(record["step"], new)
            self.sent += 1
        if self.summary and not self.summarised:
            self.select(self.summary)
            self.summarised = True

    def _attempt(self, act: Callable[[], None]) -> bool:
        """Whether it worked. Whatever is wrong with a tracker or its server, the training goes on."""
        try:
            with undisturbed():
                act()
        except Exception as error:
            said = str(error).strip().partition("\n")[0] or type(error).__name__
            if self.failed_at is None:
                text = f"{self.name} can't be reached, and the training goes on without it: {said[:300]}"
                warnings.warn(text, Notice, stacklevel=3)
            self.failed_at = time.monotonic()
            if self.opened:
                with suppress(Exception), undisturbed():  # opened anew, so that what did arrive is seen
                    self.close("stopped")
            self.opened, self.sent = False, 0
            return False
        return True


@contextmanager
def undisturbed() -> Iterator[None]:
    """For code of others: it draws no random numbers of ours, prints nothing, and its warnings are its developers'."""
    with untouched(), warnings.catch_warnings(), redirect_stdout(StringIO()):
        warnings.simplefilter("ignore")
        yield


def key_of(folder: RunFolder) -> str:
    """The key of a run, made when it is first tracked."""
    if holds_file(folder / TRACKING):
        found = read_json(folder / TRACKING)
        key = found.get("key") if isinstance(found, dict) else None
        if isinstance(key, str) and key.isalnum() and len(key) <= 64:
            return key
    key = uuid.uuid4().hex[:16]
    folder.write_json(TRACKING, {"key": key})
    return key


def scalars_of(record: Mapping[str, Any]) -> dict[str, float]:
    """The curves of a record: `log/loss`, `in/photo`, `out/photo`, `validation`, …"""
    found: dict[str, float] = {f"log/{name}": value for name, value in record["log"].items()}
    found |= {f"{which}/{name}": v for name, each in figures_of(record).items() for which, v in each.items()}
    for domain, metrics in record.get("metrics", {}).items():
        found |= {f"{name}/{domain}": value for name, value in metrics.items() if value is not None}
    if record["validation"] is not None:
        found["validation"] = record["validation"]
    return found
