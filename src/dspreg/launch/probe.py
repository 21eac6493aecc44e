"""What the runs of a sweep will take, by a few steps of one of them: real images, a bounded time, no file written."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from dspreg.algorithms.base import Algorithm
from dspreg.algorithms.compatibility import overrides
from dspreg.algorithms.measure import refresh_steps
from dspreg.algorithms.registry import StackSpec
from dspreg.algorithms.task import SourceValidation
from dspreg.batches import Batch
from dspreg.config.train_config import Execution, TrainConfig, resolve_config
from dspreg.data.loader import DomainSplit, send_ahead
from dspreg.data.readers import iterate_batches
from dspreg.data.splits import steps_per_epoch
from dspreg.errors import Diverged, DspregError, Notice, resource_errors
from dspreg.io.text import format_duration
from dspreg.launch.resources import fill_execution
from dspreg.protocol.estimate import Prices, Work, count_evaluations, describe_work
from dspreg.runs.run import Run
from dspreg.training.evaluate import tallies
from dspreg.training.execution import layers_of, measures_c, resolve_execution
from dspreg.training.experiment import Experiment, prepare_experiment, resolve_stack
from dspreg.training.finalize import verify_predictions
from dspreg.training.loop import SMALLER, reproducible
from dspreg.training.model import tensors_of
from dspreg.training.state import first_bad
from dspreg.training.step import train_step

SECONDS = 20.0  # of steps, for each network and method; two steps are taken whatever they take
MOST_STEPS = 50
FEW = 16  # images of each part that is evaluated, on a CPU; elsewhere a whole batch, as small ones are no faster
FAILED = 5  # exit code of a method that raises something of its own


@dataclass(frozen=True)
class Probed:
    """What a step, an evaluation and a measurement of c took, in which training."""

    experiment: Experiment
    prices: Prices
    steps: int  # that were taken
    compiling: float = 0.0  # seconds, once a run

    def seconds(self, run: Run) -> tuple[Work, float]:
        """What a run of the same network and method has to do, and takes: a step by the number of its images."""
        probed = self.experiment
        config = resolve_config(TrainConfig.of(run.settings()), probed.data)
        stack, _ = resolve_stack(StackSpec.parse(config.algorithm), config)
        inside = [len(probed.splits[name][0]) for name in probed.sources]
        epoch = steps_per_epoch(inside, config.batch_size * len(inside))
        profiles = 2 * (probed.execution.profile != "never" and measures_c(stack, probed.execution))
        work = Work(
            config.steps,
            count_evaluations(config.steps, config.evaluate_every),
            len(refresh_steps(layers_of(stack), config.steps, epoch)) + profiles,
        )
        step = self.prices.step * config.batch_size / probed.settings.batch_size
        return work, replace(self.prices, step=step).of(work) + self.compiling


class Prober:
    """Tries what has no finished run, one network and method after the other, and keeps what there is to say about it.

    Args:
        execution: How the sweep runs.
        jobs: Runs at a time; a run is tried alone, with the threads that it will have.
        say: Called before each.

    Attributes:
        lines: What was found, or what went wrong, one line each.
        exit_code: 0, or of the first that failed.
    """

    def __init__(self, execution: Execution, jobs: int = 1, say: Callable[[str], None] = lambda _: None):
        self.execution, self.jobs, self.say = execution, jobs, say
        self.lines: list[str] = []
        self.exit_code = 0

    def seconds(self, runs: Sequence[Run]) -> float | None:
        """Of all these runs, of one data set and algorithm, one after the other; None if a part of them fails."""
        total, complete = 0.0, True
        for alike in by_network(runs):
            name = f"{alike[0].algorithm} on {alike[0].data_name}"
            self.say(f"trying a few steps of {name}")
            try:
                probed = probe_run(alike[0], self.execution, self.jobs)
            except Exception as error:
                known = isinstance(error, DspregError)
                self.lines.append(f"{name} fails: {error if known else f'{type(error).__name__}: {error}'}")
                self.exit_code = self.exit_code or (error.exit_code if isinstance(error, DspregError) else FAILED)
                complete = False
                continue
            work, each = probed.seconds(alike[0])
            model = probed.experiment.settings.model
            text = describe_work(work, probed.prices)
            text += f", {format_duration(probed.compiling)} of compiling" if probed.compiling else ""
            self.lines.append(f"{name}, {model}: {format_duration(each)} a run, by {probed.steps} steps: {text}")
            total += sum(probed.seconds(run)[1] for run in alike)
        return total if complete else None


def by_network(runs: Sequence[Run]) -> list[list[Run]]:
    """The runs with the same network, at the same size."""
    found: dict[tuple[object, ...], list[Run]] = {}
    for run in runs:
        found.setdefault(
            tuple(run.options.get(name) for name in ("model", "image_size", "augment", "channels")), []
        ).append(run)
    return list(found.values())


def probe_run(run: Run, execution: Execution, jobs: int = 1, seconds: float = SECONDS) -> Probed:
    """Take a few steps of a run, evaluate it on a few images, measure c on a few, and see that it can be saved.

    Args:
        run: The run.
        execution: How the sweep runs.
        jobs: Runs at a time.
        seconds: After which no further step is taken.

    Raises:
        DspregError: What would end the run.
        Exception: Of a method, as it is.
    """
    how = replace(run.execution(execution), check_images="never", cache="none", tensorboard=False, track=None)
    how = fill_execution(resolve_execution(how, run.algorithm), jobs)
    with warnings.catch_warnings(), reproducible(how), resource_errors(SMALLER):
        warnings.simplefilter("ignore", Notice)  # training gives them
        experiment = prepare_experiment(run.settings(), how)
        algorithm = experiment.algorithm()
        with training_steps(experiment) as step:
            started = time.perf_counter()
            step(algorithm)  # the first is slow: it allocates, and compiles if it is to
            first = time.perf_counter() - started
            taken, started = 0, time.perf_counter()
            while not taken or (taken < MOST_STEPS and time.perf_counter() - started < seconds):
                step(algorithm)
                taken += 1
            per_step = (time.perf_counter() - started) / taken
            evaluation = time_evaluation(experiment, algorithm)
            refresh = time_refresh(algorithm, step, per_step)
        verify_predictions(experiment, algorithm, tensors_of(algorithm))
    compiling = max(0.0, first - per_step) if how.compile else 0.0
    return Probed(experiment, Prices(per_step, evaluation, refresh), taken + 1, compiling)


@contextmanager
def training_steps(experiment: Experiment) -> Iterator[Callable[[Algorithm], None]]:
    """A function that takes the next step, reads its log, and refuses what is not finite."""
    device, s = experiment.execution.device, experiment.settings
    normalise = experiment.transform(s.augment).normalise
    read = iterate_batches(experiment.steps(), range(MOST_STEPS + 10), experiment.workers)
    made = send_ahead(read, device)

    def step(algorithm: Algorithm) -> None:
        weights = experiment.batch_weights(algorithm.t)
        batches = [Batch(normalise(x), y, d, w) for d, ((x, y), w) in enumerate(zip(next(made), weights, strict=True))]
        t = algorithm.t
        with experiment.autocast():
            log = train_step(algorithm, batches, record=t == 0)
        numbers = {name: float(value) for name, value in log.items()}
        if bad := first_bad(algorithm, batches, numbers):
            raise Diverged(f"step {t}: not finite: {bad}. A smaller lr or penalty weight may help", t)

    try:
        yield step
    finally:
        made.close()


def time_evaluation(experiment: Experiment, algorithm: Algorithm) -> float:
    """Seconds of a whole evaluation, by a few images of each part; the layers get to see what came out."""
    s, device = experiment.settings, experiment.execution.device
    chosen = experiment.evaluation_parts(last=False)
    size = min(FEW, s.evaluation_batch) if device == "cpu" else s.evaluation_batch
    few = [DomainSplit(part.domain, part.images, part.positions[:size], part.transform) for _, _, part in chosen]
    if not few:
        return 0.0  # nothing is held out
    losses = any(overrides(type(layer), "on_evaluation") for layer in algorithm.layers())
    started = time.perf_counter()
    found = tallies(algorithm, few, size=size, key=(*experiment.key, "probe"), device=device, losses=losses)
    took = time.perf_counter() - started
    seen = {name: tally for (name, which, _), tally in zip(chosen, found, strict=True)
            if name in experiment.sources and which == "out"}  # fmt: skip
    sources = {name: tally.accuracy for name, tally in seen.items()}
    losses_of = {name: tally.loss for name, tally in seen.items()} if losses else {}
    if sources:
        algorithm.stack.report_validation(SourceValidation(algorithm.t - 1, sources, losses_of))
    return took * sum(len(part) for _, _, part in chosen) / sum(map(len, few))


def time_refresh(algorithm: Algorithm, step: Callable[[Algorithm], None], per_step: float) -> float | None:
    """Seconds of measuring c, by steps that do so on one batch of each domain; None where the method does not."""
    layers = [layer for layer in algorithm.layers() if getattr(layer, "uses_c", False) and hasattr(layer, "due")]
    if not layers:
        return None
    batches = [int(getattr(layer, "measure_batches", 1)) for layer in layers]
    for layer in layers:
        layer.due, layer.measure_batches = (lambda *_: True), 1  # type: ignore[assignment]
    step(algorithm)  # the first finds out how each module is best measured
    started = time.perf_counter()
    step(algorithm)
    took = time.perf_counter() - started
    return max(0.0, took - per_step) * sum(batches) / len(batches)
