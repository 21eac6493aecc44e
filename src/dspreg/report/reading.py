"""Runs found in a folder, or planned in a store, as traces. A damaged one is named and left out."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from os.path import isfile
from pathlib import Path
from typing import Any

from dspreg.errors import ConfigError, DspregError, IntegrityError
from dspreg.io.atomic_files import canonical_json, read_json, sha256
from dspreg.protocol.selection import Trace
from dspreg.report.planned import group, without_result
from dspreg.runs.folder import RunFolder
from dspreg.runs.run import Run
from dspreg.runs.store import RunStore

IDENTITY = ("dataset", "algorithm", "targets", "trial", "draw", "protocol")
OPTIONS = ("lr", "weight_decay", "batch_size", "dropout")  # what search draws, whatever the algorithm
KEPT = ("step", "accuracy", "validation")  # of a record: ten thousand runs are to fit into memory
ELSEWHERE = {*IDENTITY, *OPTIONS, "evaluate", "weights"}  # settings that are no conditions, or only in another form
ENVIRONMENT = {
    "torch": None,
    "threads": None,
    "device": None,
    "precision": None,
    "layout": "channels-first",
}  # if not said


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


def read(path: str | Path) -> tuple[list[Trace], list[str]]:
    """All runs in a folder, or all that a store planned, and in words what is damaged or else left out."""
    store = store_at(path)
    if store:
        return _planned(store)
    found = [_tried(folder) for folder in run_folders(path)]
    return [each for each in found if isinstance(each, Trace)], [each for each in found if isinstance(each, str)]


def store_at(path: str | Path) -> RunStore | None:
    store = RunStore(path)
    return store if (store.path / "store.json").is_file() and (store.path / "plans").is_dir() else None


def _planned(store: RunStore) -> tuple[list[Trace], list[str]]:
    runs = store.planned()
    if not runs:
        raise ConfigError(f"nothing is planned in {store.path}; for the runs that are there give {store.path / 'runs'}")
    there, damaged = {}, {}
    for run in runs:
        folder = store.folder(run)
        if isfile(f"{folder.path}/run.json"):
            found = _tried(folder, run)
            if isinstance(found, Trace):
                there[run.id] = found
            else:
                damaged[run.id] = found
    strange = [
        f"{folder.path} holds a run that no plan of the store names"
        for folder in _folders_in(store.path / "runs", {run.id for run in runs})
    ]
    finished = [each for each in there.values() if each.finished]
    return [*finished, *without_result(store, runs, there, damaged)], [*damaged.values(), *strange]


def _tried(folder: RunFolder, run: Run | None = None) -> Trace | str:
    """A run, or in words what is wrong with it."""
    try:
        return trace(folder, run)
    except DspregError as error:
        return str(error)
    except (KeyError, TypeError, ValueError, AttributeError, OSError) as error:
        return f"{folder.path} is not laid out as a run: {type(error).__name__}: {error}"


def trace(folder: RunFolder, run: Run | None = None) -> Trace:
    """One run; its records only where it is finished and verified.

    Args:
        folder: Where it lies.
        run: What the folder has to hold, in a store.
    """
    described, result, records = folder.contents()
    if run and not _is(described.get("where", {}).get("plan"), run):
        raise IntegrityError(f"{folder.path} holds another run than its name says")
    settings, data = described["settings"], described["data"]
    return Trace(
        dataset=settings["dataset"],
        algorithm=described.get("where", {}).get("algorithm", settings["algorithm"]),
        domains=tuple(data["domains"]),
        targets=tuple(settings["targets"]),
        trial=settings["trial"],
        draw=settings["draw"],
        protocol=settings["protocol"],
        options={name: settings[name] for name in OPTIONS},
        conditions=dict(_conditions(described, result)),
        records=list(map(_record, records)),
        state="finished" if result else _state(folder, settings["steps"]),
        id=described["id"],
        place=str(folder.path),
        plan=group(run) if run else "",
        made=_made(described),
    )


def _is(planned: Any, run: Run) -> bool:
    return planned is not None and (planned == run.to_json() or Run.from_json(planned) == run)


def _record(each: dict[str, Any]) -> dict[str, Any]:
    loss = each.get("log", {}).get("loss")
    return {name: each[name] for name in KEPT} | {"loss": None if loss is None else float(loss)}


def _made(described: dict[str, Any]) -> dict[str, Any]:
    """What it was made from and with, in full."""
    tag, sha = (described["weights"].get(name) for name in ("tag", "sha256"))
    return {
        "dspreg": described["environment"].get("dspreg"),
        "weights": f"{tag}, SHA-256 {sha}" if sha else str(tag),
        "fingerprints": dict(described["data"]["fingerprints"]),
    }


def _conditions(described: dict[str, Any], result: dict[str, Any] | None) -> Iterator[tuple[str, Any]]:
    """What else decides the result; runs that differ in it are not averaged."""
    for name, value in described["settings"].items():
        if name not in ELSEWHERE:  # evaluating more changes no number
            yield name, value
    weights = described["weights"]
    yield "weights", (weights.get("sha256") or "none")[:8]
    yield "data", sha256(canonical_json(described["data"]["fingerprints"]).encode())[:8]
    lived = [described["environment"], *(result or {}).get("environments", [])]
    for name, unsaid in ENVIRONMENT.items():
        values = dict.fromkeys(str(each.get(name, unsaid)) for each in lived)
        yield name, " then ".join(values)  # a run gone on with in another environment is of neither


def _state(folder: RunFolder, steps: int) -> str:
    if (folder / "failure.json").exists():
        return f"failed: {read_json(folder / 'failure.json')['reason']}"
    done = [record["step"] for record in folder.records]
    return f"unfinished: step {done[-1]:,} of {steps:,}" if done else "unfinished: nothing recorded yet"
