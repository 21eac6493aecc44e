"""Runs that nobody trained, with the numbers a test wants: as traces, as run folders, and as DomainBed's folders."""

import json
import random
from pathlib import Path

from dspreg.io.atomic_files import sha256_of_file, write_json
from dspreg.protocol.selection import RunResult
from dspreg.runs.folder import OURS, RunFolder

DOMAINS = ("ash", "birch", "cedar")
QUOTED = ("step", "validation", "accuracy")  # of a record, in a result
SETTINGS = {
    "protocol": "domainbed", "model": "small-cnn", "weights": "none", "image_size": 28, "steps": 301, "batch_size": 32,
    "lr": 1e-3, "weight_decay": 0.0, "dropout": 0.0, "frozen_bn": True, "augment": False, "augment_validation": False,
    "split": "domainbed", "holdout": 0.2, "evaluate_every": 100, "evaluate": "needed", "evaluation_batch": 64,
}  # fmt: skip


def record(step, accuracy, **outs):
    """accuracy: domain → (in, out); None is not measured."""
    splits = {
        d: {w: v for w, v in zip(("in", "out"), pair, strict=True) if v is not None} for d, pair in accuracy.items()
    }
    seconds = {"step_seconds": 0.1, "evaluate_seconds": 0.2}
    return {"step": step, "accuracy": splits, "validation": 0.0, "log": {"loss": 1.5}, "seconds": seconds}


def single(step, target, accuracy, validation, domains=DOMAINS, out=None):
    """A record of a run with one target: its accuracy, and one validation accuracy for every source."""
    return record(step, {d: (accuracy, out) if d == target else (None, validation) for d in domains})


def trace(*records, **changes):
    values = {"dataset": "trees", "algorithm": "ERM", "domains": DOMAINS, "targets": ("ash",)}
    values |= {"conditions": {"threads": 1}, "records": records}
    values |= changes
    if "id" not in changes:
        values["id"] = "/".join(
            str(values.get(k)) for k in ("dataset", "algorithm", "targets", "trial", "draw", "conditions")
        )
    return RunResult(**values)


def random_traces(seed, *, levels=4, nan=0.0, missing=0.0, domains=DOMAINS, pairs=True, trials=2, draws=3):
    """A sweep of one method; few levels make ties."""
    r = random.Random(seed)

    def accuracy():
        return float("nan") if r.random() < nan else None if r.random() < missing else r.randint(0, levels) / levels

    held = [(d,) for d in domains] + [(a, b) for a in domains for b in domains if a < b and pairs]

    def records():
        steps = [step for step in (0, 100, 200, 300) if r.random() >= missing]
        return [record(step, {d: (accuracy(), accuracy()) for d in domains}) for step in steps]

    return [
        trace(*records(), targets=targets, trial=trial, draw=draw, domains=domains)
        for targets in held for trial in range(trials) for draw in range(draws) if r.random() >= missing
    ]  # fmt: skip


def write_run(
    path, records, *, targets=("ash",), algorithm="ERM", asked=None, domains=DOMAINS, dataset="trees", trial=0, draw=0,
    finish=True, failure=None, threads=1, torch="2.10.0", environments=(), plan=None, refreshes=0, images=80,
    profiles=None, **settings,
):  # fmt: skip
    """A run folder, as training leaves it, without models."""
    folder = RunFolder(path)
    Path(path).mkdir(parents=True)
    made = SETTINGS | settings | {"dataset": dataset, "algorithm": algorithm, "targets": list(targets)}
    folder.agree(
        {
            "settings": made | {"trial": trial, "draw": draw},
            "data": {
                "domains": list(domains), "classes": ["x", "y"],
                "sizes": {d: {"in": images, "out": images // 4} for d in domains},
                "fingerprints": dict.fromkeys(domains, "0" * 64),
            },
            "weights": {"tag": "none", "sha256": None},
            "environment": {"torch": torch, "threads": threads, "device": "cpu", "precision": "float32"},
            "where": {"algorithm": asked or algorithm} | ({"plan": plan} if plan else {}),
        }
    )  # fmt: skip
    for each in records:
        folder.records.append(each)
    for time, content in (profiles or {}).items():
        folder.write(f"profiles/{time}.safetensors", content)
    if failure:
        write_json(folder / "failure.json", {"step": 3, "reason": failure})
    elif finish:
        folder.finish(outcome(folder) | {"environments": list(environments), "refreshes": refreshes})
    return path


def seal(folder, outcome):
    """Finish a run with the files that lie there, whoever wrote them."""
    folder = RunFolder(folder.path)
    for pattern in OURS:
        for path in folder.path.glob(pattern):
            folder.written[path.relative_to(folder.path).as_posix()] = sha256_of_file(path)
    folder.finish(outcome)


def outcome(folder):
    """What training writes at the end, of a run that was begun and has its records."""
    described, records = folder.description(), list(folder.records)
    best = max(records, key=lambda each: each["validation"])
    return {
        "format": "dspreg.result/1", "run": described["id"], "targets": described["settings"]["targets"],
        "selected": {name: best[name] for name in QUOTED}, "last": {name: records[-1][name] for name in QUOTED},
        "environments": [], "refreshes": 0,
    }  # fmt: skip


def domainbed_records(runs):
    """Traces as lines of results.jsonl, in their order."""
    for run in runs:
        for each in run.records:
            line = {"step": each["step"]}
            for d, splits in each["accuracy"].items():
                line |= {f"env{run.domains.index(d)}_{w}_acc": v for w, v in splits.items()}
            args = {
                "dataset": run.dataset,
                "algorithm": run.algorithm,
                "trial_seed": run.trial,
                "hparams_seed": run.draw,
            }
            yield line | {"args": args | {"test_envs": [run.domains.index(t) for t in run.targets]}}


def write_jobs(root, runs):
    """A sweep folder of DomainBed."""
    for n, run in enumerate(runs):
        folder = Path(root) / f"{n:032x}"
        folder.mkdir(parents=True)
        text = "".join(json.dumps(line, sort_keys=True) + "\n" for line in domainbed_records([run]))
        (folder / "results.jsonl").write_text(text, encoding="utf-8")
        (folder / "done").write_text("done", encoding="utf-8")
    return root
