"""The runs of a folder, a store or an archive, and what came of them. A damaged one is named and left out."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from os.path import isfile
from pathlib import Path
from typing import Any, NamedTuple

from dspreg.config.train_config import complete_record
from dspreg.errors import ConfigError, DspregError, IntegrityError, Notice
from dspreg.io.atomic_files import canonical_json, sha256
from dspreg.kinds import CLASSES
from dspreg.protocol.selection import RunResult
from dspreg.reporting.compact import Compactor
from dspreg.runs.archive import is_archive, open_store
from dspreg.runs.folder import RunFolder
from dspreg.runs.leases import LeaseInfo, list_leases
from dspreg.runs.run import Run
from dspreg.runs.schema import check_records, check_run
from dspreg.runs.status import FAILURE, RunState, derive_state, read_failure
from dspreg.runs.store import RunStore
from dspreg.specs import FILE_DEFAULTS, parse_stack

IDENTITY = ("dataset", "algorithm", "targets", "trial", "draw", "protocol")
PLACE = ("trial", "draw", "protocol")  # which run of a method it is, beside its targets
OPTIONS = ("lr", "weight_decay", "batch_size", "dropout")  # what search draws, whatever the algorithm
ELSEWHERE = {*IDENTITY, *OPTIONS, "evaluate", "weights"}  # settings that are no conditions, or only in another form
ENVIRONMENT = {
    "torch": None,
    "threads": None,
    "device": None,
    "precision": None,
    "layout": "channels-first",
    "batch_norm": "not folded",
    "compile": False,
}  # of runs from before it was recorded


def load_runs(path: str | Path) -> list[RunResult]:
    """All runs of a folder, of a store or of the archive of one, as values; no torch is loaded.

        runs = dspreg.load_runs("evidence/digits/store.tar.xz")
        {run.targets[0]: run.records[-1]["accuracy"] for run in runs if run.finished and run.algorithm == "ERM"}

    All files but models and profiles are verified. A damaged run is left out with a notice.

    Args:
        path: A folder of run folders, the store of a sweep (then planned runs are among them, whatever their status),
            or its `*.tar.xz`.

    Raises:
        ConfigError: There are no runs.
        IntegrityError: An archive is damaged.
    """
    with open_store(path) as folder:
        runs, damaged = read_runs(folder, whole=True)
    if is_archive(path):  # whose folder is gone by now
        runs = [replace(run, folder=run.folder.replace(str(folder), str(path))) for run in runs]
        damaged = [each.replace(str(folder), str(path)) for each in damaged]
    for each in damaged:
        warnings.warn(f"left out: {each}", Notice, stacklevel=2)
    return runs


def read_runs(path: str | Path, *, whole: bool = False) -> tuple[list[RunResult], list[str]]:
    """All runs in a folder, or all that a store planned, and in words what is damaged or else left out.

    Args:
        path: A folder.
        whole: Keep records as they were written, and settings, and not only what a report needs.
    """
    store = find_store(path)
    if store is None:
        keep = _keeper(whole)
        found = [_try_to_load(folder, keep) for folder in run_folders(path)]
        return [each for each in found if isinstance(each, RunResult)], [
            each for each in found if isinstance(each, str)
        ]
    runs = store.planned_runs()
    if not runs:
        raise ConfigError(f"nothing is planned in {store.path}; for the runs that are there give {store.path / 'runs'}")
    results, damaged = load_planned_runs(store, runs, whole=whole)
    unplanned = _folders_in(store.path / "runs", {run.id for run in runs})
    strange = [f"{folder.path} holds a run that no plan of the store names" for folder in unplanned]
    return list(results.values()), [*damaged.values(), *strange]


def load_planned_runs(
    store: RunStore, runs: Sequence[Run], *, whole: bool = False
) -> tuple[dict[str, RunResult], dict[str, str]]:
    """Each of these runs by its plan id, finished or not; and by plan id, in words, what is damaged.

    Args:
        store: Where they lie, or would.
        runs: Whether the store planned them or not.
        whole: As in `read_runs`.
    """
    leases, keep = _Leases(store), _keeper(whole)
    begun: dict[str, RunResult] = {}
    damaged: dict[str, str] = {}
    for run in runs:
        folder = store.folder(run)
        if isfile(f"{folder.path}/run.json"):
            found = _try_to_load(folder, keep, Planned(run, store, leases))
            if isinstance(found, RunResult):
                begun[run.id] = found
            else:
                damaged[run.id] = found
    names = _Names(runs, begun)
    results = {}
    for run in runs:
        if run.id in begun:
            results[run.id] = begun[run.id]
            continue
        try:
            failure = None if run.id in damaged else store.failure(run)
        except DspregError as error:
            failure, damaged[run.id] = None, str(error)
        lease, damage = leases.get(run), damaged.get(run.id, "")
        state = derive_state(failure=failure, lease=lease, damage=damage, steps=run.options.get("steps"))
        results[run.id] = names.result(run, state)
    return results, damaged


def find_store(path: str | Path) -> RunStore | None:
    """The store at `path`, if it is one that has plans.

    Raises:
        IntegrityError: It is one that this version does not read.
    """
    store = RunStore(path)
    if not os.path.lexists(store.path / "store.json"):
        return None
    store.check()
    return store if (store.path / "plans").is_dir() else None


def run_folders(path: str | Path) -> list[RunFolder]:
    """The run at `path`, or those in it, or those in its `runs`."""
    root = Path(path)
    if not root.is_dir():
        raise ConfigError(f"{root} is no folder; give the one that holds the folders of runs")
    itself = [RunFolder(root)] if isfile(root / "run.json") else []
    found = [*itself, *_folders_in(root), *_folders_in(root / "runs")]
    if not found:
        raise ConfigError(f"{root} holds no runs: there is no */run.json and no runs/*/run.json in it")
    return found


def _folders_in(path: Path, known: Collection[str] = ()) -> list[RunFolder]:
    """All runs in a folder but those of known names."""
    names = sorted(set(os.listdir(path)) - set(known)) if path.is_dir() else []
    return [RunFolder(path / name) for name in names if isfile(f"{path}/{name}/run.json")]


Keep = Callable[[RunResult], RunResult]


def _keeper(whole: bool) -> Keep:
    """What is kept of each run."""
    return (lambda run: run) if whole else Compactor().compact


def _try_to_load(folder: RunFolder, keep: Keep, planned: Planned | None = None) -> RunResult | str:
    """A run, or in words what is wrong with it."""
    try:
        return keep(load_run(folder, planned))
    except DspregError as error:
        return str(error)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, OSError) as error:
        return f"{folder.path} is not laid out as a run: {type(error).__name__}: {error}"


class Planned(NamedTuple):
    """A run of a store."""

    run: Run
    store: RunStore
    leases: _Leases


def load_run(folder: RunFolder, planned: Planned | None = None) -> RunResult:
    """One run; its records only where it is finished and verified.

    Args:
        folder: Where it lies.
        planned: What the folder has to hold, in a store.

    Raises:
        IntegrityError: A file is damaged, or says what training never writes.
    """
    contents = folder.contents()
    check_run(folder.path, contents)
    described, result, records = contents
    settings, data = described["settings"], described["data"]
    if planned is not None:
        planned.store.require_plan(folder, described, planned.run)
        _require_settings(folder, settings, planned.run)
    state = derive_state(finished=True) if result else _unfinished(folder, described, planned)
    return RunResult(
        dataset=settings["dataset"],
        algorithm=described.get("where", {}).get("algorithm", settings["algorithm"]),
        domains=tuple(data["domains"]),
        targets=tuple(settings["targets"]),
        trial=settings["trial"],
        draw=settings["draw"],
        protocol=settings["protocol"],
        options={name: settings[name] for name in OPTIONS},
        conditions=dict(_conditions(described, result)),
        settings=settings,
        records=records,
        state=state,
        id=described["id"],
        folder=str(folder.path),
        plan=_asked_for(planned.run) if planned else "",
        made=_made(described, result),
        kind=data.get("kind", CLASSES),
    )


def _require_settings(folder: RunFolder, settings: Mapping[str, Any], run: Run) -> None:
    """Whether what was trained is what was planned, as far as it says which cell of a table the run is."""
    same = [settings[name] == getattr(run, name) for name in PLACE]
    if not all(same) or {*settings["targets"]} != {*run.targets}:
        name = next((name for name, fits in zip(PLACE, same, strict=True) if not fits), "targets")
        raise IntegrityError(
            f"{folder.path}/run.json: settings.{name} is {settings[name]!r}; the store planned {getattr(run, name)!r}"
        )


def _unfinished(folder: RunFolder, described: Mapping[str, Any], planned: Planned | None) -> RunState:
    """The state of a run that was begun and has no result."""
    done = list(folder.records)
    check_records(f"{folder.path}/records.jsonl", done, described)
    return derive_state(
        begun=True,
        failure=planned.store.failure(planned.run) if planned else read_failure(folder / FAILURE),
        lease=planned.leases.get(planned.run) if planned else None,
        step=done[-1]["step"] if done else None,
        steps=described["settings"]["steps"],
    )


class _Leases:
    """Of a store, read when they are first asked for: in the tables of a finished store there are none."""

    def __init__(self, store: RunStore):
        self.path = store.path / "claims.db"
        self.found: dict[str, LeaseInfo] | None = None

    def get(self, run: Run) -> LeaseInfo | None:
        if self.found is None:
            try:
                self.found = {each.run: each for each in list_leases(self.path)}
            except DspregError as error:
                warnings.warn(f"running runs are reported as stopped, since leases can't be read: {error}", Notice,
                              stacklevel=2)  # fmt: skip
                self.found = {}
        return self.found.get(run.id)


class _Names:
    """Data set, algorithm and domains as runs of the same plan that were begun call them."""

    def __init__(self, runs: Iterable[Run], begun: Mapping[str, RunResult]):
        self.datasets: dict[str, str] = {}
        self.algorithms: dict[str, str] = {}
        self.domains: dict[str, tuple[str, ...]] = {}
        for run in runs:
            if there := begun.get(run.id):
                self.datasets[run.data_name] = there.dataset
                self.algorithms[run.algorithm] = there.algorithm
                self.domains[there.dataset] = there.domains
        held_out: dict[str, dict[str, None]] = {}
        for run in runs:
            held_out.setdefault(self.datasets.get(run.data_name, run.data_name), {}).update(dict.fromkeys(run.targets))
        for name, targets in held_out.items():
            self.domains.setdefault(name, tuple(targets))  # all that is known of a data set before it is read

    def result(self, run: Run, state: RunState) -> RunResult:
        name = self.datasets.get(run.data_name, run.data_name)
        return RunResult(
            dataset=name,
            algorithm=self.algorithms.get(run.algorithm, run.algorithm),
            domains=self.domains[name],
            targets=run.targets,
            trial=run.trial,
            draw=run.draw,
            protocol=run.protocol,
            state=state,
            plan=_asked_for(run),
        )


def _asked_for(run: Run) -> str:
    """What was asked for beside data set, targets, algorithm, trial and draw: the same for all runs of a row."""
    return canonical_json({"protocol": run.protocol, **run.identity()["options"]})


def _made(described: dict[str, Any], result: dict[str, Any] | None) -> dict[str, Any]:
    """What it was made from and with, in full, and how often c was measured."""
    tag, sha = (described["weights"].get(name) for name in ("tag", "sha256"))
    return {
        "dspreg": described["environment"].get("dspreg"),
        "weights": f"{tag}, SHA-256 {sha}" if sha else str(tag),
        "fingerprints": dict(described["data"]["fingerprints"]),
        "images": {name: sizes["in"] for name, sizes in described["data"].get("sizes", {}).items()},
        "refreshes": (result or {}).get("refreshes"),
    }


def _defaults_of_then(described: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Options that the method's label leaves out and whose default has changed: rows of both are told apart."""
    asked, trained = described.get("where", {}).get("algorithm", ""), described["settings"]["algorithm"]
    if not any(name in asked for name in FILE_DEFAULTS):
        return
    try:
        both = zip(parse_stack(asked), parse_stack(trained), strict=True)
        for term, made in both:
            for option, then in FILE_DEFAULTS.get(term.name, {}).items():
                if option not in term.options:
                    yield option, made.options.get(option, then)
    except (ConfigError, ValueError):  # a label that is no spec, or not of this stack
        return


def _conditions(described: dict[str, Any], result: dict[str, Any] | None) -> Iterator[tuple[str, Any]]:
    """What else decides the result; runs that differ in it are not averaged."""
    for name, value in complete_record(described["settings"]).items():
        if name not in ELSEWHERE:  # evaluating more changes no number
            yield name, value
    weights = described["weights"]
    yield "weights", (weights.get("sha256") or "none")[:8]
    yield "data", sha256(canonical_json(described["data"]["fingerprints"]).encode())[:8]
    lived = [described["environment"], *(result or {}).get("environments", [])]
    yield from _defaults_of_then(described)
    for name, unsaid in ENVIRONMENT.items():
        values = dict.fromkeys(str(each.get(name, unsaid)) for each in lived)
        yield name, " then ".join(values)  # a run gone on with in another environment is of neither
