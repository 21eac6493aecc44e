"""The status of runs: one enumeration, one derivation, one sentence. Read without torch.

A run's status follows from four facts: whether its folder was begun, whether it holds a result, what its failure record
says, and whether a live process has its lease. Callers differ in how they establish these facts: `RunStore.status`
verifies every file, `dspreg.reporting.load` every file but the models, `scan_store` only checks which files exist.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dspreg.config.dataset_ref import DatasetRef
from dspreg.errors import DspregError, IntegrityError, ResourceError
from dspreg.io.atomic_files import holds_file, read_json, require_folder
from dspreg.io.garbage import garbage_collection_paused
from dspreg.runs.leases import LeaseInfo, list_leases
from dspreg.runs.run import Run
from dspreg.runs.schema import LONGEST, check_failure, is_count

if TYPE_CHECKING:
    from dspreg.runs.store import RunStore

FAILURE = "failure.json"  # in the folder of a run that diverged
SUMMARIES = ("finished", "running", "waiting", "failed", "cancelled")  # what `dspreg status` counts
LISTED = 20  # reasons of failed runs in a notebook
ATTEMPTS = 3  # how often a run may fail before sweeps give it up
OPEN = ("running", "waiting")  # those with work left


class RunStatus(StrEnum):
    """Status of a run."""

    NOT_STARTED = "not started"
    STOPPED = "stopped"  # it was started, and no process works on it
    RUNNING = "running"  # a live process has its lease
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"
    DAMAGED = "damaged"  # its files contradict each other or can't be read


class Failure(NamedTuple):
    """A failure record: why a run failed, or that it was cancelled."""

    reason: str
    attempts: int = 0  # failed ones; 0 for a run that diverged: another attempt would give bitwise identical results
    cancelled: bool = False
    record: Mapping[str, Any] = {}  # the whole file


class RunState(NamedTuple):
    """The status of a run, with details.

    Attributes:
        status: Its status.
        reason: Why it failed, also during a retry; why it is damaged; how to undo its cancellation.
        attempts: Failed attempts, as in `Failure`.
        result: The verified outcome of a finished run, if it was read.
        lease: Of the process that works on it, or that did and died; None if nothing is left to do.
        step: The last step that was recorded, or reported with the lease.
        steps: Number of steps of the run.
    """

    status: RunStatus
    reason: str = ""
    attempts: int = 0
    result: dict[str, Any] | None = None
    lease: LeaseInfo | None = None
    step: int | None = None
    steps: int | None = None

    def is_final(self, attempts: int) -> bool:
        """Whether nothing is left to do, if a run may fail `attempts` times."""
        if self.status is RunStatus.FAILED:
            return self.attempts == 0 or self.attempts >= attempts
        return self.status in (RunStatus.FINISHED, RunStatus.CANCELLED, RunStatus.DAMAGED)

    def summary(self, attempts: int) -> str:
        """One of `SUMMARIES`. A run that is not started, stopped or to be retried is waiting."""
        if self.status is RunStatus.DAMAGED:
            return "failed"
        return self.status.value if self.status is RunStatus.RUNNING or self.is_final(attempts) else "waiting"


FINISHED = RunState(RunStatus.FINISHED)  # of a run whose outcome is kept elsewhere, or not read


def derive_state(
    *,
    begun: bool = False,
    finished: bool = False,
    failure: Failure | None = None,
    lease: LeaseInfo | None = None,
    damage: str = "",
    result: dict[str, Any] | None = None,
    step: int | None = None,
    steps: int | None = None,
) -> RunState:
    """The status that follows from the facts. The only derivation of a run's status: all others use it.

    Args:
        begun: Whether its folder describes a run.
        finished: Whether it holds a result.
        failure: The failure record, the run's own before the store's.
        lease: The run's lease, which may have expired.
        damage: What is wrong with its files.
        result: Kept in the state.
        step: Kept in the state; the lease's, where that is further.
        steps: Kept in the state.
    """
    if damage:
        return RunState(RunStatus.DAMAGED, damage)
    if finished:
        return FINISHED if result is None else RunState(RunStatus.FINISHED, result=result)
    if failure is not None and failure.cancelled:
        return RunState(RunStatus.CANCELLED, failure.reason)
    if failure is not None and not failure.attempts:
        return RunState(RunStatus.FAILED, failure.reason, step=step, steps=steps)
    reason, attempts = (failure.reason, failure.attempts) if failure is not None else ("", 0)
    if lease is not None and lease.alive:  # whatever the number of attempts: the sweep may allow more than we know
        return RunState(RunStatus.RUNNING, reason, attempts, lease=lease, step=max(lease.step, step or 0), steps=steps)
    if failure is not None:
        return RunState(RunStatus.FAILED, reason, attempts, lease=lease, step=step, steps=steps)
    return RunState(RunStatus.STOPPED if begun else RunStatus.NOT_STARTED, lease=lease, step=step, steps=steps)


def describe_state(state: RunState) -> str:
    """The status as a sentence for tables, beginning with the status itself."""
    if state.status is RunStatus.STOPPED:
        return "stopped before its first record" if state.step is None else f"stopped at {_step(state)}"
    if state.status is RunStatus.RUNNING:
        return f"running at {_step(state)} (held by a sweeper)"
    tries = f" after {state.attempts:,} attempt{'s' * (state.attempts > 1)}" if state.attempts else ""
    return f"{state.status}{tries}: {state.reason}" if state.reason else f"{state.status}{tries}"


def _step(state: RunState) -> str:
    return f"step {state.step:,}" if state.steps is None else f"step {state.step:,} of {state.steps:,}"


def read_failure(path: Path) -> Failure | None:
    """A failure record; None if there is none. A retry may remove it while it is read.

    Raises:
        IntegrityError: It is damaged.
    """
    try:
        record = read_json(path)
    except IntegrityError:
        if os.path.lexists(path):
            raise
        return None
    check_failure(str(path), record)
    reason = record["reason"]
    short = reason if len(reason) <= LONGEST else f"{reason[:LONGEST]} …"  # a terminal is to show more than this one
    return Failure(short, record.get("attempts", 0), record.get("cancelled", False), record)


# All runs of a store at a glance.


@dataclass(repr=False)
class StoreStatus:
    """All runs of a store at one moment.

    Attributes:
        runs: By plan id, in the order of the plans, what `Run.from_json` takes.
        attempts: How often a run may fail before sweeps give it up.
        states: By plan id.
        summaries: By plan id, one of `SUMMARIES`.
    """

    runs: Mapping[str, Mapping[str, Any]]
    attempts: int
    states: dict[str, RunState] = field(default_factory=dict)
    summaries: dict[str, str] = field(default_factory=dict)

    @property
    def is_final(self) -> bool:
        """Whether nothing is left to do."""
        return not set(OPEN) & set(self.summaries.values())

    @property
    def leases(self) -> dict[str, LeaseInfo]:
        """Leases of running and waiting runs; the process that holds the lease of a waiting run has died, or hangs."""
        unfinished = ((run, self.states[run].lease) for run, summary in self.summaries.items() if summary in OPEN)
        return {run: lease for run, lease in unfinished if lease is not None}

    @property
    def failures(self) -> dict[str, RunState]:
        """Reasons of failed runs, including those being retried."""
        return {run: s for run, s in self.states.items() if s.reason and s.status is not RunStatus.CANCELLED}

    def run(self, run: str) -> Run:
        return Run.from_json(self.runs[run])

    def counts(self) -> dict[str, int]:
        """The number of all runs, and of those with each summary."""
        return _count(self.summaries.values())

    def counts_by_group(self) -> dict[tuple[str, str], dict[str, int]]:
        """The same by data set and algorithm."""
        groups = defaultdict(list)
        for run, entry in self.runs.items():
            groups[group_of(entry)].append(self.summaries[run])
        return {group: _count(summaries) for group, summaries in groups.items()}

    def __repr__(self) -> str:
        counts = ", ".join(f"{count:,} {name}" for name, count in self.counts().items() if count)
        return f"StoreStatus({counts or 'nothing is planned'})"

    def _repr_html_(self) -> str:
        from dspreg.io.notebook import list_html, table_html

        rows = [(data, algorithm, *counts.values()) for (data, algorithm), counts in self.counts_by_group().items()]
        rows.append(("all", "", *self.counts().values()))
        reasons = [f"{self.run(run)}: {state.reason}" for run, state in self.failures.items()]
        more = [f"and {len(reasons) - LISTED:,} more"] if len(reasons) > LISTED else []
        head = ["data set", "algorithm", "runs", *SUMMARIES]
        return table_html(head, rows, left=2) + list_html(reasons[:LISTED] + more)


def _count(summaries: Iterable[str]) -> dict[str, int]:
    counts = Counter(summaries)
    return {"runs": counts.total(), **{summary: counts[summary] for summary in SUMMARIES}}


def scan_store(store: RunStore, attempts: int) -> StoreStatus:
    """The status of all runs, by the files that exist; opens no file of a finished run, and writes nothing.

    Ten thousand runs take a fraction of a second, since every folder is listed once. It works while sweeps write, and
    with read permission only.

    Args:
        store: An existing store.
        attempts: How often a run may fail before sweeps give it up.
    """
    with garbage_collection_paused():
        return _scan(store, attempts)


def _scan(store: RunStore, attempts: int) -> StoreStatus:
    # leases first: a run that ends after this line has written its files
    leases = {each.run: each for each in list_leases(store.path / "claims.db")}
    found = StoreStatus(store.planned_entries(), attempts)
    begun, failed = _list_names(store.path / "runs"), _list_names(store.path / "failures")  # name → is it a folder
    place = f"{store.path}{os.sep}runs{os.sep}"
    finished = derive_state(finished=True)
    finished_summary = finished.summary(attempts)
    for run in found.runs:
        folder, there = f"{place}{run}{os.sep}", run in begun
        failure, damage = None, ""
        try:
            if there:
                if not begun[run]:
                    require_folder(folder[:-1])
                if holds_file(folder + "result.json"):
                    found.states[run], found.summaries[run] = finished, finished_summary
                    continue
            if there and holds_file(folder + FAILURE):
                failure = read_failure(Path(folder, FAILURE))
            elif f"{run}.json" in failed:
                failure = read_failure(store.path / "failures" / f"{run}.json")
            there = there and holds_file(folder + "run.json")
        except IntegrityError as error:
            damage = str(error)
        lease = leases.get(run)
        steps = _read_steps(Path(folder, "run.json")) if there and lease is not None and not damage else None
        state = derive_state(begun=there, failure=failure, lease=lease, damage=damage, steps=steps)
        found.states[run], found.summaries[run] = state, state.summary(attempts)
    return found


def group_of(entry: Mapping[str, Any]) -> tuple[str, str]:
    """Data set and algorithm of a run, as `Run.from_json` takes it."""
    return DatasetRef.parse(entry["dataset"]).data_name(entry.get("name")), entry["algorithm"]


def _list_names(folder: Path) -> dict[str, bool]:
    """All names, and whether each is a folder and no link: the system says so with the name, for nothing."""
    try:
        with os.scandir(folder) as there:
            return {each.name: each.is_dir(follow_symlinks=False) for each in there}
    except FileNotFoundError:  # a store that was just made
        return {}
    except OSError as error:
        raise ResourceError(f"{folder} can't be read: {error.strerror}") from error


def _read_steps(path: Path) -> int | None:
    """Steps of a started run; None if it is just starting."""
    try:
        steps = read_json(path)["settings"]["steps"]
    except (DspregError, KeyError, TypeError):  # damage is reported by `sweep`
        return None
    return steps if is_count(steps) and steps else None
