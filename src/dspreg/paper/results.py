"""What became of an item's runs: rows of its variants, and how often c was measured."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dspreg.algorithms import DSPReg, parse
from dspreg.data.splits import steps_per_epoch
from dspreg.errors import DspregError, Notice
from dspreg.paper.item import Item, Variant
from dspreg.protocol.selection import RunResult
from dspreg.reporting.load import load_planned_runs
from dspreg.reporting.table import Cell, mean
from dspreg.reporting.tables import SelectedRow, count_cell, select_rows
from dspreg.runs.status import derive_state
from dspreg.runs.store import RunStore


@dataclass(frozen=True)
class VariantRow:
    """One variant on one data set, over the domains that the item holds out."""

    variant: Variant
    label: str
    row: SelectedRow
    targets: list[str]

    def cell(self, target: str) -> Cell:
        return self.row.cell(target)

    def mean(self) -> Cell:
        """Over targets, as in tables of one data set; with the spread of trials where all have every target."""
        found, trials = mean([self.cell(target) for target in self.targets]), self.average()
        complete = found.value is not None and trials.found == trials.expected
        return replace(found, error=trials.error) if complete else found

    def average(self) -> Cell:
        """Over targets in every trial that has them all, as in tables of several data sets."""
        return self.row.average(self.targets)


def count_runs(rows: Iterable[VariantRow]) -> Cell:
    """Finished of those that the item wants."""
    every = [each.row for each in rows]
    return count_cell(sum(row.finished for row in every), sum(row.wanted for row in every))


def load_item(item: Item, store: RunStore) -> dict[str, RunResult]:
    """Every run of the item by plan id, finished or not; damaged ones are named. Other runs are not read."""
    runs = item.runs()
    results, damaged = load_planned_runs(store, runs)
    for run in runs:
        if results[run.id].finished:
            try:
                planned_refreshes(store.folder(run).description())
            except DspregError as error:  # its algorithm can't be read, or is of a stranger's module
                damaged[run.id] = f"{store.folder(run).path}/run.json: settings.algorithm: {error}"
                results[run.id] = replace(results[run.id], state=derive_state(damage=damaged[run.id]), records=())
    for each in damaged.values():
        warnings.warn(f"left out: {each}", Notice, stacklevel=3)
    # as the item spells it: options that are given are part of a name, though they have their defaults
    return {run.id: replace(results[run.id], algorithm=run.algorithm) for run in runs}


def rows_by_dataset(item: Item, results: Iterable[RunResult]) -> dict[str, list[VariantRow]]:
    """By data set, in the item's order; a variant whose runs were made under several conditions has several rows."""
    rows = select_rows(results)
    found: dict[str, list[VariantRow]] = {}
    for dataset in item.domains():
        targets = item.held_out(dataset)
        found[dataset] = [
            VariantRow(variant, variant.label + row.label.removeprefix(row.algorithm), row, targets)
            for variant in item.variants
            for row in rows
            if row.dataset == dataset and row.algorithm == variant.algorithm
        ]
    return found


# How often c was measured.


@dataclass
class Refreshes:
    """Of the finished runs of one variant, on all data sets."""

    happened: list[int] = field(default_factory=list)
    planned: list[int] = field(default_factory=list)

    def cells(self) -> tuple[Cell, Cell]:
        return Cell(text=_range(self.happened)), Cell(text=_range(self.planned))


def count_refreshes(item: Item, store: RunStore, results: Mapping[str, RunResult]) -> dict[str, Refreshes]:
    """Of every algorithm of the item."""
    counted = {variant.algorithm: Refreshes() for variant in item.variants}
    for run in item.runs():
        if results[run.id].finished:
            wanted = planned_refreshes(store.folder(run).description())
            if wanted is not None:
                counted[run.algorithm].planned.append(wanted)
                counted[run.algorithm].happened.append(int(results[run.id].made["refreshes"]))
    return counted


def refresh_notes(item: Item, refreshes: Mapping[str, Refreshes]) -> list[str]:
    """Notes on variants whose c was not measured as often as planned."""
    notes = []
    for variant in item.variants:
        found, layer = refreshes[variant.algorithm], penalty_of(variant.spec)
        if layer is not None and layer.uses_c and 0 in found.happened:
            runs = f"{found.happened.count(0)} of {len(found.happened)} runs"
            notes.append(f"{variant.label}: c was never measured in {runs}, which have a plain gradient penalty, c = 1")
        if sorted(found.happened) != sorted(found.planned):
            notes.append(
                f"{variant.label}: refreshes are not as many as planned; its numbers are not those of its spec"
            )
    return notes


def penalty_of(spec: str) -> DSPReg | None:
    """Of a spec that may be a stored run's, so that it imports nobody's code."""
    return next((each for each in parse(spec, trust=(), of_file=True).layers() if isinstance(each, DSPReg)), None)


def planned_refreshes(described: Mapping[str, Any]) -> int | None:
    """By T or S and the length of the run, from its `run.json`; None where there is no DSP-Reg.

    Refreshes come before steps (mT − 1)·E, or mS, m = 1, 2, …, as far as they are below the number of steps.
    """
    settings, sizes = described["settings"], described["data"]["sizes"]
    layer, last = penalty_of(settings["algorithm"]), settings["steps"] - 1
    if layer is None:
        return None
    if not layer.uses_c:
        return 0
    if layer.coefficients == "static":
        return 1
    if layer.refresh_steps is not None:
        return int(last // layer.refresh_steps)
    sources = [each["in"] for name, each in sizes.items() if name not in settings["targets"]]
    epoch = steps_per_epoch(sources, settings["batch_size"] * len(sources))
    return int((last // epoch + 1) // layer.refresh_epochs)


def _range(numbers: list[int]) -> str:
    low, high = min(numbers, default=None), max(numbers, default=None)
    return "" if low is None else str(low) if low == high else f"{low}–{high}"
