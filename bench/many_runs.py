"""Stores of up to a million runs that nobody trained, written in minutes: laid out as training leaves them, every
SHA-256 right, and without waiting for the disk."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from dspreg import Run, leave_one_out
from dspreg.io.atomic_files import canonical_json, sha256
from dspreg.runs.folder import FORMAT, essence
from dspreg.runs.store import RunStore

DATA = {"PACS": ("art_painting", "cartoon", "photo", "sketch"), "VLCS": ("Caltech101", "LabelMe", "SUN09", "VOC2007")}
ALGORITHMS = ("ERM", "DSPReg", "CORAL", "CORAL+DSPReg(weight=0.01)", "SAM")
RECORDS, EVERY = 18, 300
FILES = {"README.md": b"Nobody trained it.\n" * 80, "last.safetensors": b"none", "selected.safetensors": b"none"}
VARIANTS = 16  # of the records of a target: what a report does with them does not depend on their values
LINKS = 60_000  # names that one file may have; file systems allow 65,000
OWN = {"trial": 987_654_321, "draw": 987_654_322, "lr": 0.123456789, "weight_decay": 0.987654321}  # in a template


def runs(count: int) -> list[Run]:
    """So many of a sweep: single targets, five trials, as many draws as it takes."""
    draws = -(-count // (5 * sum(map(len, DATA.values())) * len(ALGORITHMS)))
    return list(leave_one_out(DATA, ALGORITHMS, trials=5, draws=draws, only="training"))[:count]


def make(
    path: Path, planned: Sequence[Run], state: Callable[[int], str] = lambda _: "finished", *, linked: bool = False
) -> RunStore:
    """A store of these runs.

    Args:
        path: A new folder.
        planned: All runs of its plan.
        state: Of the n-th: finished, started, failed, cancelled or new.
        linked: Runs share files that do not name them, by hard links: a million runs take 12 GB in place of 36, which
            are mostly blocks that are not full.
    """
    store = RunStore(path)
    store.make()
    store.plan(planned)
    pool = Pool(path.with_name(f"{path.name}.linked") if linked else None)
    for n, run in enumerate(planned):
        kind = state(n)
        if kind in ("finished", "started"):
            _folder(f"{store.path}/runs/{run.id}", run, pool, finished=kind == "finished")
        elif kind == "failed":
            failure = {"reason": "DataError: no images", "attempts": 3, "reached": -1, "run": run.to_json()}
            _write(f"{store.path}/failures/{run.id}.json", _text(failure))
        elif kind == "cancelled":
            marker = {"reason": "cancelled", "cancelled": True, "run": run.to_json()}
            _write(f"{store.path}/failures/{run.id}.json", _text(marker))
    pool.close()
    return store


class Pool:
    """Writes files, or links them to one of the same contents in a folder that is removed in the end."""

    def __init__(self, folder: Path | None):
        self.folder, self.names = folder, dict[str, int]()
        if folder:
            folder.mkdir()

    def put(self, path: str, sha: str, data: bytes) -> None:
        if self.folder is None:
            _write(path, data)
            return
        number = self.names[sha] = self.names.get(sha, -1) + 1
        first = f"{self.folder}/{sha}-{number // LINKS}"
        if number % LINKS == 0:
            _write(first, data)
        os.link(first, path)

    def close(self) -> None:
        if self.folder:
            shutil.rmtree(self.folder)


def _folder(path: str, run: Run, pool: Pool, *, finished: bool) -> None:
    os.mkdir(path)
    described, run_id = _description(run)
    _write(f"{path}/run.json", described)
    records, outcome = _records(run.dataset, run.targets, int(run.id, 16) % VARIANTS)
    shared = {**FILES, "records.jsonl": records}
    digests = {name: _digest(data) for name, data in shared.items()}
    for name, data in shared.items():
        pool.put(f"{path}/{name}", digests[name], data)
    if finished:
        result = {"format": "dspreg.result/1", "run": run_id, "targets": list(run.targets)}
        result |= {"environments": [], "last": outcome, "refreshes": 0, "selected": outcome}
        result["files"] = {**digests, "run.json": sha256(described)}
        text = canonical_json(result)
        _write(f"{path}/result.json", f'{text[:-1]},"sha256":"{sha256(text.encode())}"}}\n'.encode())


_digest = cache(sha256)


def _description(run: Run) -> tuple[bytes, str]:
    """run.json and its id, from texts that runs of a method and target share: making each anew takes ten minutes."""
    r = random.Random(run.id)
    own = {
        "trial": run.trial,
        "draw": run.draw,
        "lr": 10 ** r.uniform(-5, -3.5),
        "weight_decay": 10 ** r.uniform(-6, -2),
    }
    text, hashed = _templates(run.dataset, run.targets, run.algorithm)
    for name, value in own.items():
        text, hashed = (each.replace(str(OWN[name]), repr(value)) for each in (text, hashed))
    run_id = sha256(hashed.encode())
    return text.replace("@id", run_id).encode(), run_id


@cache
def _templates(dataset: str, targets: tuple[str, ...], algorithm: str) -> tuple[str, str]:
    """Of run.json, and of what its id is a hash of."""
    run = Run(dataset=dataset, targets=targets, algorithm=algorithm, trial=OWN["trial"], draw=OWN["draw"])
    domains = DATA[dataset]
    made = {
        "format": FORMAT,
        "settings": {
            **run.settings(), **OWN, "batch_size": 32, "dropout": 0.0,
            "targets": list(targets), "model": "resnet50.tv_in1k", "weights": "none",
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
        "id": "@id",
    }  # fmt: skip
    return _text(made).decode(), canonical_json(essence(made))


@cache
def _records(dataset: str, targets: tuple[str, ...], variant: int) -> tuple[bytes, dict[str, Any]]:
    """records.jsonl, and what result.json repeats of its last line."""
    r, domains = random.Random(f"{dataset} {targets} {variant}"), DATA[dataset]
    made = [_record(step, domains, targets, r) for step in range(0, RECORDS * EVERY, EVERY)]
    lines = "".join(canonical_json(each) + "\n" for each in made)
    return lines.encode(), {name: made[-1][name] for name in ("step", "accuracy", "validation")}


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


def _write(path: str, data: bytes) -> None:
    with open(path, "xb", buffering=0) as file:
        file.write(data)
