"""Names from outside: made harmless where they are shown, looked up, and what was probably meant if there is none."""

from __future__ import annotations

import difflib
import os
import pkgutil
import unicodedata
from collections.abc import Iterable
from typing import Any

from dspreg.errors import ConfigError

HIDDEN = {"Cc", "Cs", "Zl", "Zp"}  # control characters, halves of characters, line and paragraph separators
TURNING = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"  # writing direction
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def shown(text: str) -> str:
    """For a terminal: what would move its cursor, change its colours or turn the line round, as an escape.

    Spaces of all kinds and joined letters stay: they are in ordinary file names.
    """
    if text.isascii() and text.isprintable():  # nearly all are, and pages hold megabytes of it
        return text
    return "".join(_escaped(c) if unicodedata.category(c) in HIDDEN or c in TURNING else c for c in text)


def cell(text: str) -> str:
    """For a CSV file: as `shown`, and with an apostrophe before what a spreadsheet would take for a formula.

    Only for text. A number such as -0.5 is to stay a number.
    """
    return f"'{shown(text)}" if text.startswith(FORMULA) else shown(text)


def nearest(name: str, known: Iterable[str], cutoff: float = 0.5) -> str | None:
    """The known name that `name` was probably meant to be: the same but for case and punctuation, or a typing error."""
    known = list(known)
    same = [k for k in known if _bare(k) == _bare(name)]
    return next(iter(same or difflib.get_close_matches(name, known, 1, cutoff)), None)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """For a message: a sentence with a space before it, or nothing."""
    near = nearest(name, known)
    return f" Did you mean {near!r}?" if near else ""


def path_name(path: str | os.PathLike[str]) -> str:
    """The last part of a path, which a data set is called by. A link counts by its own name, not by where it leads."""
    return os.path.basename(os.path.abspath(path))


def is_import_path(text: str) -> bool:
    """`my_methods.LogitNorm`: two names or more, with dots between."""
    return "." in text and all(part.isidentifier() for part in text.split("."))


def imported(path: str) -> Any:
    """What an import path stands for."""
    try:
        return pkgutil.resolve_name(path)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{path!r}: no module {error.name!r}; is its folder on PYTHONPATH?") from error
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{path!r} can't be imported: {error}") from error


def _bare(name: str) -> str:
    return "".join(c for c in name.casefold() if c.isalnum())


def _escaped(c: str) -> str:
    return c.encode("unicode_escape").decode()
