"""One run in DomainBed's layout: environments by number, everything on one level, a folder named by its arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from dspreg.domainbed.jobs import trainer_arguments
from dspreg.errors import IntegrityError
from dspreg.io.text import escape_terminal
from dspreg.runs.schema import BRIEF, LONGEST, is_count

ACCURACY = re.compile(r"env\d+_(in|out)_acc", re.ASCII)
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
        "data_augmentation": settings["augment"] is not False,  # or the name of another one than DomainBed's
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


def check_record(place: str, record: Any) -> None:
    """Require what DomainBed's trainer writes, as far as its tables look at it. NaN is an accuracy there.

    Args:
        place: File and line, for the message.
        record: One line of a results.jsonl.

    Raises:
        IntegrityError: Names the field.
    """
    args = record.get("args") if isinstance(record, dict) else None
    if not isinstance(args, dict):
        _refuse(place, "args", args, "an object")
    for name in ("dataset", "algorithm"):
        if not _is_name(args.get(name)):
            _refuse(place, f"args.{name}", args.get(name), "a printable name without \\ and ^")
    targets = args.get("test_envs")
    if not isinstance(targets, list) or not all(map(is_count, targets)) or len(set(targets)) < len(targets):
        _refuse(place, "args.test_envs", targets, "a list of different numbers of environments")
    counts = {"args.trial_seed": args.get("trial_seed"), "args.hparams_seed": args.get("hparams_seed")}
    for field, value in (counts | {"step": record.get("step")}).items():
        if not is_count(value):
            _refuse(place, field, value, "a whole number, 0 or more")
    for name, value in record.items():
        number = type(value) in (int, float) and (0 <= value <= 1 or value != value)  # NaN differs from itself
        if not number and ACCURACY.fullmatch(name):
            _refuse(place, name, value, "a number from 0 to 1, or NaN")


def _is_name(value: Any) -> bool:
    """Whether it can be printed as it is, as DomainBed does: neither a terminal nor LaTeX takes it for an order."""
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST:
        return False
    return escape_terminal(value) == value and not {"\\", "^"} & set(value)


def _refuse(place: str, field: str, value: Any, wanted: str) -> NoReturn:
    raise IntegrityError(
        f"{place}: {field} is {BRIEF.repr(value)}; wanted {wanted}. DomainBed writes no such thing: remove the job's "
        "folder"
    )
