"""Callbacks of a training, and the progress bar on a terminal."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from dspreg.io.progress_bars import make_console, make_progress
from dspreg.io.text import format_duration

if TYPE_CHECKING:
    from rich.console import Console

    from dspreg.training.experiment import Experiment


LOOK_EVERY = 0.5  # seconds between two losses on a terminal
FIELDS = ("rate", "left", "loss", "validation", "penalty")  # of a progress bar


class Callback:
    """Base class of callbacks of a training. Every method does nothing: override those you need.

        class Losses(dspreg.Callback):
            def on_evaluation(self, record):
                print(record["step"], record["log"]["loss"], record["validation"])

        dspreg.train(config, out="runs/first", callbacks=[Losses()])

    The order is: `on_image_check`; `on_train_start`, and `on_resume` where steps were taken before; `on_step_end` after
    each step, `on_evaluation` and then `on_checkpoint` after each evaluation; `on_selected` after the last step;
    `on_error` if it failed or was stopped; `on_train_end`. A run that is finished already calls `on_train_end` alone.

    A training may be killed between any two of them. It is resumed from its last checkpoint: steps since then are taken
    again, to the same bits, and evaluations recorded again; what is kept elsewhere has to expect a record that it has.

    An exception in a method ends the training, without a last checkpoint. To stop a training so that it can be resumed
    without loss, let the `pause` of `dspreg.train` raise `Preempted`.
    """

    def on_image_check(self, done: int, total: int) -> None:
        """One more image was checked, before the first training on a data set."""

    def on_train_start(self, experiment: Experiment, step: int) -> None:
        """Training starts, or resumes after `step` steps."""

    def on_resume(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Training resumes after these records, of earlier calls; follows `on_train_start`."""

    def on_phase(self, description: str) -> None:
        """A longer phase that is not a step begins, such as an evaluation or a measurement; empty: steps follow."""

    def on_progress(self) -> None:
        """A small unit of work is done: one pass of a step, one batch of an evaluation or of a measurement. A training
        that makes progress calls this at least every ten minutes."""

    def on_step_end(self, step: int, log: Mapping[str, float]) -> None:
        """Step `step`, counted from 0, was taken. On a GPU, who looks into `log` waits for it to get there."""

    def on_evaluation(self, record: dict[str, Any]) -> None:
        """A line was added to records.jsonl."""

    def on_checkpoint(self, step: int) -> None:
        """A checkpoint after `step` steps is on the disk: a training that is killed now goes on from there."""

    def on_selected(self, record: dict[str, Any]) -> None:
        """The last step was taken, and `record` is the line of records.jsonl whose model is selected. Models, card and
        result.json are written next; a training that is killed meanwhile calls this again."""

    def on_error(self, error: BaseException) -> None:
        """Training ends with this error, or is stopped, by `Preempted`; `on_train_end` follows."""

    def on_train_end(self) -> None:
        """Training has ended, with or without an error. Called once."""


class CallbackList(Callback):
    """Several callbacks as one, called in their order."""

    def __init__(self, callbacks: Iterable[Callback] = ()):
        self.callbacks = tuple(callbacks)

    def on_image_check(self, done: int, total: int) -> None:
        for each in self.callbacks:
            each.on_image_check(done, total)

    def on_train_start(self, experiment: Experiment, step: int) -> None:
        for each in self.callbacks:
            each.on_train_start(experiment, step)

    def on_resume(self, records: Sequence[Mapping[str, Any]]) -> None:
        for each in self.callbacks:
            each.on_resume(records)

    def on_phase(self, description: str) -> None:
        for each in self.callbacks:
            each.on_phase(description)

    def on_progress(self) -> None:
        for each in self.callbacks:
            each.on_progress()

    def on_step_end(self, step: int, log: Mapping[str, float]) -> None:
        for each in self.callbacks:
            each.on_step_end(step, log)

    def on_evaluation(self, record: dict[str, Any]) -> None:
        for each in self.callbacks:
            each.on_evaluation(record)

    def on_checkpoint(self, step: int) -> None:
        for each in self.callbacks:
            each.on_checkpoint(step)

    def on_selected(self, record: dict[str, Any]) -> None:
        for each in self.callbacks:
            each.on_selected(record)

    def on_error(self, error: BaseException) -> None:
        for each in self.callbacks:
            each.on_error(error)

    def on_train_end(self) -> None:
        for each in self.callbacks:
            each.on_train_end()


