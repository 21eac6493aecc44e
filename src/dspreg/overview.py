"""How all runs of a store stand, at a glance: what files there are, and who works on what. Nothing is verified.

Ten thousand runs take a fraction of a second: every folder is listed once, plans are read without being understood, and
no file of a finished run is opened. Nothing is written, so that it may be looked at while others write, and by others.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dspreg.errors import DspregError, IntegrityError, ResourceError
from dspreg.io.atomic_files import read_json
from dspreg.runs.leases import LeaseInfo, list_leases
from dspreg.runs.run import Run, data_name
from dspreg.runs.store import RunStore, Standing, read_plan

STATES = ("finished", "running", "waiting", "failed", "cancelled")


@dataclass
class Overview:
    """All runs of a store at one moment.

    Attributes:
        runs: By plan id, in the order of the plans, what `Run.from_json` takes.
        states: By plan id, one of `STATES`. `waiting`: new, left by whoever began it, or to be tried again.
        failures: By plan id, why runs failed; also of those that wait to be tried again.
        held: By plan id, leases of runs that are running or waiting; who holds one that waits is gone, or hangs.
        steps: By plan id, how many steps those have, where they were begun.
    """

    runs: Mapping[str, Mapping[str, Any]]
    states: dict[str, str] = field(default_factory=dict)
    failures: dict[str, Standing] = field(default_factory=dict)
    held: dict[str, LeaseInfo] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)

    @property
    def settled(self) -> bool:
        """Whether nothing is left to do."""
        return not {"running", "waiting"} & set(self.states.values())

    def in_state(self, state: str) -> list[str]:
        return [run for run, found in self.states.items() if found == state]

    def run(self, run: str) -> Run:
        return Run.from_json(self.runs[run])


class Looker:
    """Looks at a store, again and again; plans, which never change, are read once.

    Args:
        store: Checked before.
        attempts: How often a run may fail before nobody tries it again.
    """

    def __init__(self, store: RunStore, attempts: int):
        self.store, self.attempts = store, attempts
        self._plans: dict[Path, dict[str, Mapping[str, Any]]] = {}

    def look(self) -> Overview:
        # leases first: what ends later has files
        leases = {each.run: each for each in list_leases(self.store.path / "claims.db")}
        found = Overview(self._planned())
        begun, failed = _names(self.store.path / "runs"), _names(self.store.path / "failures")
        place = f"{self.store.path}{os.sep}runs{os.sep}"
        for run in found.runs:
            folder = f"{place}{run}{os.sep}"
            if run in begun and os.path.exists(folder + "result.json"):
                found.states[run] = "finished"
                continue
            if run in begun and os.path.exists(folder + "failure.json"):
                failure = _failure(Path(folder) / "failure.json")
            elif f"{run}.json" in failed:
                failure = _failure(self.store.path / "failures" / f"{run}.json")
            else:
                failure = None
            found.states[run] = self._state(failure, leases.get(run))
            if failure is not None and failure.state == "failed":
                found.failures[run] = failure
            if run in leases and found.states[run] in ("running", "waiting"):
                found.held[run] = leases[run]
                if run in begun and (steps := _steps(Path(folder) / "run.json")):
                    found.steps[run] = steps
        return found

    def _state(self, failure: Standing | None, lease: LeaseInfo | None) -> str:
        """A sweeper may have been given more attempts than we know of: what it works on is running."""
        if failure is not None and (failure.state == "cancelled" or not failure.attempts):
            return failure.state
        if lease is not None and lease.alive:
            return "running"
        return "failed" if failure is not None and failure.settled(self.attempts) else "waiting"

    def _planned(self) -> dict[str, Mapping[str, Any]]:
        found: dict[str, Mapping[str, Any]] = {}
        for path in self.store.plans():
            if path not in self._plans:
                self._plans[path] = dict(_entries(path))
            for run, value in self._plans[path].items():
                found.setdefault(run, value)
        return found


def group(value: Mapping[str, Any]) -> tuple[str, str]:
    """Data set and algorithm of a run, as `Run.from_json` takes it."""
    return data_name(value["dataset"], value.get("name")), value["algorithm"]


def _entries(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The runs of one plan, by their ids; plans of the first version have none, and are read the slow way."""
    plan = read_plan(path)
    runs, ids = plan.get("runs"), plan.get("ids")
    if ids is None:
        for run in map(Run.from_json, runs):
            yield run.id, run.to_json()
        return
    texts = isinstance(ids, list) and all(isinstance(each, str) for each in ids)
    if not texts or not isinstance(runs, list) or len(ids) != len(runs) or not all(map(_is_run, runs)):
        raise IntegrityError(f"{path} is damaged: its ids and runs are not as they are written")
    yield from zip(ids, runs, strict=True)


def _is_run(value: Any) -> bool:
    """As far as `group` needs it."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str | None):
        return False
    return isinstance(value.get("dataset"), str) and isinstance(value.get("algorithm"), str)


def _names(folder: Path) -> set[str]:
    try:
        return set(os.listdir(folder))
    except FileNotFoundError:  # a store that was just made
        return set()
    except OSError as error:
        raise ResourceError(f"{folder} can't be read: {error.strerror}") from error


def _steps(path: Path) -> int | None:
    """Of a run that was begun; None: it is about to be."""
    try:
        return int(read_json(path)["settings"]["steps"])
    except (DspregError, KeyError, TypeError, ValueError):  # damage is named by `sweep`
        return None


def _failure(path: Path) -> Standing | None:
    """What it says; None if it is gone by now."""
    try:
        value = read_json(path)
        state = "cancelled" if value.get("cancelled") else "failed"
        return Standing(state, str(value["reason"]), attempts=int(value.get("attempts", 0)))
    except (DspregError, AttributeError, KeyError, TypeError, ValueError) as error:
        return Standing("failed", f"{path} can't be read: {error}") if path.exists() else None
