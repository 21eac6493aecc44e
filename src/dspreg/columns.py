"""Aligned columns for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def aligned(rows: Sequence[Sequence[str]], left: int = 1) -> Iterator[str]:
    """Lines of columns two spaces apart: the first `left` from the left, the others, numbers mostly, from the right."""
    from rich.cells import cell_len  # as wide as a terminal shows it: 漢 takes two places

    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            text + room if i < left else room + text
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
            for room in [" " * (width - cell_len(text))]
        ]
        yield "  ".join(cells).rstrip()
