"""Lists of names in messages."""

from __future__ import annotations

from collections.abc import Sequence


def few(names: Sequence[str], most: int = 5) -> str:
    """The first names, and how many more there are: `"a, b, c and 40 more"`."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most:,} more"


def plural(count: int, one: str, many: str = "") -> str:
    """`"1 image"`, `"2,048 images"`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
