"""What became of an item's runs: the folders of a store, as traces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dspreg.errors import DspregError
from dspreg.paper.item import Arm, Item
from dspreg.paper.refreshes import penalty_of, planned
from dspreg.protocol.selection import Choice, Trace
from dspreg.report.cells import Cell, mean, score
from dspreg.report.reading import trace
from dspreg.report.tables import Selected, selected
from dspreg.runs.run import Run
from dspreg.runs.store import RunStore, Standing


@dataclass(frozen=True)
class Found:
    """One arm on one data set, over the domains that the item holds out."""

    arm: Arm
    label: str
    row: Selected
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
        values, reasons = [], []
        for trial in self.row.trials:
            found = [self.row.choices[target, trial] for target in self.targets]
            there = [each.accuracy for each in found if isinstance(each, Choice)]
            if len(there) == len(found):
                values.append(sum(there) / len(there))
            reasons += [each for each in found if isinstance(each, str)]
        return score(values, len(self.row.trials), reasons)

    def runs(self) -> Cell:
        done, wanted = self.row.finished, self.row.wanted
        return Cell(text=f"{done}/{wanted}", found=done, expected=wanted)


@dataclass
class Refreshes:
    """Of the finished runs of one arm, on all data sets."""

    happened: list[int] = field(default_factory=list)
    planned: list[int] = field(default_factory=list)

    def cells(self) -> tuple[Cell, Cell]:
        return Cell(text=_between(self.happened)), Cell(text=_between(self.planned))


def traces_of(item: Item, store: RunStore) -> tuple[list[Trace], dict[str, Refreshes]]:
    """Every run of the item, finished or not, and the refreshes of each algorithm. Others in the store are not read."""
    domains = item.domains()
    traces, refreshes = [], {arm.algorithm: Refreshes() for arm in item.arms}
    for run in item.runs():
        standing = store.standing(run, weights=False)
        traces.append(_trace(run, store, standing, tuple(domains[run.dataset])))
        if traces[-1].finished and standing.result is not None:
            wanted = planned(store.folder(run).description())
            if wanted is not None:
                refreshes[run.algorithm].planned.append(wanted)
                refreshes[run.algorithm].happened.append(int(standing.result["refreshes"]))
    return traces, refreshes


def told(item: Item, refreshes: Mapping[str, Refreshes]) -> list[str]:
    """What refreshes have to be said about: such as did not happen."""
    notes = []
    for arm in item.arms:
        found, layer = refreshes[arm.algorithm], penalty_of(arm.spec)
        if layer is not None and layer.uses_c and 0 in found.happened:
            runs = f"{found.happened.count(0)} of {len(found.happened)} runs"
            notes.append(f"{arm.label}: c was never measured in {runs}, which have a plain gradient penalty, c = 1")
        if sorted(found.happened) != sorted(found.planned):
            notes.append(f"{arm.label}: refreshes are not as many as planned; its numbers are not those of its spec")
    return notes


def arms_of(item: Item, traces: list[Trace]) -> dict[str, list[Found]]:
    """By data set, in the item's order; an arm whose runs were made under several conditions has several rows."""
    rows = selected(traces)
    found: dict[str, list[Found]] = {}
    for dataset in item.domains():
        targets = item.held_out(dataset)
        found[dataset] = [
            Found(arm, arm.label + row.label.removeprefix(row.algorithm), row, targets)
            for arm in item.arms
            for row in rows
            if row.dataset == dataset and row.algorithm == arm.algorithm
        ]
    return found


def _trace(run: Run, store: RunStore, standing: Standing, domains: tuple[str, ...]) -> Trace:
    """As it stands; a damaged one is one that is missing."""
    state = f"{standing.state}: {standing.reason}" if standing.reason else "not started"
    if standing.state in ("finished", "started"):
        try:
            return replace(trace(store.folder(run)), algorithm=run.algorithm)  # with what is said though it is usual
        except (DspregError, KeyError, TypeError, ValueError, OSError) as error:
            state = f"damaged: {error}"
    return Trace(
        dataset=run.data_name, algorithm=run.algorithm, domains=domains, targets=run.targets, trial=run.trial,
        draw=run.draw, protocol=run.protocol, state=state, id=run.id,
    )  # fmt: skip


def _between(numbers: list[int]) -> str:
    low, high = min(numbers, default=None), max(numbers, default=None)
    return "" if low is None else str(low) if low == high else f"{low}–{high}"
