"""Stores of thousands of runs that nobody trained, written in seconds: laid out as training leaves them, every SHA-256
right, and without waiting for the disk."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dspreg import Run, leave_one_out
from dspreg.io.atomic_files import canonical_json, sha256
from dspreg.runs.folder import FORMAT, identity
from dspreg.runs.store import RunStore

DATA = {"PACS": ("art_painting", "cartoon", "photo", "sketch"), "VLCS": ("Caltech101", "LabelMe", "SUN09", "VOC2007")}
ALGORITHMS = ("ERM", "DSPReg", "CORAL", "CORAL+DSPReg(weight=0.01)", "SAM")
RECORDS, EVERY = 18, 300
FILES = {"README.md": b"Nobody trained it.\n" * 80, "last.safetensors": b"none", "selected.safetensors": b"none"}


def runs(count: int) -> list[Run]:
    """So many of a sweep: single targets, five trials, as many draws as it takes."""
    draws = -(-count // (5 * sum(map(len, DATA.values())) * len(ALGORITHMS)))
    return list(leave_one_out(DATA, ALGORITHMS, trials=5, draws=draws, only="training"))[:count]


def make(path: Path, planned: Sequence[Run], state: Callable[[int], str] = lambda _: "finished") -> RunStore:
    """A store of these runs; `state` of the n-th is finished, started, failed, cancelled or new."""
    store = RunStore(path)
    store.make()
    store.plan(planned)
    for n, run in enumerate(planned):
        kind = state(n)
        if kind in ("finished", "started"):
            _folder(store.folder(run).path, run, finished=kind == "finished")
        elif kind == "failed":
            failure = {"reason": "DataError: no images", "attempts": 3, "reached": -1, "run": run.to_json()}
            _write(store.path / "failures" / f"{run.id}.json", failure)
        elif kind == "cancelled":
            marker = {"reason": "cancelled", "cancelled": True, "run": run.to_json()}
            _write(store.path / "failures" / f"{run.id}.json", marker)
    return store


def _folder(path: Path, run: Run, finished: bool) -> None:
    r, domains = random.Random(run.id), DATA[run.dataset]
    path.mkdir()
    description = _description(run, r)
    files = {"run.json": _text(description), **FILES}
    records = [_record(step, domains, run.targets, r) for step in range(0, RECORDS * EVERY, EVERY)]
    files["records.jsonl"] = "".join(canonical_json(each) + "\n" for each in records).encode()
    for name, data in files.items():
        (path / name).write_bytes(data)
    if finished:
        outcome = {name: records[-1][name] for name in ("step", "accuracy", "validation")}
        result = {"format": "dspreg.result/1", "run": description["id"], "targets": list(run.targets)}
        result |= {"environments": [], "last": outcome, "refreshes": 0, "selected": outcome}
        result["files"] = {name: sha256(data) for name, data in sorted(files.items())}
        _write(path / "result.json", {**result, "sha256": sha256(canonical_json(result).encode())})


def _description(run: Run, r: random.Random) -> dict[str, Any]:
    domains = DATA[run.dataset]
    drawn = {"lr": 10 ** r.uniform(-5, -3.5), "weight_decay": 10 ** r.uniform(-6, -2), "batch_size": 32, "dropout": 0.0}
    made = {
        "format": FORMAT,
        "settings": {
            **run.settings(), **drawn, "targets": list(run.targets), "model": "resnet50.tv_in1k", "weights": "none",
            "image_size": 224, "steps": RECORDS * EVERY, "frozen_bn": True, "augment": True, "augment_validation": True,
            "split": "domainbed", "holdout": 0.2, "evaluate_every": EVERY, "evaluate": "needed", "same_draws": False,
            "evaluation_batch": 64,
        },
        "data": {
            "domains": list(domains), "classes": [f"class {n}" for n in range(7)],
            "sizes": {d: {"in": 1600, "out": 400} for d in domains}, "fingerprints": dict.fromkeys(domains, "0" * 64),
        },
        "weights": {"tag": "none", "source": "none", "sha256": None},
        "environment": {
            "torch": "2.10.0", "threads": 1, "device": "cpu", "precision": "float32", "python": "3.11.7",
            "numpy": "2.4.6", "pillow": "13.0.0", "timm": "1.0.30", "torchvision": "0.29.2", "dspreg": "0.1.0",
            "machine": "x86_64", "instructions": "AVX512", "gpu": None,
        },
        "where": {"algorithm": run.algorithm, "plan": run.to_json()},
    }  # fmt: skip
    return {**made, "id": identity(made)}


def _record(step: int, domains: Sequence[str], targets: Sequence[str], r: random.Random) -> dict[str, Any]:
    return {
        "step": step, "epoch": step / 50, "validation": r.random(),
        "accuracy": {name: {"in" if name in targets else "out": r.random()} for name in domains},
        "log": {"loss": r.random()} | {f"DSPReg.{n}": r.random() for n in ("L", "R", "c_10", "c_50", "c_90", "ratio")},
        "weights": {"tag": "none", "source": "none", "sha256": None},
        "seconds": {"step_seconds": r.random(), "evaluate_seconds": r.random(), "DSPReg.refresh_seconds": r.random()},
    }  # fmt: skip


def _text(value: Any) -> bytes:
    return (json.dumps(value, allow_nan=False, ensure_ascii=False, indent=1, sort_keys=True) + "\n").encode()


def _write(path: Path, value: Any) -> None:
    path.write_bytes(_text(value))