@contextmanager
def notified(callbacks: Iterable[Callback]) -> Iterator[Callback]:
    """Several callbacks as one; calls `on_train_end` at the end of the block, and `on_error` before it if it fails."""
    every = CallbackList(callbacks)
    try:
        yield every
    except BaseException as error:
        every.on_error(error)
        raise
    finally:
        every.on_train_end()


class OldDisplay(Callback):
    """Adapter of the objects that `dspreg.train(display=…)` took before callbacks, with other method names."""

    def __init__(self, display: Any):
        self.display = display

    def _call(self, name: str, *values: Any) -> None:
        method = getattr(self.display, name, None)
        if method is not None:
            method(*values)

    def on_image_check(self, done: int, total: int) -> None:
        self._call("checking", done, total)

    def on_train_start(self, experiment: Experiment, step: int) -> None:
        self._call("started", experiment, step)

    def on_phase(self, description: str) -> None:
        self._call("doing", description)

    def on_progress(self) -> None:
        self._call("alive")

    def on_step_end(self, step: int, log: Mapping[str, float]) -> None:
        self._call("stepped", step, log)

    def on_evaluation(self, record: dict[str, Any]) -> None:
        self._call("recorded", record)


class ProgressBar(Callback):
    """Step rate, remaining time, loss, source validation and the penalty's share of the gradient.

    On a terminal, and in a notebook.

    Args:
        console: A console of Rich; by default on stderr.
        title: Shown instead of algorithm and targets.

    Attributes:
        clock: Of the training, with its estimate of the time left.
    """

    def __init__(self, console: Console | None = None, title: str = ""):
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn

        from dspreg.training.time_left import RunClock  # which is a callback itself

        console = console or make_console()
        wide = console.width >= 110
        texts = ("{task.description}", *(f"{{task.fields[{name}]}}" for name in FIELDS))
        name, rate, left, loss, *more = (TextColumn(text) for text in texts)
        columns = (name, BarColumn(16), MofNCompleteColumn(), rate, left, loss, *more)
        narrow = (name, MofNCompleteColumn(), rate, left, loss, *more)  # in eighty columns the bar itself goes first
        self.progress = make_progress(*(columns if wide else narrow), console=console, transient=True)
        self.room = 40 if wide else 16
        self.title = title
        self.clock = RunClock()
        self.task: Any = None
        self.looked_at = float("-inf")
        self.progress.start()

    def on_image_check(self, done: int, total: int) -> None:
        if self.task is None:
            self.task = self._add("looking at every image, once", total)
        left = self.progress.tasks[0].time_remaining
        self.progress.update(self.task, completed=done, left="" if left is None else format_duration(left))

    def _add(self, title: str, total: int, done: int = 0) -> Any:
        fields: dict[str, Any] = dict.fromkeys(FIELDS, "")
        title = title if len(title) <= self.room else title[: self.room - 1] + "…"
        return self.progress.add_task(title, total=total, completed=done, **fields)

    def on_train_start(self, experiment: Experiment, step: int) -> None:
        self.clock.on_train_start(experiment, step)
        s = experiment.settings
        title = self.title or f"{s.algorithm} → {', '.join(s.targets) or 'no target'}"
        if self.task is not None:
            self.progress.remove_task(self.task)
        self.task = self._add(title, s.steps, step)

    def on_resume(self, records: Sequence[Mapping[str, Any]]) -> None:
        self.clock.on_resume(records)

    def on_phase(self, description: str) -> None:
        self.clock.on_phase(description)
        self.progress.update(self.task, loss=description)

    def on_step_end(self, step: int, log: Mapping[str, float]) -> None:
        self.clock.on_step_end(step, log)
        speed, left = self.progress.tasks[0].speed, self.clock.seconds_left()
        fields: dict[str, Any] = {"rate": f"{speed:.2f}/s" if speed else ""}
        if left is not None:
            fields["left"] = format_duration(left)
        ratio = next((name for name in log if name.endswith(".ratio")), None)
        if ratio is not None or time.monotonic() - self.looked_at > LOOK_EVERY:  # not at each step: see above
            self.looked_at = time.monotonic()
            fields["loss"] = f"loss {log['loss']:.2f}"
        if ratio is not None:
            fields["penalty"] = f"pen {log[ratio]:.0%}"
        self.progress.update(self.task, completed=step + 1, **fields)

    def on_evaluation(self, record: dict[str, Any]) -> None:
        self.clock.on_evaluation(record)
        if record["validation"] is not None:
            self.progress.update(self.task, validation=f"val {record['validation']:.0%}")

    def on_train_end(self) -> None:
        with suppress(OSError):  # the terminal may be gone, which must not hide how the training ended
            self.progress.stop()
