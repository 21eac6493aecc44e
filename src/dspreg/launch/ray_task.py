"""What runs on a machine of the cluster: one attempt at one run, in a folder that is gone afterwards.

The store is not there. The run comes as files, and goes home as files: after every checkpoint, and at the end. Ray is
not needed to read this: `attempt_run` is a generator, and Ray carries what it yields.
"""

from __future__ import annotations

import queue
import shutil
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspreg.config.train_config import Execution
from dspreg.errors import Diverged, DspregError, Notice, Preempted
from dspreg.launch.messages import Failed, Files, NoticeIssued, Succeeded, TaskMessage
from dspreg.launch.reporter import ProgressReporter
from dspreg.launch.transfer import FolderWatch, unpack
from dspreg.runs.folder import RunFolder
from dspreg.runs.process_id import is_gone, this_process
from dspreg.training.loop import train

REPORT_EVERY = 1.0  # seconds
UNSENT = 4  # messages that were not fetched, after which training waits
PLACE = "dspreg-ray-"


@dataclass(frozen=True)
class Assignment:
    """A run to attempt."""

    settings: Mapping[str, Any]
    execution: Execution
    plan: Mapping[str, Any]
    files: Files
    path: tuple[str, ...] = ()  # where the user's own modules may lie


def attempt_run(assignment: Assignment) -> Iterator[TaskMessage]:
    """Train, in a thread of its own, and yield messages; the last is `Succeeded` or `Failed`. Closing it ends the
    training."""
    sys.path.extend(path for path in assignment.path if path not in sys.path)
    attempt = TaskAttempt(assignment)
    thread = threading.Thread(target=attempt.run)
    thread.start()
    try:
        while True:
            message = attempt.receive()
            yield message
            if isinstance(message, Succeeded | Failed):
                return
    finally:
        attempt.stopped.set()
        thread.join()


class TaskAttempt:
    """The training, and the messages it sends."""

    def __init__(self, assignment: Assignment):
        self.assignment = assignment
        self.stopped = threading.Event()
        self.messages: queue.Queue[TaskMessage] = queue.Queue(UNSENT)
        self.reporter = ProgressReporter(self.send, REPORT_EVERY)

    def receive(self) -> TaskMessage:
        while True:
            try:
                return self.messages.get(timeout=REPORT_EVERY)  # not longer: Ray ends tasks by a signal
            except queue.Empty:
                continue

    def send(self, message: TaskMessage) -> None:
        while not self.stopped.is_set():
            try:
                return self.messages.put(message, timeout=REPORT_EVERY)
            except queue.Full:
                continue
        raise Preempted("cancelled: the launcher disconnected")

    # The thread.

    def run(self) -> None:
        clear_places()
        try:
            with tempfile.TemporaryDirectory(prefix=PLACE) as place, warnings.catch_warnings():
                (Path(place) / "process").write_text(this_process(), encoding="utf-8")
                warnings.simplefilter("always", Notice)
                warnings.showwarning = self._send_notice
                self._train(RunFolder(Path(place) / "run"))
        except Preempted:
            pass  # by `stopped`: no one is left to be told
        except BaseException as error:  # the folder could not be made or filled
            with suppress(Preempted):
                self.send(describe_failure(error))

    def _train(self, folder: RunFolder) -> None:
        given = self.assignment
        self.reporter.report("starting")
        unpack(given.files, folder)
        self.watch = FolderWatch(folder.path, known=True)
        ended: Succeeded | Failed
        try:
            train(
                given.settings, given.execution, folder,
                callbacks=[self.reporter], pause=self.pause, plan=given.plan,
            )  # fmt: skip
            ended = Succeeded()
        except Preempted:
            raise
        except BaseException as error:
            ended = describe_failure(error)
        self.send(self.watch.pack_changes())
        self.send(ended)

    def pause(self) -> None:
        """Given to the trainer, which writes nothing while it is in here."""
        if self.stopped.is_set():
            raise Preempted("cancelled: the launcher disconnected")
        if self.watch.has_new_checkpoint():
            self.send(self.watch.pack_changes())

    def _send_notice(self, message: Warning | str, *_: Any, **__: Any) -> None:
        self.send(NoticeIssued(str(message)))


def describe_failure(error: BaseException) -> Failed:
    text = "".join(traceback.format_exception(error))
    expected, diverged = isinstance(error, DspregError), isinstance(error, Diverged)
    return Failed(type(error).__name__, str(error), text, expected, diverged)


def clear_places() -> None:
    """Remove what tasks left on this machine that were killed."""
    for place in Path(tempfile.gettempdir()).glob(f"{PLACE}*"):
        try:
            gone = is_gone((place / "process").read_text(encoding="utf-8"))
        except OSError:  # not a task's, or being made or removed now
            continue
        if gone:
            shutil.rmtree(place, ignore_errors=True)
