"""Runs found in a folder, as traces. A damaged one is named and left out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dspreg.errors import ConfigError, DspregError
from dspreg.files import canonical, digest, read_json
from dspreg.protocol.selection import Trace
from dspreg.store import RunFolder

IDENTITY = ("dataset", "algorithm", "targets", "trial", "draw", "protocol")
OPTIONS = ("lr", "weight_decay", "batch_size", "dropout")  # what search draws, whatever the algorithm
KEPT = ("step", "accuracy", "validation")  # of a record: ten thousand runs are to fit into memory
ENVIRONMENT = ("torch", "threads", "device", "precision")


def run_folders(path: str | Path) -> list[RunFolder]:
    """The run at `path`, or those in it, or those in its `runs`."""
    root = Path(path)
    if not root.is_dir():
        raise ConfigError(f"{root} is no folder; give the one that holds the folders of runs")
    places = [root, *(p for part in (root, root / "runs") if part.is_dir() for p in sorted(part.iterdir()))]
    found = [RunFolder(place) for place in places if (place / "run.json").is_file()]
    if not found:
        raise ConfigError(f"{root} holds no runs: there is no */run.json and no runs/*/run.json in it")
    return found


def read(path: str | Path) -> tuple[list[Trace], list[str]]:
    """All runs in a folder, and in words which are damaged."""
    traces, damaged = [], []
    for folder in run_folders(path):
        try:
            traces.append(trace(folder))
        except DspregError as error:
            damaged.append(str(error))
        except (KeyError, TypeError, ValueError, AttributeError, OSError) as error:
            damaged.append(f"{folder.path} is not laid out as a run: {type(error).__name__}: {error}")
    return traces, damaged


def trace(folder: RunFolder) -> Trace:
    """One run; its records only where it is finished and verified."""
    described = folder.description()
    settings, data = described["settings"], described["data"]
    result = folder.result(weights=False)
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
        records=list(map(_record, folder.records)) if result else (),
        state="finished" if result else _state(folder, settings["steps"]),
        id=described["id"],
        place=str(folder.path),
        made=_made(described),
    )


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
        if name not in (*IDENTITY, *OPTIONS, "evaluate", "weights"):  # evaluating more changes no number
            yield name, value
    weights = described["weights"]
    yield "weights", (weights.get("sha256") or "none")[:8]
    yield "data", digest(canonical(described["data"]["fingerprints"]).encode())[:8]
    lived = [described["environment"], *(result or {}).get("environments", [])]
    for name in ENVIRONMENT:
        values = dict.fromkeys(str(each.get(name)) for each in lived)
        yield name, " then ".join(values)  # a run gone on with in another environment is of neither


def _state(folder: RunFolder, steps: int) -> str:
    if (folder / "failure.json").exists():
        return f"failed: {read_json(folder / 'failure.json')['reason']}"
    done = [record["step"] for record in folder.records]
    return f"unfinished: step {done[-1]:,} of {steps:,}" if done else "unfinished: nothing recorded yet"
