"""A table for a README or an issue."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from dspreg.names import shown
from dspreg.report.cells import Cell, Table


def markdown(table: Table) -> str:
    return "\n".join(_lines(table)) + "\n"


def _lines(table: Table) -> Iterator[str]:
    reasons = table.reasons()
    yield f"**{escaped(table.title)}**"
    yield ""
    yield _row(["", *map(escaped, table.columns)])
    yield _row(["---", *("---:" for _ in table.columns)])
    for row in table.rows:
        label = escaped(row.label) if row.source == "ours" else f"*{row.source}*"
        yield _row([label, *(_shown(cell, reasons) for cell in row.cells)])
    yield ""
    yield from (f"- \\[{n}\\] {escaped(reason)}" for n, reason in enumerate(reasons, 1))
    yield from (f"- {escaped(note)}" for note in table.notes)


def escaped(text: str) -> str:
    """Names may hold what markdown or HTML would take for its own."""
    return re.sub(r"([\\`*_{}\[\]<>|#~&])", r"\\\1", shown(text))


def _shown(cell: Cell, reasons: list[str]) -> str:
    return f"– \\[{reasons.index(cell.reason) + 1}\\]" if cell.reason else escaped(cell.shown())


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
