"""Names from outside, such as of files and classes, made harmless where they are shown."""

from __future__ import annotations

import unicodedata

HIDDEN = {"Cc", "Cs", "Zl", "Zp"}  # control characters, halves of characters, line and paragraph separators
TURNING = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"  # writing direction
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def shown(text: str) -> str:
    """For a terminal: what would move its cursor, change its colours or turn the line round, as an escape.

    Spaces of all kinds and joined letters stay: they are in ordinary file names.
    """
    return "".join(_escaped(c) if unicodedata.category(c) in HIDDEN or c in TURNING else c for c in text)


def cell(text: str) -> str:
    """For a CSV file: as `shown`, and with an apostrophe before what a spreadsheet would take for a formula.

    Only for text. A number such as -0.5 is to stay a number.
    """
    return f"'{shown(text)}" if text.startswith(FORMULA) else shown(text)


def _escaped(c: str) -> str:
    return c.encode("unicode_escape").decode()
