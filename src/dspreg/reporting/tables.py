"""From runs to tables: one per data set, then averages; ours, and beside them the paper's figures.

Where a sweep is complete every number is DomainBed's, but for ± 0 of a single trial, which is left out. Where runs are
missing, a mean over targets, of a row or of a trial, is left out, while DomainBed averages what is there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from dspreg.errors import ConfigError
from dspreg.kinds import KINDS
from dspreg.metrics import ACCURACY, check_select_by
from dspreg.protocol.selection import BY_METRIC, RULES, TITLES, Choice, RunResult
from dspreg.reporting import published
from dspreg.reporting.conditions import group_runs
from dspreg.reporting.table import Cell, Row, Table, difference, mean, score

ERROR = "±: standard error over trials as in DomainBed, population standard deviation / √k"
PARTLY = "(2/3): some are missing"
RUNS = "runs: finished of those that are there or planned"
PLANNED = "runs: finished of those planned"


@dataclass
class SelectedRow:
    """One row of one data set: what was selected for every target and trial. `dspreg.select_rows` makes them.

    Attributes:
        dataset: Its name.
        label: The algorithm, and where rows differ in them, conditions: `"ERM [threads=1]"`.
        runs: All runs of the row.
        rule: The selection.
        by: The metric of the sources that it selects by; None: that by which each run was selected in training.
        choices: Target and trial → accuracy on the target, validation, step and draw; or in words why there is none.
        algorithm: The spec of the method.
        domains: The columns.
        trials: Those of any target.
        finished: Number of runs that are finished.
        wanted: Number of runs that are there or planned.
    """

    dataset: str
    label: str
    runs: list[RunResult]
    rule: str
    by: str | None = None
    choices: dict[tuple[str, int], Choice | str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.algorithm, self.domains = self.runs[0].algorithm, self.runs[0].domains
        used = [run for run in self.runs if len(run.targets) <= (2 if self.rule == "leave-one-out" else 1)]
        self.trials = sorted({run.trial for run in self.runs})
        self.finished, self.wanted = sum(run.finished for run in used), len(used)
        self.planned = any(run.plan for run in self.runs)
        alone = {(run.targets[0], run.trial) for run in self.runs if len(run.targets) == 1}
        self.wanted_of = {  # trials of every target: those planned, or without a plan all that any target has
            target: [trial for trial in self.trials if not self.planned or (target, trial) in alone]
            for target in self.domains
        }
        holding_out: dict[tuple[str, int], list[RunResult]] = defaultdict(list)
        for run in used:
            for target in run.targets:
                holding_out[target, run.trial].append(run)
        for target in self.domains:
            for trial in self.trials:
                self.choices[target, trial] = RULES[self.rule](holding_out[target, trial], target, self.by)

    def accuracy(self, target: str, trial: int) -> float | None:
        """On the target, between 0 and 1; None where nothing was selected."""
        found = self.choices.get((target, trial))
        return found.accuracy if isinstance(found, Choice) else None

    def pair_with(self, other: SelectedRow) -> dict[str, list[tuple[float, float]]]:
        """Target → the accuracies of both rows in every trial that has both; only targets that have such trials."""
        pairs: dict[str, list[tuple[float, float]]] = {}
        for target in self.domains:
            for trial in self.trials:
                a, b = self.accuracy(target, trial), other.accuracy(target, trial)
                if a is not None and b is not None:
                    pairs.setdefault(target, []).append((a, b))
        return pairs

    def cell(self, target: str) -> Cell:
        """Of one domain, over trials."""
        trials = self.wanted_of[target]
        if not trials:
            return Cell(found=0, expected=0, reason="not planned")
        found = [self.choices[target, trial] for trial in trials]
        values = [each.accuracy for each in found if isinstance(each, Choice)]
        return score(values, len(trials), [each for each in found if isinstance(each, str)])

    def average(self, targets: Sequence[str] | None = None) -> Cell:
        """Over all targets, or these, of the trials that have every one of them."""
        targets = self.domains if targets is None else targets
        values, missing = [], defaultdict(list)
        trials = [trial for trial in self.trials if all(trial in self.wanted_of[target] for target in targets)]
        if not trials:
            return Cell(found=0, expected=0, reason="no trial is planned for all domains")
        for trial in trials:
            found = {target: self.accuracy(target, trial) for target in targets}
            there = [each for each in found.values() if each is not None]
            if len(there) == len(found):
                values.append(float(np.mean(there)))
            else:
                missing[", ".join(d for d, each in found.items() if each is None)].append(str(trial))
        where = {each: f" in trial {', '.join(of)}" if len(missing) > 1 else "" for each, of in missing.items()}
        return score(values, len(trials), [f"no number for {each}{where[each]}" for each in missing])


def select_rows(
    runs: Iterable[RunResult], selection: str = "training", *, select_by: str | None = None
) -> list[SelectedRow]:
    """Group runs into the rows of a report, and select step and draw for every target and trial.

        for row in dspreg.select_rows(dspreg.load_runs("runs")):
            print(row.dataset, row.label, {target: row.accuracy(target, trial=0) for target in row.domains})

    Args:
        runs: All of them, as `dspreg.load_runs` gives them: how many are missing counts, too.
        selection: As in `dspreg.report`.
        select_by: As in `dspreg.report`.

    Raises:
        ConfigError: There is no such selection, or two finished runs are for the same target, trial and draw.
    """
    if selection not in RULES:
        raise ConfigError(f"selection={selection!r}; wanted one of {', '.join(RULES)}")
    check_selection(selection, select_by)
    found = group_runs(runs)
    return [SelectedRow(*key, inside, selection, select_by) for key, inside in sorted(found.items(), key=_order)]


def check_selection(selection: str, select_by: str | None) -> None:
    """Refuse a metric that there is not, or that this selection does not look at."""
    if select_by is None:
        return
    if check_select_by(select_by) != ACCURACY and selection not in BY_METRIC:
        raise ConfigError(
            f"selection={selection!r} selects by accuracy, and not by {select_by}; a metric is for "
            f"{', '.join(BY_METRIC)}"
        )


def make_tables(found: Sequence[SelectedRow], damaged: Sequence[str] = ()) -> list[Table]:
    """One for each data set, then the averages."""
    datasets = list(dict.fromkeys(each.dataset for each in found))
    made = [_dataset([each for each in found if each.dataset == name]) for name in datasets]
    left_out = tuple(f"left out: {each}" for each in damaged)
    return [*made, _averages(found, datasets, left_out)]


def _order(item: tuple[tuple[str, str], list[RunResult]]) -> tuple[int, str, bool, str]:
    """The paper's data sets in its order, then others; ERM first, what all else is compared with."""
    (dataset, label), runs = item
    place = published.FIVE.index(dataset) if dataset in published.FIVE else len(published.FIVE)
    return place, dataset, runs[0].algorithm != "ERM", label


