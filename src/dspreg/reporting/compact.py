"""Runs as a report keeps them, in two kilobytes each: a million are to fit into memory.

Most runs of a sweep are alike but for their numbers: names, conditions and the shape of records are kept once for all,
and the numbers of a run in one array. Every number and every text is as it was.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple, TypeVar, overload

from dspreg.kinds import KINDS, figures_of, kind_of
from dspreg.protocol.selection import Record, RunResult

T = TypeVar("T")


class Layout(NamedTuple):
    """The shape of one record: what its numbers are of."""

    accuracy: tuple[tuple[str, tuple[str, ...]], ...]  # domains, each with its splits
    logs_loss: bool
    metrics: tuple[tuple[str, tuple[str, ...]], ...] = ()  # sources, each with the names of further figures
    figure: str = "accuracy"  # or the one that another kind of task selects by


class CompactRecords(Sequence[Record]):
    """The records of a run, as far as reports look at them; each is made anew when it is asked for.

    Args:
        steps: Of every record.
        layouts: Of every record.
        numbers: Of all records: validation, the loss if it was logged, accuracies and metrics in the layout's order;
            NaN where a record has null.
    """

    __slots__ = ("layouts", "numbers", "steps")

    def __init__(self, steps: tuple[int, ...], layouts: tuple[Layout, ...], numbers: array[float]):
        self.steps, self.layouts, self.numbers = steps, layouts, numbers

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[Record]:
        numbers = iter(self.numbers)
        for step, (accuracy, logs_loss, metrics, figure) in zip(self.steps, self.layouts, strict=True):
            record: dict[str, Any] = {"step": step, "validation": _number(next(numbers))}
            if logs_loss:
                record["log"] = {"loss": next(numbers)}
            record[figure] = {
                name: dict(zip(splits, islice(numbers, len(splits)), strict=True)) for name, splits in accuracy
            }
            if metrics:
                record["metrics"] = {
                    name: dict(zip(names, map(_number, islice(numbers, len(names))), strict=True))
                    for name, names in metrics
                }
            yield record

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        return list(self)[index]


class Compactor:
    """Brings runs into the form a report keeps. One for all runs of a report, which share what is equal."""

    def __init__(self) -> None:
        self._kept: dict[Any, Any] = {}

    def compact(self, run: RunResult) -> RunResult:
        """The same run, with records as far as reports look at them, and without its settings."""
        return replace(
            run,
            dataset=self._share(run.dataset),
            algorithm=self._share(run.algorithm),
            domains=self._share_names(run.domains),
            targets=self._share_names(run.targets),
            protocol=self._share(run.protocol),
            conditions=self._share_mapping(run.conditions),
            settings={},
            records=self.compact_records(run.records),
            plan=self._share(run.plan),
            made=self._share_mapping(run.made),
        )

    def compact_records(self, records: Sequence[Record]) -> CompactRecords:
        """Of a run whose records `check_records` has found to be sound."""
        steps, layouts, numbers = [], [], array("d")
        for each in records:
            accuracy, loss = figures_of(each), each.get("log", {}).get("loss")
            metrics = each.get("metrics") or {}
            layout = _names(accuracy), loss is not None, _names(metrics), KINDS[kind_of(each)].figure
            if layout not in self._kept:
                self._kept[layout] = Layout(*layout)
            steps.append(each["step"])
            layouts.append(self._kept[layout])
            numbers.append(_or_nan(each["validation"]))
            if loss is not None:
                numbers.append(loss)
            for splits in accuracy.values():
                numbers.extend(splits.values())
            for figures in metrics.values():
                numbers.extend(map(_or_nan, figures.values()))
        return CompactRecords(self._share(tuple(steps)), self._share(tuple(layouts)), numbers)

    def _share(self, value: T) -> T:
        kept: T = self._kept.setdefault(value, value)
        return kept

    def _share_names(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return self._share(tuple(map(self._share, names)))

    def _share_mapping(self, value: Mapping[str, Any]) -> Mapping[str, Any]:
        """By its text, since 1, 1.0 and True are equal."""
        kept: Mapping[str, Any] = self._kept.setdefault(repr(value), value)
        return kept


def _names(values: Mapping[str, Mapping[str, Any]]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple([(name, tuple(inside)) for name, inside in values.items()])


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
