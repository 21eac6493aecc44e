"""One run in DomainBed's layout: environments by number, everything on one level, a folder named by its arguments."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dspreg.domainbed.jobs import trainer_arguments

STEPS = 5_001  # of a sweep unless given


def format_records(
    settings: Mapping[str, Any],
    domains: Sequence[str],
    smallest: int,
    records: Iterable[Mapping[str, Any]],
    *,
    memory: float = 0,
    arguments: Mapping[str, Any] | None = None,
) -> str:
    """results.jsonl.

    DomainBed counts environments by their "out" accuracy up to the first gap. Where it was not measured, as for
    targets before the last step, NaN stands for it: no rule looks at that number, only whether it is there.

    Args:
        settings: As in run.json, `dataset` being the name.
        domains: All of them, in the data set's order.
        smallest: Images in the "in" split of the smallest domain: its epoch.
        records: As in records.jsonl.
        memory: Of a GPU, in GiB.
        arguments: Those of a sweep, in place of ours.
    """
    hparams = {
        "data_augmentation": settings["augment"],
        "resnet_dropout": settings["dropout"],
        "freeze_bn": settings["frozen_bn"],
        **{name: settings[name] for name in ("lr", "weight_decay", "batch_size")},
    }
    trainer = {
        "algorithm": settings["algorithm"],
        "dataset": settings["dataset"],
        "task": "domain_generalization",
        "test_envs": [domains.index(name) for name in settings["targets"]],
        "trial_seed": settings["trial"],
        "hparams_seed": settings["draw"],
        "holdout_fraction": settings["holdout"],
        "uda_holdout_fraction": 0,
        "seed": 0,
        "steps": settings["steps"],
        "checkpoint_freq": settings["evaluate_every"],
    } | dict(arguments or {})
    made = []
    for record in records:
        line: dict[str, Any] = {"step": record["step"], "epoch": record["step"] * settings["batch_size"] / smallest}
        line |= {"step_time": record["seconds"]["step_seconds"], "mem_gb": memory, **record["log"]}
        line |= {f"env{i}_out_acc": float("nan") for i in range(len(domains))}
        for name, each in record["accuracy"].items():
            line |= {f"env{domains.index(name)}_{which}_acc": value for which, value in each.items()}
        made.append(json.dumps(line | {"hparams": hparams, "args": trainer}, sort_keys=True))
    return "".join(line + "\n" for line in made)


def sweep_arguments(settings: Mapping[str, Any], domains: Sequence[str], data_dir: str) -> dict[str, Any]:
    """What DomainBed's sweep gives to its trainer for this run; `settings["algorithm"]` is the name in its tables."""
    return trainer_arguments(
        settings["dataset"],
        settings["algorithm"],
        [domains.index(name) for name in settings["targets"]],
        trial=settings["trial"],
        draw=settings["draw"],
        holdout=settings["holdout"],
        data_dir=data_dir,
        steps=None if settings["steps"] == STEPS else settings["steps"],
    )
