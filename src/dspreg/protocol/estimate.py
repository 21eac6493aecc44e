"""How long runs take and what they leave, from what steps, evaluations and finished runs took; never guessed."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dspreg.io.text import format_duration, plural
from dspreg.runs.folder import RunFolder

MANY = 10_000  # waiting runs whose order is looked at; of more, their sum alone
AGAIN, AFTER, MOVED = 1800.0, 60.0, 0.25  # seconds until a line is repeated, or corrected if it moved by this share


# One run.


@dataclass(frozen=True)
class Work:
    """What a run, or the rest of one, has to do.

    Attributes:
        steps: Of training.
        evaluations: Of the network.
        refreshes: Measurements of c, those before and after training included.
    """

    steps: int
    evaluations: int
    refreshes: int = 0


@dataclass(frozen=True)
class Prices:
    """Seconds of a step, an evaluation and a measurement of c; None: none was seen yet."""

    step: float
    evaluation: float | None
    refresh: float | None = None

    def of(self, work: Work) -> float:
        """Seconds of all that has a price."""
        return work.steps * self.step + work.evaluations * (self.evaluation or 0) + work.refreshes * (self.refresh or 0)


def count_evaluations(steps: int, every: int, done: int = 0) -> int:
    """Evaluations after the steps `done`, …, `steps` − 1: every so many steps, counted from 0, and after the last."""
    multiples = -(-steps // every) - -(-done // every)
    return multiples + (done < steps and (steps - 1) % every > 0)


def describe_time_left(work: Work, prices: Prices) -> str:
    """In words, with where it comes from."""
    return f"about {format_duration(prices.of(work))} left: {describe_work(work, prices)}"


def describe_work(work: Work, prices: Prices) -> str:
    """What there is to do, and the price of each."""
    parts = [f"{plural(work.steps, 'step')} at {format_seconds(prices.step)}"]
    unknown = []
    for count, price, one, many in (
        (work.evaluations, prices.evaluation, "evaluation", "evaluations"),
        (work.refreshes, prices.refresh, "measurement of c", "measurements of c"),
    ):
        if count and price is not None:
            parts.append(f"{plural(count, one, many)} at {format_seconds(price)}")
        elif count:
            unknown.append(plural(count, one, many))
    more = f"; and {' and '.join(unknown)}, of which none was seen yet" if unknown else ""
    return f"{', '.join(parts)}{more}"


def format_seconds(seconds: float) -> str:
    """What something small takes: `"46 ms"`, `"0.46 s"`, `"4.6 s"`, `"46 s"`, `"8 min"`."""
    if seconds < 0.1:
        return f"{1000 * seconds:.2g} ms"
    return f"{seconds:.2g} s" if seconds < 9.95 else format_duration(seconds)


# Records.


def seconds_of(records: Iterable[Mapping[str, Any]]) -> float:
    """What a run's steps and evaluations took; a record has the mean over the steps since the one before."""
    total, last = 0.0, -1
    for record in records:
        clock = record["seconds"]
        total += (record["step"] - last) * clock["step_seconds"] + clock["evaluate_seconds"]
        last = record["step"]
    return total


def prices_of(records: Sequence[Mapping[str, Any]]) -> Prices | None:
    """By the records of a run that is not at its end; None before there are two.

    The first step is left out: it is slower than the others. Those that measure c are in the mean.
    """
    if len(records) < 2:
        return None
    first, last = records[0]["step"], records[-1]["step"]
    evaluating = [each["seconds"]["evaluate_seconds"] for each in records]
    stepping = seconds_of(records) - sum(evaluating) - (first + 1) * records[0]["seconds"]["step_seconds"]
    return Prices(stepping / (last - first), sum(evaluating) / len(evaluating))


def bytes_of(folder: RunFolder) -> int:
    """What a finished run leaves on the disk."""
    return sum(path.stat().st_size for path in folder.path.rglob("*") if path.is_file())


# Many runs.


def finish_time(running: Sequence[float], waiting: Sequence[float], jobs: int) -> float:
    """Seconds until the last run ends, if each that waits starts as soon as one of `jobs` places is free.

    Args:
        running: Seconds that each run in training still takes.
        waiting: Seconds of each other one, in their order.
        jobs: Runs at a time.
    """
    if len(waiting) > MANY:
        return max([(sum(running) + sum(waiting)) / jobs, *running])
    free = [*running, *[0.0] * (jobs - len(running))]
    heapq.heapify(free)
    for seconds in waiting:
        heapq.heapreplace(free, free[0] + seconds)
    return max(free, default=0.0)


class Announcer:
    """Decides when an estimate is worth a line in a log: the first, one that has moved much, and every half hour.

    Args:
        now: A clock.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic):
        self.now = now
        self.said: tuple[float, float] | None = None  # when, and the end that was foretold

    def is_due(self, seconds_left: float) -> bool:
        """Whether to say so now; if it is, it counts as said."""
        now = self.now()
        if self.said is not None:
            at, end = self.said
            off = abs(now + seconds_left - end)
            moved = now - at >= AFTER and off > MOVED * max(seconds_left, end - now)
            if not moved and now - at < AGAIN:
                return False
        self.said = now, now + seconds_left
        return True
