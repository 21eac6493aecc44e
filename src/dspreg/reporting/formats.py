"""One table value, five ways to write it; the HTML page is the sixth, with more than tables in it."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from dspreg.io.text import align_columns, escape_csv, escape_latex, escape_markdown, escape_terminal
from dspreg.reporting.table import Cell, Table

CSV_COLUMNS = (
    "table", "selection", "row", "source", "column", "value", "error", "found", "expected", "text", "reason",
)  # fmt: skip
LAYOUT = ("signed", "decimals")  # how people see a cell, not what it is


def to_text(tables: Sequence[Table]) -> str:
    """For a terminal."""
    return _join(tables, _text_lines)


def to_markdown(tables: Sequence[Table]) -> str:
    """For a README or an issue."""
    return _join(tables, _markdown_lines)


def to_latex(tables: Sequence[Table]) -> str:
    """For a paper: a table environment each, names escaped, nothing cut; needs `\\usepackage{booktabs}`."""
    return _join(tables, _latex_lines)


def to_csv(tables: Sequence[Table]) -> str:
    """For a spreadsheet or pandas: all tables as one file, a cell a line, numbers in full; what is missing is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for table in tables:
        for row in table.rows:
            for column, each in zip(table.columns, row.cells, strict=True):
                names = [escape_csv(n) for n in (table.name, table.selection, row.label, row.source, column)]
                numbers = ["" if n is None else repr(n) for n in (each.value, each.error, each.found, each.expected)]
                writer.writerow([*names, *numbers, escape_csv(each.text), escape_csv(each.reason)])
    return out.getvalue()


def to_json(tables: Sequence[Table]) -> str:
    """For programs: strict JSON, numbers in full, NaN as null."""
    return json.dumps({"tables": [_table_json(each) for each in tables]}, indent=1, allow_nan=False) + "\n"


FORMATS: dict[str, Callable[[Sequence[Table]], str]] = {
    "text": to_text,
    "markdown": to_markdown,
    "latex": to_latex,
    "csv": to_csv,
    "json": to_json,
}


def _join(tables: Sequence[Table], lines: Callable[[Table], Iterator[str]]) -> str:
    return "\n".join("\n".join(lines(table)) + "\n" for table in tables)


def _text_lines(table: Table) -> Iterator[str]:
    reasons = table.reasons()

    def text(cell: Cell) -> str:
        return f"– [{reasons.index(cell.reason) + 1}]" if cell.reason else cell.format()

    yield escape_terminal(table.title)
    yield ""
    rows = [["", *table.columns]]
    for row in table.rows:
        label = row.label if row.source == "ours" else f"  {row.source}"
        rows.append([label, *map(text, row.cells)])
    yield from align_columns([[escape_terminal(cell) for cell in row] for row in rows])
    yield ""
    yield from (escape_terminal(f"[{n}] {reason}") for n, reason in enumerate(reasons, 1))
    yield from map(escape_terminal, table.notes)


def _markdown_lines(table: Table) -> Iterator[str]:
    reasons = table.reasons()

    def text(cell: Cell) -> str:
        return f"– \\[{reasons.index(cell.reason) + 1}\\]" if cell.reason else escape_markdown(cell.format())

    yield f"**{escape_markdown(table.title)}**"
    yield ""
    yield _markdown_row(["", *map(escape_markdown, table.columns)])
    yield _markdown_row(["---", *("---:" for _ in table.columns)])
    for row in table.rows:
        label = escape_markdown(row.label) if row.source == "ours" else f"*{row.source}*"
        yield _markdown_row([label, *map(text, row.cells)])
    yield ""
    yield from (f"- \\[{n}\\] {escape_markdown(reason)}" for n, reason in enumerate(reasons, 1))
    yield from (f"- {escape_markdown(note)}" for note in table.notes)


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _latex_lines(table: Table) -> Iterator[str]:
    reasons = table.reasons()

    def text(cell: Cell) -> str:
        if cell.reason:
            return f"-- [{reasons.index(cell.reason) + 1}]"
        number = escape_latex(cell.format())
        return f"${number[0]}${number[1:]}" if cell.signed and number[:1] in ("+", "-") else number

    yield r"\begin{table}"
    yield r"\centering"
    yield rf"\caption{{{escape_latex(table.title)}}}"
    yield rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}"
    yield r"\toprule"
    yield _latex_row(["", *map(escape_latex, table.columns)])
    yield r"\midrule"
    for row in table.rows:
        label = escape_latex(row.label) if row.source == "ours" else rf"\quad {row.source}"
        yield _latex_row([label, *map(text, row.cells)])
    yield r"\bottomrule"
    yield r"\end{tabular}"
    notes = [f"[{n}] {reason}" for n, reason in enumerate(reasons, 1)] + list(table.notes)
    yield from (rf"\par\footnotesize {escape_latex(note)}" for note in notes)
    yield r"\end{table}"


def _latex_row(cells: Sequence[str]) -> str:
    text = " & ".join(cells) + r" \\"
    return "{}" + text if text.startswith(("[", "*")) else text  # the line before would take it for its own option


def _table_json(table: Table) -> dict[str, Any]:
    rows = [
        {
            "row": row.label,
            "source": row.source,
            "cells": {name: _cell_json(cell) for name, cell in zip(table.columns, row.cells, strict=True)},
        }
        for row in table.rows
    ]
    facts = {name: getattr(table, name) for name in ("name", "title", "selection", "columns", "notes")}
    return facts | {"rows": rows}


def _cell_json(cell: Cell) -> dict[str, Any]:
    """Without what it does not have; a number that is not one stays, as null."""
    found = {name: value for name, value in asdict(cell).items() if value not in (None, "") and name not in LAYOUT}
    return {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in found.items()}
