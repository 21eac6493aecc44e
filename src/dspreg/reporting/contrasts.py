"""Is one method better than another? Paired: both saw the same splits, batches and start in a trial.

    d_ti  difference of target t in trial i         d̄ = mean over targets of the mean over trials
    s²    = Σ_ti (d_ti − d̄_t)² / ν                  ν = Σ_t (n_t − 1)
    SE    = s · √(Σ_t 1/n_t) / T                    interval d̄ ± t(0.975, ν) · SE

Targets differ by more than noise, so the spread is taken within targets. If the 95 % interval contains 0 the difference
is not significant; with fewer than five pairs no verdict is given.

"Not significant" is not "equal". How small the difference is shown to be is another test, of equivalence: two one-sided
tests at 5 % reject d ≤ −δ and d ≥ δ as soon as δ ≥ |d̄| + t(0.95, ν) · SE.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dspreg.errors import ConfigError
from dspreg.io.text import did_you_mean
from dspreg.reporting.statistics import quantile
from dspreg.reporting.table import Cell, Row, Table
from dspreg.reporting.tables import SelectedRow

FEWEST = 5  # pairs for a verdict
COLUMNS = ("difference", "95 % from", "to", "pairs", "verdict")
EQUAL = "equal within"  # a column of reports


@dataclass(frozen=True)
class Contrast:
    """A paired difference with its 95 % interval, in percentage points. `dspreg.contrast` makes it.

    Attributes:
        difference: Mean over targets of the mean over trials.
        error: Its standard error, from the spread within targets; None if no target has two pairs.
        low: Lower end of the interval; None without an error.
        high: Upper end.
        freedom: Degrees of freedom of Student's t.
        pairs: Number of them.
    """

    difference: float
    error: float | None
    low: float | None
    high: float | None
    freedom: int
    pairs: int

    @property
    def enough_pairs(self) -> bool:
        """Whether there are the five that a verdict needs."""
        return self.pairs >= FEWEST

    @property
    def detectable(self) -> float | None:
        """The smallest difference that four of five repetitions would find, at the level of 5 %."""
        if self.error is None:
            return None
        return (quantile(0.975, self.freedom) + quantile(0.80, self.freedom)) * self.error

    @property
    def equal_within(self) -> float | None:
        """The smallest δ of which |difference| < δ is shown, at the level of 5 %: two one-sided tests."""
        if self.error is None:
            return None
        return abs(self.difference) + quantile(0.95, self.freedom) * self.error

    def verdict(self, first: str, second: str) -> str:
        """In words, which of the two is better, if the interval excludes 0."""
        if not self.enough_pairs or self.low is None or self.high is None:
            return "none: no target has two pairs" if self.enough_pairs else f"none: fewer than {FEWEST} pairs"
        if math.isnan(self.difference):
            return "none: a number is NaN"
        if self.low <= 0 <= self.high:
            return "not distinguishable"
        return f"{first if self.difference > 0 else second} is better"


def contrast(first: SelectedRow, second: SelectedRow, *, targets: Iterable[str] | None = None) -> Contrast:
    """The difference of two rows, paired by trial: both saw the same splits, batches and initial weights in a trial.

        rows = {row.label: row for row in dspreg.select_rows(dspreg.load_runs("runs"), "late")}
        found = dspreg.contrast(rows["DSPReg"], rows["ERM"])
        print(found.difference, found.low, found.high, found.verdict("DSPReg", "ERM"))

    Args:
        first: The row that counts as plus.
        second: The row that counts as minus, of the same data set.
        targets: Only these (default: all that have pairs).

    Raises:
        ConfigError: They are of different data sets, or no trial has both on the same target.
    """
    if first.dataset != second.dataset:
        raise ConfigError(
            f"{first.label} is of {first.dataset}, {second.label} of {second.dataset}; wanted one data set"
        )
    chosen = None if targets is None else set(targets)
    pairs = first.pair_with(second)
    return contrast_differences(
        [a - b for a, b in both] for target, both in pairs.items() if chosen is None or target in chosen
    )


def contrast_differences(differences: Iterable[Sequence[float]]) -> Contrast:
    """Of the differences of every target, one per trial, as shares."""
    targets = [[100 * d for d in each] for each in differences if len(each)]
    if not targets:
        raise ConfigError("no trial has both methods on the same target; a contrast needs pairs")
    means = [sum(each) / len(each) for each in targets]
    centre = sum(means) / len(means)
    freedom, pairs = sum(len(each) - 1 for each in targets), sum(map(len, targets))
    if not freedom:
        return Contrast(centre, None, None, None, 0, pairs)
    spread = sum((d - m) ** 2 for each, m in zip(targets, means, strict=True) for d in each) / freedom
    error = math.sqrt(spread * sum(1 / len(each) for each in targets)) / len(targets)
    half = quantile(0.975, freedom) * error
    return Contrast(centre, error, centre - half, centre + half, freedom, pairs)


def contrast_table(found: Sequence[SelectedRow], first: str, second: str) -> Table:
    """One row for each data set that has both, and one for all targets together."""
    one, two = _find_rows(found, first), _find_rows(found, second)
    differences: dict[str, list[list[float]]] = {}
    notes = [
        "paired by trial; ± and interval by the spread within targets, pooled",
        f"{EQUAL}: the smallest margin that the difference is shown to lie within, by two one-sided tests at 5 %",
    ]
    for dataset in [name for name in one if name in two]:
        a, b = one[dataset], two[dataset]
        differences[dataset] = [[x - y for x, y in both] for both in a.pair_with(b).values()]
        if len(differences[dataset]) < len(a.domains):
            notes.append(f"{dataset}: {len(differences[dataset])} of {len(a.domains)} targets have pairs")
        if a.label != a.algorithm or b.label != b.algorithm:
            notes.append(f"{dataset}: {a.label} against {b.label}; more than the method may differ")
    everything = [each for targets in differences.values() for each in targets]
    if not everything:
        raise ConfigError(f"no trial has {first} and {second} on the same target; a contrast needs pairs")
    rows = [Row(name, "ours", _cells(contrast_differences(d), first, second)) for name, d in differences.items() if d]
    if len(rows) > 1:
        rows.append(Row("all targets", "ours", _cells(contrast_differences(everything), first, second)))
        notes.append("the last row weighs every target of every data set alike")
    title = f"{first} − {second}, in percentage points"
    return Table("Contrasts", title, found[0].rule, (*COLUMNS[:3], EQUAL, *COLUMNS[3:]), tuple(rows), tuple(notes))


def _find_rows(found: Sequence[SelectedRow], name: str) -> dict[str, SelectedRow]:
    """By data set: the row of this label, or the only one of this algorithm."""
    chosen: dict[str, SelectedRow] = {}
    for each in found:
        if name in (each.label, each.algorithm) and (each.dataset not in chosen or each.label == name):
            chosen[each.dataset] = each
    labels = [each.label for each in found]
    if not chosen:
        raise ConfigError(
            f"no runs of {name!r}.{did_you_mean(name, labels)} There are: {', '.join(sorted(set(labels)))}"
        )
    for each in found:
        taken = chosen.get(each.dataset)
        if taken and each.algorithm == name and taken is not each and taken.label != name:
            raise ConfigError(
                f"{name!r} has several rows on {each.dataset}: {taken.label!r} and {each.label!r}; name one"
            )
    return chosen


def _cells(found: Contrast, first: str, second: str) -> tuple[Cell, ...]:
    why = "" if found.low is not None else "no target has two pairs"
    return (
        Cell(value=found.difference, error=found.error, signed=True),
        Cell(value=found.low, signed=True, reason=why),
        Cell(value=found.high, signed=True, reason=why),
        Cell(value=found.equal_within, decimals=2, reason=why),
        Cell(text=str(found.pairs), found=found.pairs),
        Cell(text=found.verdict(first, second)),
    )
