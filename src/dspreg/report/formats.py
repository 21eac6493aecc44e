"""One table value, five ways to write it; `page` is the sixth, with more than tables in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dspreg.report.as_csv import comma_separated
from dspreg.report.as_json import as_json
from dspreg.report.as_latex import latex
from dspreg.report.as_markdown import markdown
from dspreg.report.as_text import text
from dspreg.report.cells import Table


def _one_by_one(write: Callable[[Table], str]) -> Callable[[Sequence[Table]], str]:
    return lambda tables: "\n".join(map(write, tables))


FORMATS: dict[str, Callable[[Sequence[Table]], str]] = {
    "text": _one_by_one(text),
    "markdown": _one_by_one(markdown),
    "latex": _one_by_one(latex),
    "csv": comma_separated,
    "json": as_json,
}
