"""A finished sweep of DomainBed's as a store that `dspreg report` reads, with our selection rules and contrasts.

Accuracies, steps and hyper-parameters are those that DomainBed wrote. What it does not write is not made up: an
imported run has no fingerprints of its images, no SHA-256 of its weights and no model, so it can't be resumed or
evaluated.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, cast

from dspreg.config.defaults import DatasetFacts, default_options
from dspreg.data.benchmarks import Benchmark
from dspreg.data.registry import dataset_class
from dspreg.domainbed.collect_results import read_job
from dspreg.domainbed.records import ACCURACY
from dspreg.domainbed.selection import Record
from dspreg.errors import ConfigError, IntegrityError
from dspreg.runs.folder import RunFolder
from dspreg.runs.run import FURTHER, Run
from dspreg.runs.schema import FORMAT, check_run
from dspreg.runs.store import RunStore

UNKNOWN = "not known: imported from DomainBed"
TASK = "domain_generalization"
# DomainBed's hyper-parameters that choose a network, and the network, in the order in which it looks at them.
NETWORKS = {
    "vit": "DomainBed's ViT",
    "dinov2": "DomainBed's DINOv2",
    "resnet50_augmix": "resnet50.ram_in1k",
    "resnet18": "resnet18.tv_in1k",
}


@dataclass
class Imported:
    """What became of the jobs of a sweep.

    Attributes:
        runs: Those that are in the store now.
        left_out: Job folder → why it is not.
    """

    runs: list[Run] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)


def import_sweep(folder: str | Path, out: str | Path) -> Imported:
    """Write every finished job of a sweep into a store, which may hold runs already.

    Args:
        folder: The --output_dir of DomainBed's sweep: one folder a job, with results.jsonl and done.
        out: A store, or a new folder.

    Raises:
        ConfigError: It is no such folder, or has no finished job of a data set that dspreg knows.
        IntegrityError: A line of a results.jsonl is torn, or not what DomainBed writes. Nothing is written then.
    """
    root, found = Path(folder), Imported()
    try:
        names = sorted(os.listdir(root))
    except OSError as error:
        raise ConfigError(f"{root} can't be listed: {error.strerror}. Give the --output_dir of a sweep") from error
    jobs: list[tuple[Run, dict[str, Any], list[dict[str, Any]]]] = []
    known: dict[str, str] = {}
    for name in names:
        records = read_job(root / name)
        if records is None:
            continue
        if not (root / name / "done").is_file():
            found.left_out[name] = "not finished: there is no file 'done'"
        elif not records:
            found.left_out[name] = "it has no records"
        else:
            try:
                job = translate_job(records)
            except ConfigError as error:
                found.left_out[name] = str(error)
                continue
            if job[0].id in known:
                found.left_out[name] = f"the same run as {known[job[0].id]}"
                continue
            known[job[0].id] = name
            jobs.append(job)
    if not jobs:
        why = "; ".join(f"{name}: {reason}" for name, reason in list(found.left_out.items())[:3])
        raise ConfigError(f"{root} has no job to import{': ' + why if why else '. Give the --output_dir of a sweep'}")
    store = RunStore(out)
    store.make()
    for run, described, records in jobs:
        write_run(store.folder(run), described, records)
        found.runs.append(run)
    store.plan(found.runs)
    return found


def translate_job(records: Sequence[Record]) -> tuple[Run, dict[str, Any], list[dict[str, Any]]]:
    """One job as a run, what its run.json says, and its records.

    Raises:
        ConfigError: Something that a table needs is not known of it.
    """
    args, hparams = records[0]["args"], records[0].get("hparams") or {}
    data = dataset_class(args["dataset"])
    if data is None or not issubclass(data, Benchmark):
        raise ConfigError(
            f"the data set {args['dataset']!r} is none of dspreg's, so its domains have no names and sizes"
        )
    if args.get("task", TASK) != TASK:
        raise ConfigError(f"its task is {args['task']!r}: it was trained with images of the target")
    if any(i >= len(data.domains) for i in args["test_envs"]):
        raise ConfigError(f"{args['dataset']} has {len(data.domains)} environments; test_envs is {args['test_envs']}")
    targets = [data.domains[i] for i in sorted(args["test_envs"])]
    made = [translate_record(each, data.domains, targets) for each in records]
    usual = default_options("domainbed", cast(DatasetFacts, data))
    settings = {
        **usual,
        "dataset": data.name,
        "targets": targets,
        "algorithm": f"DomainBed(name={args['algorithm']!r})",
        "protocol": "domainbed",
        "trial": args["trial_seed"],
        "draw": args["hparams_seed"],
        "same_draws": False,
        "model": next((network for name, network in NETWORKS.items() if hparams.get(name)), "resnet50.tv_in1k"),
        "weights": "default",
        "steps": args.get("steps") or max(usual["steps"], made[-1]["step"] + 1),
        "evaluate_every": args.get("checkpoint_freq") or usual["evaluate_every"],
        "evaluate": "all",
        "holdout": args.get("holdout_fraction", usual["holdout"]),
        "augment": bool(hparams.get("data_augmentation", True)),
        "augment_validation": bool(hparams.get("data_augmentation", True)),
        "frozen_bn": bool(hparams.get("freeze_bn", True)),  # DomainBed froze it before there was a choice
        "dropout": hparams.get("resnet_dropout", usual["dropout"]),
        **{name: hparams.get(name, usual[name]) for name in ("lr", "weight_decay", "batch_size")},
    }
    own = {name: settings[name] for name in ("dataset", "targets", "algorithm", "protocol", "trial", "draw")}
    drawn = {"lr", "weight_decay", "batch_size", "dropout"} if settings["draw"] else set()
    changed = {n: settings[n] for n in FURTHER if n not in drawn and n in usual and settings[n] != usual[n]}
    run = Run(**own, options=changed)
    holdout = settings["holdout"]
    sizes = {name: {"in": n - int(n * holdout), "out": int(n * holdout)} for name, n in data.counts.items()}
    described = {
        "settings": settings,
        "data": {
            "domains": list(data.domains),
            "classes": list(data.classes),
            "sizes": sizes,
            "fingerprints": dict.fromkeys(data.domains, UNKNOWN),
        },
        "weights": {"source": "DomainBed", "tag": UNKNOWN, "sha256": None},
        "environment": {"origin": "DomainBed"},
        "where": {
            "plan": run.to_json(),
            "algorithm": settings["algorithm"],
            "hparams": json.dumps(hparams, sort_keys=True),
        },
    }
    return run, described, made


def translate_record(record: Record, domains: Sequence[str], targets: Sequence[str]) -> dict[str, Any]:
    """One line of results.jsonl as one of records.jsonl."""
    accuracy: dict[str, dict[str, float]] = {}
    for i, name in enumerate(domains):
        splits = {which: record.get(f"env{i}_{which}_acc") for which in ("in", "out")}
        accuracy[name] = {which: x for which, x in splits.items() if isinstance(x, int | float) and not math.isnan(x)}
    sources = [name for name in domains if name not in targets]
    lacking = [name for name in sources if "out" not in accuracy[name]] + [
        t for t in targets if "in" not in accuracy[t]
    ]
    if lacking:
        raise ConfigError(f"step {record['step']} has no accuracy of {lacking[0]}")
    known = {"step", "epoch", "step_time", "mem_gb", "hparams", "args"}
    log = {
        name: float(value)
        for name, value in record.items()
        if name not in known and not ACCURACY.fullmatch(name) and type(value) in (int, float) and math.isfinite(value)
    }
    return {
        "step": record["step"],
        "accuracy": accuracy,
        "validation": fmean(accuracy[name]["out"] for name in sources),
        "log": log,
        # what evaluation took it does not write; its time per step is without it
        "seconds": {"step_seconds": float(record.get("step_time", 0.0)), "evaluate_seconds": 0.0},
    }


def write_run(folder: RunFolder, described: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> None:
    """A finished run's folder; one that is there already must be the same run."""
    with folder.locked():
        run = folder.agree(described)
        if (folder / "result.json").exists():
            folder.result()
            return
        folder.records.rewind(None)  # of an import that was interrupted
        for each in records:
            folder.records.append(dict(each))
        best = max(records, key=lambda each: each["validation"])  # of equal ones the first, as in DomainBed
        quoted = {"selected": best, "last": records[-1]}
        folder.finish(
            {
                "format": FORMAT,
                "run": run,
                "targets": list(described["settings"]["targets"]),
                "environments": [],
                **{
                    which: {name: each[name] for name in ("step", "validation", "accuracy")}
                    for which, each in quoted.items()
                },
                "refreshes": 0,
            }
        )
        try:
            check_run(folder.path, folder.contents())
        except IntegrityError:
            folder.remove("result.json")  # it is not counted
            raise
