"""Progress of a run as messages to the launcher of its sweep."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dspreg.launch.messages import Progress
from dspreg.training.callbacks import Callback
from dspreg.training.time_left import RunClock

if TYPE_CHECKING:
    from dspreg.training.experiment import Experiment


class ProgressReporter(Callback):
    """Sends `Progress` when a phase begins, and at intervals while there is progress.

    Args:
        send: Called with each message.
        every: Seconds between two messages of the same phase.
    """

    def __init__(self, send: Callable[[Progress], None], every: float):
        self.send, self.every = send, every
        self.step = self.steps = 0
        self.doing = self.loss = ""
        self.sent_at = float("-inf")
        self.clock = RunClock()

    def report(self, doing: str) -> None:
        self.sent_at, self.doing = time.monotonic(), doing
        self.send(Progress(self.step, self.steps, doing, self.clock.seconds_left(), self.clock.whole_seconds()))

    def on_image_check(self, done: int, total: int) -> None:
        self.doing = f"looking at image {done:,} of {total:,}"

    def on_train_start(self, experiment: Experiment, step: int) -> None:
        self.step, self.steps = step, experiment.settings.steps
        self.clock.on_train_start(experiment, step)
        self.report("")

    def on_resume(self, records: Sequence[Mapping[str, Any]]) -> None:
        self.clock.on_resume(records)

    def on_phase(self, description: str) -> None:
        self.clock.on_phase(description)
        self.report(description)

    def on_evaluation(self, record: dict[str, Any]) -> None:
        self.clock.on_evaluation(record)

    def on_progress(self) -> None:
        if time.monotonic() - self.sent_at > self.every:
            self.report(self.doing)

    def on_step_end(self, step: int, log: Mapping[str, float]) -> None:
        self.step = step + 1
        self.clock.on_step_end(step, log)
        if time.monotonic() - self.sent_at > self.every:  # not at each step: on a GPU, looking into a log is waiting
            self.loss = f"loss {log['loss']:.2f}"
        self.doing = self.loss
        self.on_progress()
