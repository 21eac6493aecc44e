"""Lists of names in messages: some of them, and what was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


def few(names: Sequence[str], most: int = 5) -> str:
    """The first names, and how many more there are: `"a, b, c and 40 more"`."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most:,} more"


def plural(count: int, one: str, many: str = "") -> str:
    """`"1 image"`, `"2,048 images"`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` was probably meant to be: the same but for case and punctuation, or a typing error."""
    known = list(known)
    same = [k for k in known if _bare(k) == _bare(name)]
    return next(iter(same or difflib.get_close_matches(name, known, n=1, cutoff=0.7)), None)


def _bare(name: str) -> str:
    return "".join(c for c in name.casefold() if c.isalnum())
