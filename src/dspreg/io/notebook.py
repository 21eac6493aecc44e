"""Pieces of HTML for cells of a Jupyter notebook, which puts its own style around them.

A `_repr_html_` joins them. All text is escaped: names of data sets and methods may come from a stranger's file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from dspreg.io.html import inline, png
from dspreg.io.text import escape_terminal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NUMBER = ' style="text-align: right; font-variant-numeric: tabular-nums"'
TEXT = ' style="text-align: left"'


def text_html(text: str) -> str:
    return f"<p>{_clean(text)}</p>\n"


def table_html(head: Sequence[str], rows: Iterable[Sequence[object]], *, left: int = 1, title: str = "") -> str:
    """A table whose first `left` columns are text; the others are numbers, which stand on the right."""
    aligned = [TEXT if column < left else NUMBER for column in range(len(head))]
    caption = f"<p><b>{_clean(title)}</b></p>\n" if title else ""
    names = "".join(f"<th{how}>{_clean(name)}</th>" for how, name in zip(aligned, head, strict=True))
    lines = "".join(
        f"<tr>{''.join(f'<td{how}>{_clean(str(cell))}</td>' for how, cell in zip(aligned, row, strict=True))}</tr>\n"
        for row in rows
    )
    return f"{caption}<table><thead><tr>{names}</tr></thead>\n<tbody>\n{lines}</tbody></table>\n"


def list_html(items: Iterable[str]) -> str:
    lines = "".join(f"<li>{_clean(item)}</li>\n" for item in items)
    return f"<ul>\n{lines}</ul>\n" if lines else ""


def figure_html(figure: Figure, caption: str) -> str:
    return f'<img alt="{_clean(caption)}" style="max-width: 100%" src="data:image/png;base64,{inline(png(figure))}">'


def _clean(text: str) -> str:
    return escape(escape_terminal(text))