def _dataset(found: list[SelectedRow]) -> Table:
    name, domains, rule = found[0].dataset, found[0].domains, found[0].rule
    made, notes = [], [PLANNED if any(each.planned for each in found) else RUNS]
    for each in found:
        if each.domains != domains:
            raise ConfigError(
                f"{each.label} and {found[0].label} call different domains {name}: {', '.join(each.domains)} and "
                f"{', '.join(domains)}. Move one of them elsewhere, or train with another --name"
            )
        cells = [each.cell(target) for target in domains]
        whole, scored = mean(cells), [(c.value, d) for c, d in zip(cells, domains, strict=True) if c.value is not None]
        worst = Cell(reason=whole.reason)
        if whole.value is not None:
            lowest, where = min(scored)
            worst = Cell(value=lowest, text=where, found=whole.found, expected=whole.expected)
        made.append(Row(each.label, "ours", (*cells, whole, worst, count_cell(each.finished, each.wanted))))
        theirs = published.by_domain(name, each.algorithm, domains) if rule == "training" else None
        if theirs:
            made += published_rows(each.label, [*cells, whole], theirs, 2)
            notes += [published.NOTE, *_unlike(each)]
    title = f"{name}: {KINDS[found[0].runs[0].kind].title} on each domain held out, in %; {selection_title(found)}"
    every = (*explain_marks(made), *dict.fromkeys(notes))
    return Table(name, title, rule, (*domains, "mean", "worst", "runs"), tuple(made), every)


