"""The one value that all formats are made from: a table of cells."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dspreg.runs.status import RunStatus


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A number in per cent with its error, or a text, or the reason why there is neither."""

    value: float | None = None
    error: float | None = None
    found: int | None = None  # trials that it is the mean of
    expected: int | None = None
    signed: bool = False
    decimals: int = 1  # printed; files have all
    text: str = ""
    reason: str = ""

    def format(self, between: str = " ± ") -> str:
        """For people, to few decimals. Without a number it is empty; the format marks its reason."""
        if self.value is None:
            return self.text
        number = format_with_sign(self.value, self.decimals) if self.signed else f"{self.value:.{self.decimals}f}"
        error = "" if self.error is None else f"{between}{self.error:.{self.decimals}f}"
        partly = self.found is not None and self.expected is not None and self.found < self.expected
        trials = f" ({self.found}/{self.expected})" if partly else ""
        text = f" {self.text}" if self.text else ""
        return f"{number}{error}{trials}{text}"


def format_with_sign(value: float, decimals: int) -> str:
    """+0.5 or -0.5, and 0.0 for what rounds to it."""
    text = f"{value:+.{decimals}f}"
    return text if math.isnan(value) or float(text) else text[1:]


@dataclass(frozen=True)
class Row:
    label: str
    source: str  # "ours", "paper" or "difference"
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Table:
    """Every row has a cell for every column."""

    name: str  # the data set, "Averages" or "Contrasts"
    title: str
    selection: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    def _repr_html_(self) -> str:
        from dspreg.io.notebook import list_html, table_html

        reasons = self.reasons()
        rows = [
            (
                row.label if row.source == "ours" else f"\N{EM SPACE}{row.source}",
                *(f"– [{reasons.index(c.reason) + 1}]" if c.reason else c.format() for c in row.cells),
            )
            for row in self.rows
        ]
        notes = [*(f"[{n}] {reason}" for n, reason in enumerate(reasons, 1)), *self.notes]
        return table_html(["", *self.columns], rows, title=self.title) + list_html(notes)

    def reasons(self) -> list[str]:
        """Of empty cells, each once; what formats number them by."""
        return list(dict.fromkeys(cell.reason for row in self.rows for cell in row.cells if cell.reason))


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """In per cent; the error is DomainBed's, population standard deviation / √k."""
    return 100 * float(np.mean(values)), 100 * float(np.std(np.array(values) / np.sqrt(len(values))))


def score(values: Sequence[float], expected: int, reasons: Iterable[str]) -> Cell:
    """Of the accuracies of all trials that have one; the reasons are those of the others."""
    if not values:
        return Cell(found=0, expected=expected, reason="; ".join(dict.fromkeys(reasons)) or RunStatus.NOT_STARTED.value)
    mean, error = mean_and_error(values)
    spread = error if len(values) > 1 else None  # unknown; the formula would say 0
    return Cell(value=mean, error=spread, found=len(values), expected=expected)


def mean(cells: Sequence[Cell]) -> Cell:
    """Of unrounded means; none where one is missing, for a mean over some domains is another number."""
    values = [cell.value for cell in cells if cell.value is not None]
    if len(values) < len(cells) or not cells:
        return Cell(reason="a part of it is missing")
    trials = [(cell.found, cell.expected) for cell in cells if cell.found is not None and cell.expected is not None]
    found, expected = min(trials, default=(None, None), key=lambda each: each[0] - each[1])
    return Cell(value=sum(values) / len(values), found=found, expected=expected)


def difference(ours: Cell, theirs: Cell) -> Cell:
    if ours.value is None or theirs.value is None or math.isnan(ours.value):
        return Cell()
    return Cell(value=ours.value - theirs.value, signed=True)
