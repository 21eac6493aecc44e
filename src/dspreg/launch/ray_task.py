"""One attempt at one run on a machine of the cluster, in a temporary folder.

The machine has no access to the store. The run arrives as files and is sent back as files, after every checkpoint and
at the end. This module works without Ray: `attempt_run` is a generator, and Ray transports what it yields.
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
UNSENT = 4  # unread messages, after which training waits
PLACE = "dspreg-ray-"


@dataclass(frozen=True)
class Assignment:
    """A run to attempt."""

    settings: Mapping[str, Any]
    execution: Execution
    plan: Mapping[str, Any]
    files: Files
    path: tuple[str, ...] = ()  # where the user's modules may be


def attempt_run(assignment: Assignment) -> Iterator[TaskMessage]:
    """Train in a thread and yield messages; the last is `Succeeded` or `Failed`. Closing the generator stops the
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
                return self.messages.get(timeout=REPORT_EVERY)  # not longer: Ray cancels tasks by a signal
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
            pass  # by `stopped`: the launcher has disconnected
        except BaseException as error:  # the folder could not be created or filled
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
        """Called by the training, which writes nothing meanwhile."""
        if self.stopped.is_set():
            raise Preempted("cancelled: the launcher disconnected")
        if self.watch.has_news():
            self.send(self.watch.pack_changes())

    def _send_notice(self, message: Warning | str, *_: Any, **__: Any) -> None:
        self.send(NoticeIssued(str(message)))


def describe_failure(error: BaseException) -> Failed:
    text = "".join(traceback.format_exception(error))
    expected, diverged = isinstance(error, DspregError), isinstance(error, Diverged)
    return Failed(type(error).__name__, str(error), text, expected, diverged)


def clear_places() -> None:
    """Remove the folders of killed tasks on this machine."""
    for place in Path(tempfile.gettempdir()).glob(f"{PLACE}*"):
        try:
            gone = is_gone((place / "process").read_text(encoding="utf-8"))
        except OSError:  # not a folder of a task, or just being created or removed
            continue
        if gone:
            shutil.rmtree(place, ignore_errors=True)
