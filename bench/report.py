"""Seconds that `dspreg report` and `dspreg status` take for stores of 100 to 10,000 finished runs of 18 records.

    python bench/report.py

The runs are made up and laid out as training leaves them; their weights are a few bytes, which no table reads. Each
command is a process of its own, so that its start counts, and the files have just been written, so that no disk does.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from dspreg import cli
from dspreg.files import canonical
from dspreg.protocol.enumerate import leave_one_out
from dspreg.protocol.run import Run
from dspreg.runs import RunStore

SIZES = {100: (1, 5), 1_000: (10, 5), 10_000: (25, 20)}  # runs: methods, draws; times 4 domains and 5 trials
DOMAINS = ("art", "cartoon", "photo", "sketch")
RECORDS, EVERY = 18, 300
CARD = "# A model\n\n" + "Nobody trained it, and this page is about as long as one of a run that was trained.\n" * 14


def runs(methods: int, draws: int) -> list[Run]:
    specs = ["ERM", *(f"DSPReg(weight={n / 1e4})" for n in range(1, methods))]
    return list(leave_one_out({"PACS": DOMAINS}, specs, trials=5, draws=draws, only="training"))


def record(run: Run, step: int, r: random.Random) -> dict[str, Any]:
    """One line of records.jsonl, with all that DSPReg logs."""
    (target,) = run.targets
    accuracy = {name: {"in" if name == target else "out": r.random()} for name in DOMAINS}
    names = ("L", "R", "c_10", "c_50", "c_90", "ratio")
    return {
        "step": step, "epoch": step / 50, "accuracy": accuracy, "validation": r.random(),
        "log": {"loss": r.random()} | {f"DSPReg.{name}": r.random() for name in names},
        "weights": {"sha256": None, "source": "none", "tag": "none"},
        "seconds": {"step_seconds": r.random(), "evaluate_seconds": r.random(), "DSPReg.refresh_seconds": r.random()},
    }  # fmt: skip


def finished(store: RunStore, run: Run) -> None:
    r, folder = random.Random(run.id), store.folder(run)
    steps = RECORDS * EVERY
    drawn = {"lr": 10 ** r.uniform(-5, -3.5), "weight_decay": 10 ** r.uniform(-6, -2), "batch_size": 32, "dropout": 0.0}
    settings = run.settings() | drawn | {
        "targets": list(run.targets), "model": "resnet50.tv_in1k", "weights": "none", "image_size": 224, "steps": steps,
        "frozen_bn": True, "augment": True, "augment_validation": True, "split": "domainbed", "holdout": 0.2,
        "evaluate_every": EVERY, "evaluate": "needed", "evaluation_batch": 64, "same_draws": False,
    }  # fmt: skip
    folder.path.mkdir()
    folder.agree({
        "settings": settings,
        "data": {
            "domains": list(DOMAINS), "classes": [f"class {n}" for n in range(7)],
            "sizes": {d: {"in": 1600, "out": 400} for d in DOMAINS}, "fingerprints": dict.fromkeys(DOMAINS, "0" * 64),
        },
        "weights": {"tag": "none", "source": "none", "sha256": None},
        "environment": {
            "torch": "2.10.0", "threads": 1, "device": "cpu", "precision": "float32", "python": "3.11.7",
            "numpy": "2.4.6", "pillow": "13.0.0", "timm": "1.0.30", "torchvision": "0.29.2", "dspreg": "0.1.0",
            "machine": "x86_64", "instructions": "AVX512", "gpu": None,
        },
        "where": {"algorithm": run.algorithm, "plan": run.to_json(), "root": None, "workers": None, "cache": "none"},
    })  # fmt: skip
    records = [record(run, step, r) for step in range(0, steps, EVERY)]
    (folder / "records.jsonl").write_text("".join(canonical(each) + "\n" for each in records), encoding="utf-8")
    (folder / "README.md").write_text(CARD, encoding="utf-8")
    for name in ("selected.safetensors", "last.safetensors"):
        (folder / name).write_bytes(b"no weights")
    outcome = {name: records[-1][name] for name in ("step", "accuracy", "validation")}
    folder.finish({"environments": [], "last": outcome, "selected": outcome, "targets": list(run.targets)})


def made(path: Path, methods: int, draws: int) -> RunStore:
    """A finished store."""
    store = RunStore(path)
    store.make()
    planned = runs(methods, draws)
    store.plan(planned)
    store.claims().close()
    for run in planned:
        finished(store, run)
    return store


def seconds(*arguments: str) -> tuple[float, float]:
    """Of CPU and of the clock on the wall."""
    cpu, wall = spent(), time.perf_counter()
    subprocess.run([sys.executable, "-m", "dspreg.cli", *arguments], check=True, stdout=subprocess.DEVNULL)
    return spent() - cpu, time.perf_counter() - wall


def spent() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def commands() -> Iterator[str]:
    known = {each.__name__.rpartition(".")[2] for each in cli.COMMANDS}
    return (name for name in ("report", "status") if name in known)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="the median of so many is printed")
    parser.add_argument("--keep", metavar="DIR", help="leave the stores there, to look at them with a profiler")
    given = parser.parse_args()
    os.fsync = lambda _: None  # nothing of this has to survive a crash
    print(f"{'runs':>7}  {'command':>7}  {'CPU s':>6}  {'wall s':>6}", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        for size, shape in SIZES.items():
            path = Path(given.keep or scratch) / str(size)
            made(path, *shape)
            for command in commands():
                cpu, wall = zip(*(seconds(command, str(path)) for _ in range(given.rounds)), strict=True)
                print(f"{size:>7,}  {command:>7}  {median(cpu):>6.2f}  {median(wall):>6.2f}", flush=True)


if __name__ == "__main__":
    main()
