"""How long a run of a benchmark takes on this machine, from seconds per image."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import fmean
from typing import cast

from dspreg.algorithms import DSPReg
from dspreg.algorithms.measure import BATCHES, refresh_due
from dspreg.config.defaults import DatasetFacts, default_options
from dspreg.data.benchmarks import Benchmark
from dspreg.data.splits import steps_per_epoch
from dspreg.doctor.throughput import DOMAINS, Cost, Throughput

BATCH = 32  # images of a batch that c is measured on
PROFILES = 2  # c before and after training, counted as a refresh each


@dataclass(frozen=True)
class Work:
    """What a run has to do, the mean over its targets.

    Attributes:
        steps: Of training.
        images: Of a step, of all domains together.
        evaluated: Images, over all evaluations.
        evaluation_batch: Images of one prediction.
        refreshes: Measurements of c, by DSP-Reg.
        measured: Images per refresh.
    """

    steps: float
    images: float
    evaluated: float
    evaluation_batch: float
    refreshes: float
    measured: float


def work_of(data: type[Benchmark]) -> Work:
    """Of a run with all defaults."""
    options = default_options("domainbed", cast(DatasetFacts, data))
    steps, batch, holdout = options["steps"], options["batch_size"], options["holdout"]
    evaluations = len({*range(0, steps, options["evaluate_every"]), steps - 1})
    evaluated, refreshes, measured, every = [], [], [], DSPReg().refresh_epochs
    for target, held_out in data.counts.items():
        sources = [count for name, count in data.counts.items() if name != target]
        inside = [round((1 - holdout) * count) for count in sources]
        evaluated.append(evaluations * (holdout * sum(sources) + (1 - holdout) * held_out))
        epoch = steps_per_epoch(inside, batch * len(sources))
        refreshes.append(sum(refresh_due(t, every, None, epoch) for t in range(steps)) + PROFILES)
        measured.append(sum(min(BATCH * BATCHES, count) for count in inside))
    images = batch * (len(data.counts) - 1)
    return Work(steps, images, fmean(evaluated), options["evaluation_batch"], fmean(refreshes), fmean(measured))


def estimate_range(
    data: type[Benchmark], speed: Throughput, algorithm: str = "ERM", workers: int = 0
) -> tuple[float, float]:
    """Seconds of a run, at least and at most.

    At least: every step is as fast as the fastest that was seen. At most: as slow as the slowest, and a batch as large
    as in training is no cheaper per image than the one that was measured.
    """
    images = len(DOMAINS) * speed.batch
    flat = {name: Cost(0.0, cost.of(images) / images) for name, cost in
            {**speed.train, "evaluate": speed.evaluate, "measure": speed.measure}.items()}  # fmt: skip
    train = {name: flat[name] for name in speed.train}
    slow = replace(speed, train=train, evaluate=flat["evaluate"], measure=flat["measure"])
    shortest = speed.fastest * estimate_run(data, speed, algorithm, workers)
    return shortest, speed.slowest * estimate_run(data, slow, algorithm, workers)


def estimate_run(data: type[Benchmark], speed: Throughput, algorithm: str = "ERM", workers: int = 0) -> float:
    """Seconds of a run.

    Args:
        data: A benchmark, whose sizes and defaults are known.
        speed: Of this machine, with the benchmark's network and image size.
        algorithm: `"ERM"` or `"DSPReg"`.
        workers: Processes that read images beside the training; with 0 the training waits for each image.
    """
    work = work_of(data)

    def beside(computing: float, reading: float) -> float:
        return max(computing, reading / workers) if workers else computing + reading

    step = beside(speed.train[algorithm].of(work.images), work.images * speed.read_augmented)
    predictions = work.evaluated / work.evaluation_batch
    evaluating = beside(predictions * speed.evaluate.of(work.evaluation_batch), work.evaluated * speed.read_augmented)
    if algorithm != "DSPReg":
        return work.steps * step + evaluating
    refresh = beside(speed.measure.of(work.measured), work.measured * speed.read_plain)
    return work.steps * step + evaluating + work.refreshes * refresh