def _averages(found: Sequence[SelectedRow], datasets: list[str], notes: tuple[str, ...]) -> Table:
    rule = found[0].rule
    made, remarks = [], []
    for label in dict.fromkeys(each.label for each in sorted(found, key=lambda s: (s.algorithm != "ERM", s.label))):
        there = {each.dataset: each for each in found if each.label == label}
        cells = [there[name].average() if name in there else Cell(reason="no runs") for name in datasets]
        whole = mean(cells)
        made.append(Row(label, "ours", (*cells, whole)))
        algorithm = next(iter(there.values())).algorithm
        theirs = published.averages(datasets, algorithm) if rule == "training" else None
        if theirs:
            made += published_rows(label, [*cells, whole], theirs)
            remarks.append(published.NOTE)
    title = f"Averages over the domains of each data set, in %; {selection_title(found)}"
    every = (*explain_marks(made), *dict.fromkeys(remarks), *notes)
    return Table("Averages", title, rule, (*datasets, "mean"), tuple(made), every)


def selection_title(found: Sequence[SelectedRow]) -> str:
    """In words, how step and draw were selected."""
    by = found[0].by
    return TITLES[found[0].rule] + (f", by {by}" if by not in (None, ACCURACY) else "")


def explain_marks(made: Sequence[Row]) -> list[str]:
    """What ± and (2/3) mean, where they stand."""
    texts = [cell.format() for row in made if row.source == "ours" for cell in row.cells if cell.value is not None]
    there = {ERROR: any("±" in text for text in texts), PARTLY: any("/" in text for text in texts)}
    return ["; ".join(text for text, seen in there.items() if seen)] if any(there.values()) else []


def published_rows(
    label: str, ours: Sequence[Cell], theirs: Sequence[Cell], more: int = 0, *, comparable: bool = True
) -> list[Row]:
    """The paper's row, to stand below ours, and the difference; nothing where the paper has no number.

    Args:
        label: Of our row.
        ours: Its cells, as far as the paper has such columns.
        theirs: The paper's.
        more: Columns that follow, which it does not have.
        comparable: Whether both are about the same images; if not, no difference is taken.
    """
    if all(cell.value is None for cell in theirs):
        return []
    empty = (Cell(),) * more
    rows = [Row(label, "paper", (*theirs, *empty))]
    if comparable:
        apart = tuple(difference(mine, its) for mine, its in zip(ours, theirs, strict=True))
        rows.append(Row(label, "difference", (*apart, *empty)))
    return rows


def count_cell(done: int, wanted: int) -> Cell:
    """3/6: so many of those that are wanted."""
    return Cell(text=f"{done}/{wanted}", found=done, expected=wanted)


def _unlike(each: SelectedRow) -> list[str]:
    """Where the difference to the paper is not only one of luck."""
    usual = {"model": "resnet50.tv_in1k", "steps": 5_001}
    known = [run.conditions for run in each.runs if run.conditions]
    odd = {k: known[0][k] for k, v in usual.items() if known and known[0].get(k, v) != v}
    text = ", ".join(f"{name}={value}" for name, value in odd.items())
    return [f"{each.label} was run with {text}, unlike the paper: the difference is not one of methods"] if odd else []
