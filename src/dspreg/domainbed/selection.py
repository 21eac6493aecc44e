"""Selection over DomainBed's own records, faults included; `protocol.selection` has the same rules without them.

Here a run that was not finished enters, and NaN wins within a run if it is the first step.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import count, takewhile
from typing import Any

import numpy as np

Record = dict[str, Any]  # one line of a results.jsonl
Scored = tuple[float, float]  # validation accuracy, and the accuracy that is reported
Rule = Callable[[list[Record]], Scored | None]


def select_accuracy(records: Iterable[Record], rule: Rule) -> float | None:
    """What is reported for one data set, algorithm, trial and environment; None where no draw can be used."""
    draws: dict[Any, list[Record]] = defaultdict(list)
    for record in records:
        draws[record["args"]["hparams_seed"]].append(record)
    scored = [found for _, each in sorted(draws.items()) if (found := rule(each)) is not None]
    if not scored:
        return None
    ranks = [-math.inf if math.isnan(validation) else validation for validation, _ in scored]
    last_of_the_best = max(i for i, rank in enumerate(ranks) if rank == max(ranks))
    return scored[last_of_the_best][1]


def training_domains(records: list[Record]) -> Scored | None:
    """The first record of the highest mean "out" accuracy over the other environments."""
    found = []
    for record in _alone(records):
        (target,) = record["args"]["test_envs"]
        others = [record[f"env{i}_out_acc"] for i in range(_environments(record)) if i != target]
        with np.errstate(invalid="ignore", divide="ignore"):
            validation = float(np.divide(np.sum(others), len(others)))
        found.append((validation, record[f"env{target}_in_acc"]))
    return max(found, key=lambda each: each[0], default=None)


def leave_one_out(records: list[Record]) -> Scored | None:
    """The first step of the highest mean accuracy on second targets, where the run and all its pairs have it."""
    steps: dict[Any, list[Record]] = defaultdict(list)
    for record in records:
        steps[record["step"]].append(record)
    found = [scored for _, each in sorted(steps.items()) if (scored := _left_out(each)) is not None]
    return max(found, key=lambda each: each[0], default=None)


def _left_out(records: list[Record]) -> Scored | None:
    alone, environments = _alone(records), _environments(records[0])
    if len(alone) != 1:
        return None
    (target,) = alone[0]["args"]["test_envs"]
    second: dict[int, float] = {}
    for record in records:
        held = record["args"]["test_envs"]
        if len(held) == 2:
            (other,) = set(held) - {target}
            second[other] = record[f"env{other}_in_acc"]
    others = [i for i in range(environments) if i != target]
    if any(i not in second for i in others):
        return None
    with np.errstate(invalid="ignore", divide="ignore"):
        validation = float(np.divide(np.sum([second[i] for i in others]), environments - 1))
    return validation, alone[0][f"env{target}_in_acc"]


def oracle(records: list[Record]) -> Scored | None:
    """The last step."""
    alone = sorted(_alone(records), key=lambda record: record["step"])
    if not alone:
        return None
    (target,) = alone[0]["args"]["test_envs"]
    return alone[-1][f"env{target}_out_acc"], alone[-1][f"env{target}_in_acc"]


RULES: dict[str, Rule] = {
    "training-domain validation set": training_domains,
    "leave-one-domain-out cross-validation": leave_one_out,
    "test-domain validation set (oracle)": oracle,
}


def _alone(records: list[Record]) -> list[Record]:
    return [record for record in records if len(record["args"]["test_envs"]) == 1]


def _environments(record: Record) -> int:
    """Those counted from 0 without a gap."""
    return sum(1 for _ in takewhile(lambda i: f"env{i}_out_acc" in record, count()))
