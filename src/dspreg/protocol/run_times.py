"""How long the runs of a store will still take: by finished runs of the same data set and algorithm, and by those in
training. `dspreg sweep` and `dspreg status` ask here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import fmean
from typing import Any, NamedTuple

from dspreg.errors import DspregError
from dspreg.io.atomic_files import read_json
from dspreg.io.text import format_duration, plural
from dspreg.protocol.estimate import Work, count_evaluations, finish_time, prices_of, seconds_of
from dspreg.runs.folder import RunFolder
from dspreg.runs.schema import FINITE, is_count
from dspreg.runs.status import OPEN, RunStatus, StoreStatus, group_of
from dspreg.runs.store import RunStore

SAMPLE = 8  # finished runs of each data set and algorithm whose records are read: the last of the plan

RUNNING = RunStatus.RUNNING.value
BEGUN = (RunStatus.RUNNING, RunStatus.STOPPED)

Group = tuple[str, str]  # data set, algorithm


class RunTime(NamedTuple):
    """What a finished run took, without what comes before its first step and after its last record."""

    seconds: float
    steps: int


@dataclass(frozen=True)
class StoreTimeLeft:
    """When the last run of a store will have ended.

    Attributes:
        seconds: Until then; None if nothing is known of any run that is left.
        left: Runs that are left.
        jobs: Runs at a time.
        unknown: Runs that are left and not counted, by data set and algorithm: no such run has got far enough.
        finished: Finished runs that it was estimated by.
    """

    seconds: float | None
    left: int
    jobs: int
    unknown: Mapping[Group, int]
    finished: int

    def __str__(self) -> str:
        if self.seconds is None:
            return "time left: unknown until a run has been evaluated twice"
        how = f"{plural(self.left, 'run')}, {self.jobs:,} at a time" if self.jobs > 1 else plural(self.left, "run")
        by = f", as {plural(self.finished, 'finished one')} took" if self.finished else ", by those that were begun"
        least, without = "", ""
        if self.unknown:
            least, number = "at least ", sum(self.unknown.values())
            without = (
                f"; without {number:,} of {', '.join(a for _, a in self.unknown)}, of which none has got far enough"
            )
        return f"{least}about {format_duration(self.seconds)} left: {how}{by}{without}"


class RunTimes:
    """What the runs of a store took. Each file is read once, or again while its run is in training.

    Files are not verified: an estimate is no result. What they say and can't be is left out.
    """

    def __init__(self, store: RunStore):
        self.store = store
        self._finished: dict[str, RunTime | None] = {}
        self._settings: dict[str, tuple[int, int] | None] = {}  # steps, and steps between evaluations

    def finished(self, run: str) -> RunTime | None:
        """What a finished run took; None if its records do not say."""
        if run not in self._finished:
            records = self._records(run)
            self._finished[run] = RunTime(seconds_of(records), records[-1]["step"] + 1) if records else None
        return self._finished[run]

    def left(self, run: str, step: int | None = None) -> float | None:
        """Seconds that an unfinished run still takes, by its own records; None before there are two.

        Args:
            run: Its plan id.
            step: Steps that it has taken; by default those up to its last record.
        """
        records, settings = self._records(run), self._read_settings(run)
        prices = prices_of(records)
        if prices is None or settings is None:
            return None
        steps, every = settings
        step = records[-1]["step"] + 1 if step is None else step
        return prices.of(Work(max(0, steps - step), count_evaluations(steps, every, min(step, steps))))

    def whole(self, run: str) -> RunTime | None:
        """What an unfinished run takes from its first step to its last, by its own records."""
        seconds, settings = self.left(run, 0), self._read_settings(run)
        return None if seconds is None or settings is None else RunTime(seconds, settings[0])

    def _folder(self, run: str) -> RunFolder:
        return RunFolder(self.store.path / "runs" / run, linked=False)

    def _records(self, run: str) -> Sequence[Mapping[str, Any]]:
        """Nothing, if one of them is not as training writes it."""
        try:
            records = list(self._folder(run).records)
        except DspregError:  # `sweep` and `report` say so
            return ()
        last = -1
        for each in records:
            if not is_timed(each) or each["step"] <= last:
                return ()
            last = each["step"]
        return records

    def _read_settings(self, run: str) -> tuple[int, int] | None:
        if run not in self._settings:
            try:
                settings = read_json(self._folder(run) / "run.json")["settings"]
                found = settings["steps"], settings["evaluate_every"]
            except (DspregError, KeyError, TypeError):
                found = 0, 0
            self._settings[run] = found if all(is_count(each) and each for each in found) else None
        return self._settings[run]


def is_timed(record: Any) -> bool:
    """Whether a record says at which step it is and how long that took."""
    clock: Any = record.get("seconds") if isinstance(record, dict) else None
    if not isinstance(clock, dict) or not is_count(record.get("step")):
        return False
    seconds = [clock.get(name) for name in ("step_seconds", "evaluate_seconds")]
    return all(isinstance(each, int | float) and 0 <= each <= FINITE for each in seconds)


class Reported(NamedTuple):
    """What a run in training says itself: seconds that it still takes, and those of the whole run."""

    left: float
    whole: float


def estimate_time_left(
    found: StoreStatus,
    times: RunTimes,
    *,
    jobs: int = 1,
    only: Collection[str] | None = None,
    reported: Mapping[str, Reported] | None = None,
) -> StoreTimeLeft:
    """When the last run that is left will have ended.

    Args:
        found: All runs of the store.
        times: What they took.
        jobs: Runs at a time; more, if more are in training.
        only: The runs to consider, by plan id; by default all.
        reported: What runs in training say; others are judged by their records.
    """
    groups: dict[Group, list[str]] = defaultdict(list)
    for run, entry in found.runs.items():
        groups[group_of(entry)].append(run)
    running: list[float] = []
    waiting: dict[str, float] = {}
    unknown: dict[Group, int] = {}
    left = finished = 0
    for group, runs in groups.items():
        open_runs = [run for run in runs if found.summaries[run] in OPEN and (only is None or run in only)]
        if not open_runs:
            continue
        took = [t for run in _sample(runs, found) if (t := times.finished(run)) is not None]
        finished += len(took)
        begun = islice((run for run in runs if found.states[run].status in BEGUN), SAMPLE)
        took = took or [t for run in begun if (t := _whole(run, found, times, reported or {})) is not None]
        rate = sum(t.seconds for t in took) / sum(t.steps for t in took) if took else None
        for run in open_runs:
            seconds = _seconds_left(run, found, times, reported or {}, took, rate)
            if seconds is None:
                unknown[group] = unknown.get(group, 0) + 1
            elif found.summaries[run] == RUNNING:
                running.append(seconds)
            else:
                waiting[run] = seconds
        left += len(open_runs)
    jobs = max(1, jobs, sum(summary == RUNNING for summary in found.summaries.values()))
    seconds = None
    if left > sum(unknown.values()) or not left:
        seconds = finish_time(running, [waiting[run] for run in found.runs if run in waiting], jobs)
    return StoreTimeLeft(seconds, left, jobs, unknown, finished)


def _sample(runs: Sequence[str], found: StoreStatus) -> list[str]:
    """The last finished ones, in the order of the plan."""
    return list(islice((run for run in reversed(runs) if found.summaries[run] == "finished"), SAMPLE))


def _whole(run: str, found: StoreStatus, times: RunTimes, reported: Mapping[str, Reported]) -> RunTime | None:
    """What a run that was begun will have taken."""
    steps = found.states[run].steps
    return RunTime(reported[run].whole, steps) if run in reported and steps else times.whole(run)


def _seconds_left(
    run: str,
    found: StoreStatus,
    times: RunTimes,
    reported: Mapping[str, Reported],
    took: Sequence[RunTime],
    rate: float | None,
) -> float | None:
    """Of one run: what it says, what follows from its records, or what others of its kind took per step."""
    state = found.states[run]
    if found.summaries[run] == RUNNING:
        own = reported[run].left if run in reported else times.left(run, state.step or 0)
        if own is not None:
            return own
    elif state.status is RunStatus.STOPPED and (own := times.left(run)) is not None:
        return own
    if rate is None:
        return None
    steps = found.runs[run].get("steps") or state.steps or round(fmean(t.steps for t in took))
    return rate * max(0, steps - (state.step or 0))
