"""What is compared with what: runs under different conditions stand in different rows, which say how they differ.

Protocol, torch, threads, device, precision, layout and compile are compared over the whole report, as averages run over
data sets. Steps, network, folded batch norm, weights, images and all other settings are compared within a data set,
since every data set has its own. Options that search draws count only where nothing was searched. A run that is planned
and not begun stands in the rows of those that were asked for alike.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from dspreg.errors import ConfigError
from dspreg.protocol.selection import RunResult

SHARED = ("protocol", "torch", "threads", "device", "precision", "layout", "compile")
Key = tuple[str, str]  # data set, label of the row
Group = tuple[str, str, str]  # data set, algorithm, plan: what was asked for alike


def group_runs(results: Iterable[RunResult]) -> dict[Key, list[RunResult]]:
    """All runs of each row, planned ones too; sorted, so that the order they were found in decides nothing.

    Raises:
        ConfigError: Two finished runs claim the same place.
    """
    once = {(t.id or id(t)): t for t in sorted(results, key=lambda t: (t.finished, t.folder))}  # of copies the finished
    every = sorted(once.values(), key=_order)
    known, planned = [t for t in every if t.conditions], [t for t in every if not t.conditions]
    searched = {(t.dataset, t.algorithm) for t in every if t.draw}
    facts = _all_facts(known, searched)
    varying = _varying(known, facts)
    found: dict[Key, list[RunResult]] = defaultdict(list)
    for each, fact in zip(known, facts, strict=True):
        differing = fact.items() if varying else ()
        parts = [f"{name}={value}" for name, value in differing if (_scope(each, name), name) in varying]
        label = f"{each.algorithm} [{', '.join(parts)}]" if parts else each.algorithm
        found[each.dataset, label].append(each)
    _fill(found, planned, _labels(every))
    for (dataset, label), runs in found.items():
        _refuse_two(dataset, label, runs)
    return dict(found)


def _fill(found: dict[Key, list[RunResult]], planned: list[RunResult], labels: dict[Group, str]) -> None:
    """Add to every row what was planned for it and is not in it."""
    homes: dict[Group, list[Key]] = defaultdict(list)
    wanted: dict[Group, list[RunResult]] = defaultdict(list)
    for key, runs in found.items():
        for each in runs:
            if key not in homes[_group(each)]:
                homes[_group(each)].append(key)
            if each.plan:
                wanted[_group(each)].append(each)
    for each in planned:
        wanted[_group(each)].append(each)
    for group, runs in wanted.items():
        for key in homes[group] or [(group[0], labels[group])]:
            taken = set(map(_place, found[key]))
            for each in runs:
                if _place(each) not in taken:
                    taken.add(_place(each))
                    found[key].append(replace(each, records=(), elsewhere=True) if each.conditions else each)


def _labels(results: list[RunResult]) -> dict[Group, str]:
    """Of rows in which nothing was begun: what was asked for where the plan asks for several things."""
    asked: dict[Group, dict[str, Any]] = {
        group: json.loads(group[2]) if group[2] else {} for group in dict.fromkeys(map(_group, results))
    }
    made = {}
    for (dataset, algorithm, plan), mine in asked.items():
        others = [each for group, each in asked.items() if group[:2] == (dataset, algorithm)]
        parts = [
            f"{name}={mine.get(name, 'default')}"
            for name in sorted({name for each in others for name in each})
            if len({str(each.get(name, "default")) for each in others}) > 1
        ]
        made[dataset, algorithm, plan] = f"{algorithm} [{', '.join(parts)}]" if parts else algorithm
    return made


def _varying(results: list[RunResult], facts: list[dict[str, Any]]) -> set[tuple[str, str]]:
    """The facts that differ, each with the data set they differ in, or with none."""
    values: dict[tuple[str, str], set[str]] = defaultdict(set)
    before = None
    for each, fact in zip(results, facts, strict=True):
        if (each.dataset, fact) != before:  # thousands are alike
            for name, value in fact.items():
                values[_scope(each, name), name].add(str(value))
        before = each.dataset, fact
    return {key for key, different in values.items() if len(different) > 1}


def _scope(run: RunResult, name: str) -> str:
    return "" if name in SHARED else run.dataset


def _all_facts(runs: Iterable[RunResult], searched: Collection[tuple[str, str]]) -> list[dict[str, Any]]:
    """Of each run; runs that share their conditions share them, since a million of their own take two gigabytes."""
    made: dict[tuple[Any, ...], dict[str, Any]] = {}
    found = []
    for run in runs:
        draws = (run.dataset, run.algorithm) in searched
        options = () if draws else map(repr, run.options.items())
        key = (id(run.conditions), run.protocol, *options)
        if key not in made:
            made[key] = _facts(run, draws)
        found.append(made[key])
    return found


def _facts(run: RunResult, searched: bool) -> dict[str, Any]:
    options: Mapping[str, Any] = {} if searched else run.options
    return {"protocol": run.protocol, **run.conditions, **options}


def _group(run: RunResult) -> Group:
    return run.dataset, run.algorithm, run.plan


def _place(run: RunResult) -> tuple[Any, ...]:
    return run.targets, run.trial, run.draw


def _order(run: RunResult) -> tuple[Any, ...]:
    return run.dataset, run.algorithm, run.targets, run.trial, run.draw, run.id, run.folder


def _refuse_two(dataset: str, label: str, runs: list[RunResult]) -> None:
    taken: dict[tuple[Any, ...], RunResult] = {}
    for each in runs:
        if not each.finished:
            continue
        first = taken.setdefault(_place(each), each)
        if first is not each:
            targets = ", ".join(each.targets)
            raise ConfigError(
                f"two finished runs of {label} on {dataset}, target {targets}, trial {each.trial}, draw {each.draw}: "
                f"{first.folder} and {each.folder}. Neither is better than the other: move one of them elsewhere"
            )
