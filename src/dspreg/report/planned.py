"""Runs that a store planned and that have no result: each as a trace that says what it waits for, or why it ended."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dspreg.errors import DspregError, Notice
from dspreg.io.atomic_files import canonical_json, read_json
from dspreg.protocol.selection import Trace
from dspreg.runs.leases import LeaseInfo, list_leases
from dspreg.runs.run import Run
from dspreg.runs.store import RunStore


def group(run: Run) -> str:
    """What was asked for beside data set, targets, algorithm, trial and draw: the same for all runs of a row."""
    return canonical_json({"protocol": run.protocol, **run.identity()["options"]})


def without_result(
    store: RunStore, runs: Sequence[Run], there: Mapping[str, Trace], damaged: Mapping[str, str]
) -> Iterator[Trace]:
    """All runs of the plan that are not finished.

    Args:
        store: Where they lie, or would.
        runs: All that were planned.
        there: Those with a folder, by their plan ids.
        damaged: In words what is wrong with the folders of others.
    """
    missing = [run for run in runs if run.id not in there or not there[run.id].finished]
    if not missing:
        return  # who worked on a finished store is nowhere in its tables
    workers = _workers(store)
    names = _Names(runs, there)
    for run in missing:
        begun = there.get(run.id)
        state = f"damaged: {damaged[run.id]}" if run.id in damaged else _state(store, run, begun, workers.get(run.id))
        yield replace(begun, state=state) if begun else names.trace(run, state)


class _Names:
    """Data set, algorithm and domains as runs of the same plan that were begun call them."""

    def __init__(self, runs: Sequence[Run], there: Mapping[str, Trace]):
        self.datasets: dict[str, str] = {}
        self.algorithms: dict[str, str] = {}
        self.domains: dict[str, tuple[str, ...]] = {}
        for run in runs:
            if begun := there.get(run.id):
                self.datasets[run.data_name] = begun.dataset
                self.algorithms[run.algorithm] = begun.algorithm
                self.domains[begun.dataset] = begun.domains
        held_out: dict[str, dict[str, None]] = {}
        for run in runs:
            held_out.setdefault(self.datasets.get(run.data_name, run.data_name), {}).update(dict.fromkeys(run.targets))
        for name, targets in held_out.items():
            self.domains.setdefault(name, tuple(targets))  # of a data set nobody has read yet no more is known

    def trace(self, run: Run, state: str) -> Trace:
        name = self.datasets.get(run.data_name, run.data_name)
        return Trace(
            dataset=name,
            algorithm=self.algorithms.get(run.algorithm, run.algorithm),
            domains=self.domains[name],
            targets=run.targets,
            trial=run.trial,
            draw=run.draw,
            protocol=run.protocol,
            state=state,
            plan=group(run),
        )


def _workers(store: RunStore) -> dict[str, LeaseInfo]:
    """Who works on what right now."""
    try:
        return {each.run: each for each in list_leases(store.path / "claims.db") if each.alive}
    except DspregError as error:
        warnings.warn(f"running runs are called stopped, for nobody can tell: {error}", Notice, stacklevel=2)
        return {}


def _state(store: RunStore, run: Run, begun: Trace | None, worker: LeaseInfo | None) -> str:
    done, steps = _progress(store, run, begun)
    if worker:
        return f"running at {_step(max(worker.step, done or 0), steps)} (held by a sweeper)"
    failure = _failure(store, run)
    if failure.get("cancelled") is True:
        return "cancelled"
    if begun and begun.state.startswith("failed"):
        failure.setdefault("reason", begun.state.partition(": ")[2])
    if failure:
        count = failure.get("attempts")
        tries = f" after {count:,} attempt{'s' * (count > 1)}" if isinstance(count, int) else ""
        return f"failed{tries}: {failure.get('reason', 'no reason is given')}"
    if begun is None:
        return "not started"
    return "stopped before its first record" if done is None else f"stopped at {_step(done, steps)}"


def _progress(store: RunStore, run: Run, begun: Trace | None) -> tuple[int | None, int | None]:
    """The last step that is recorded, and how many there are to be, as far as that is known."""
    if begun is None:
        return None, run.options.get("steps")
    records = list(store.folder(run).records)
    return records[-1]["step"] if records else None, begun.conditions["steps"]


def _step(done: int, steps: int | None) -> str:
    return f"step {done:,}" if steps is None else f"step {done:,} of {steps:,}"


def _failure(store: RunStore, run: Run) -> dict[str, Any]:
    """What failures/<plan id>.json says, and nothing where there is none."""
    path = store.path / "failures" / f"{run.id}.json"
    if not path.is_file():
        return {}
    try:
        found = read_json(path)
    except DspregError as error:
        found = {"reason": str(error)}
    return found if isinstance(found, dict) else {"reason": f"{path} is not laid out as a failure"}
