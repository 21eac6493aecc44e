"""How long a training will still take, by what its own steps and evaluations took."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from dspreg.algorithms.measure import refresh_steps
from dspreg.io.text import format_duration
from dspreg.protocol.estimate import Announcer, Prices, Work, count_evaluations, describe_time_left
from dspreg.training.callbacks import Callback

if TYPE_CHECKING:
    from dspreg.training.experiment import Experiment

RECENT = 50  # steps whose mean is taken, so that the estimate follows the machine's load
FEW, SOON = 3, 10.0  # steps that an estimate needs, or seconds where they are slow
LOOK_EVERY = 2.0  # seconds between two looks at a device that works ahead of the clock
SHORT = 10.0  # seconds: of what ends sooner nothing is said
EVALUATING, MEASURING = "evaluating", "measuring c"  # how phases begin, as `on_phase` describes them


class Took(NamedTuple):
    """Some steps in a row and their seconds; on the CPU one step."""

    seconds: float
    steps: int


class RunClock(Callback):
    """Times a training and says what is left of it.

    An estimate needs a few steps after the first, which is slower, and one evaluation, which follows the first step. A
    step that measures c is told from others by its number. A measurement before training stands for the later ones
    until one of them was seen.

    Args:
        now: A clock.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic):
        self.now = now
        self.steps = self.done = 0
        self.every = 1
        self.refreshes: list[int] = []  # steps that measure c
        self.profiles = 0  # measurements after training
        self.works_ahead = False  # whether the device does
        self.compiles = False  # whether the first step includes that
        self.first: float | None = None  # seconds of the first step of this process
        self.ordinary: deque[Took] = deque(maxlen=RECENT)
        self.after_evaluations: deque[Took] = deque(maxlen=5)  # they include saving a checkpoint
        self.evaluations: deque[float] = deque(maxlen=5)
        self.earlier: list[float] = []  # evaluations before the training was resumed
        self.measured: deque[float] = deque(maxlen=5)
        self.profile: float | None = None  # seconds of measuring c before training
        self.phase, self.since = "", now()  # what is being done, and since when
        self.unseen = 0  # steps since then
        self.evaluated_at = self.since

    # What the training says.

    def on_train_start(self, experiment: Experiment, step: int) -> None:
        from dspreg.training.execution import layers_of, measures_c

        s, execution = experiment.settings, experiment.execution
        self.steps, self.done, self.every = s.steps, step, s.evaluate_every
        self.refreshes = refresh_steps(layers_of(experiment.stack), s.steps, experiment.epoch)
        self.profiles = int(execution.profile != "never" and measures_c(experiment.stack, execution))
        self.works_ahead, self.compiles = execution.device != "cpu", execution.compile
        self.evaluated_at = self.now()
        self._turn("")

    def on_resume(self, records: Sequence[Mapping[str, Any]]) -> None:
        self.earlier = [each["seconds"]["evaluate_seconds"] for each in records[-5:]]

    def on_phase(self, description: str) -> None:
        if self.phase.startswith(MEASURING) and self.profile is None:
            self.profile = self.now() - self.since
        self._turn(description)

    def on_step_end(self, step: int, log: Mapping[str, float]) -> None:
        self.unseen += 1
        self.done = step + 1
        if self.works_ahead and self.first is not None:
            if self.now() - self.since < LOOK_EVERY:
                return
            log["loss"]  # waits for the device, so that the clock shows what was done
        took = Took(self.now() - self.since, self.unseen)
        if self.first is None:
            self.first = took.seconds
        elif measured := self._refreshes(step + 1 - took.steps, step + 1):
            if (price := self._step_price()) is not None:
                self.measured.append((took.seconds - took.steps * price) / measured)
        elif self.phase.startswith(EVALUATING):
            self.after_evaluations.append(took)
        else:
            self.ordinary.append(took)
        self._turn("")

    def on_evaluation(self, record: dict[str, Any]) -> None:  # noqa: ARG002
        self.evaluations.append(self.now() - self.since)
        self.evaluated_at = self.since = self.now()  # the phase goes on: a checkpoint is saved

    def _turn(self, phase: str) -> None:
        self.phase, self.since, self.unseen = phase, self.now(), 0

    def _refreshes(self, start: int, end: int) -> int:
        return bisect_left(self.refreshes, end) - bisect_left(self.refreshes, start)

    # What follows from it.

    def _step_price(self) -> float | None:
        took = self.ordinary or self.after_evaluations
        return sum(each.seconds for each in took) / sum(each.steps for each in took) if took else None

    def work_left(self) -> Work:
        measurements = self._refreshes(self.done, self.steps) + self.profiles
        return Work(self.steps - self.done, count_evaluations(self.steps, self.every, self.done), measurements)

    def prices(self) -> Prices | None:
        """None before there were enough steps."""
        step, seen = self._step_price(), len(self.ordinary)
        if step is None or (seen < FEW and self.now() - self.evaluated_at < SOON and self.done < self.steps):
            return None
        evaluations = self.evaluations or self.earlier
        evaluation = sum(evaluations) / len(evaluations) if evaluations else None
        if evaluation is not None and self.ordinary and self.after_evaluations:
            later = [max(0.0, each.seconds - each.steps * step) for each in self.after_evaluations]
            evaluation += sum(later) / len(later)
        refresh = sum(self.measured) / len(self.measured) if self.measured else self.profile
        return Prices(step, evaluation, None if refresh is None else max(0.0, refresh))

    def seconds_left(self) -> float | None:
        """None before there were enough steps."""
        prices = self.prices()
        return None if prices is None else prices.of(self.work_left())

    def whole_seconds(self) -> float | None:
        """Of the whole training, at the same prices; None before there were enough steps."""
        prices = self.prices()
        evaluations, measurements = count_evaluations(self.steps, self.every), len(self.refreshes) + 2 * self.profiles
        return None if prices is None else prices.of(Work(self.steps, evaluations, measurements))

    def describe(self) -> str | None:
        """The estimate and where it comes from; None before there were enough steps."""
        prices = self.prices()
        if prices is None:
            return None
        seconds = max(0.0, (self.first or 0.0) - prices.step)
        compiled = f"; compiling took {format_duration(seconds)}" if self.compiles else ""
        return describe_time_left(self.work_left(), prices) + compiled


class TimeLeftLog(Callback):
    """Says how long a training will still take: after its first steps, when that has moved much, and every half hour.

    Args:
        say: Called with each line.
        clock: Of the same training, called before this.
    """

    def __init__(self, say: Callable[[str], None], clock: RunClock):
        self.say, self.clock, self.announcer = say, clock, Announcer(clock.now)

    def on_step_end(self, step: int, log: Mapping[str, float]) -> None:  # noqa: ARG002
        left = self.clock.seconds_left()
        if left is not None and left > SHORT and self.announcer.is_due(left):
            done = f"step {self.clock.done:,} of {self.clock.steps:,}: " if self.clock.done > FEW + 2 else ""
            self.say(f"{done}{self.clock.describe()}")
