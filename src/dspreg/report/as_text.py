"""A table for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from dspreg.columns import aligned
from dspreg.names import shown
from dspreg.report.cells import Cell, Table


def text(table: Table) -> str:
    return "\n".join(_lines(table)) + "\n"


def _lines(table: Table) -> Iterator[str]:
    reasons = table.reasons()
    yield shown(table.title)
    yield ""
    rows = [["", *table.columns]]
    for row in table.rows:
        label = row.label if row.source == "ours" else f"  {row.source}"
        rows.append([label, *(_shown(cell, reasons) for cell in row.cells)])
    yield from aligned([[shown(cell) for cell in row] for row in rows])
    yield ""
    yield from (shown(f"[{n}] {reason}") for n, reason in enumerate(reasons, 1))
    yield from map(shown, table.notes)


def _shown(cell: Cell, reasons: list[str]) -> str:
    return f"– [{reasons.index(cell.reason) + 1}]" if cell.reason else cell.shown()
