"""What is compared with what: runs under different conditions stand in different rows, which say how they differ.

Protocol, torch, threads, device and precision are compared over the whole report, for averages run over data sets.
Steps, network, weights, images and all other settings are compared within a data set, since every data set has its own.
Options that search draws count only where nothing was searched.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from dspreg.errors import ConfigError
from dspreg.protocol.selection import Trace

SHARED = ("protocol", "torch", "threads", "device", "precision")
Key = tuple[str, str]  # data set, label of the row


def rows(traces: Iterable[Trace]) -> dict[Key, list[Trace]]:
    """All runs of each row, planned ones too; sorted, so that the order they were found in decides nothing.

    Raises:
        ConfigError: Two finished runs claim the same place.
    """
    every = sorted({(t.id or id(t)): t for t in traces}.values(), key=_order)  # a copied folder counts once
    known, planned = [t for t in every if t.conditions], [t for t in every if not t.conditions]
    searched = {(t.dataset, t.algorithm) for t in every if t.draw}
    facts = [_facts(t, (t.dataset, t.algorithm) in searched) for t in known]
    varying = _varying(known, facts)
    found: dict[Key, list[Trace]] = defaultdict(list)
    for each, fact in zip(known, facts, strict=True):
        parts = [f"{name}={value}" for name, value in fact.items() if (_scope(each, name), name) in varying]
        label = f"{each.algorithm} [{', '.join(parts)}]" if parts else each.algorithm
        found[each.dataset, label].append(each)
    for each in planned:
        same = [key for key, runs in found.items() if key[0] == each.dataset and runs[0].algorithm == each.algorithm]
        for key in same or [(each.dataset, each.algorithm)]:
            if _place(each) not in map(_place, found[key]):
                found[key].append(each)
    for (dataset, label), runs in found.items():
        _refuse_two(dataset, label, runs)
    return dict(found)


def _varying(traces: list[Trace], facts: list[dict[str, Any]]) -> set[tuple[str, str]]:
    """The facts that differ, each with the data set they differ in, or with none."""
    values: dict[tuple[str, str], set[str]] = defaultdict(set)
    for each, fact in zip(traces, facts, strict=True):
        for name, value in fact.items():
            values[_scope(each, name), name].add(str(value))
    return {key for key, different in values.items() if len(different) > 1}


def _scope(trace: Trace, name: str) -> str:
    return "" if name in SHARED else trace.dataset


def _facts(trace: Trace, searched: bool) -> dict[str, Any]:
    options: Mapping[str, Any] = {} if searched else trace.options
    return {"protocol": trace.protocol, **trace.conditions, **options}


def _place(trace: Trace) -> tuple[Any, ...]:
    return trace.targets, trace.trial, trace.draw


def _order(trace: Trace) -> tuple[Any, ...]:
    return trace.dataset, trace.algorithm, trace.targets, trace.trial, trace.draw, trace.id, trace.place


def _refuse_two(dataset: str, label: str, runs: list[Trace]) -> None:
    taken: dict[tuple[Any, ...], Trace] = {}
    for each in runs:
        if not each.finished:
            continue
        first = taken.setdefault(_place(each), each)
        if first is not each:
            targets = ", ".join(each.targets)
            raise ConfigError(
                f"two finished runs of {label} on {dataset}, target {targets}, trial {each.trial}, draw {each.draw}: "
                f"{first.place} and {each.place}. Neither is better than the other: move one of them elsewhere"
            )
