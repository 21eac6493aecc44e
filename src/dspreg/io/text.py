"""Text for people: names from outside made harmless, columns, lists, and what a mistyped name was meant to be."""

from __future__ import annotations

import difflib
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

HIDDEN = {"Cc", "Cs", "Zl", "Zp"}  # control characters, halves of characters, line and paragraph separators
TURNING = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"  # writing direction
FORMULA = ("=", "+", "-", "@", "\t", "\r")
LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", "–": "--", "±": r"$\pm$", "−": "$-$", "√": r"$\surd$", "≥": r"$\geq$", "≤": r"$\leq$",
    "→": r"$\to$", "←": r"$\leftarrow$", "×": r"$\times$", "·": r"$\cdot$", "≈": r"$\approx$", "∞": r"$\infty$",
    "²": r"$^2$", "³": r"$^3$", "µ": r"$\mu$",
}  # fmt: skip
GREEK = [  # from α on; LaTeX has no omicron
    "alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu", "nu", "xi",
    None, "pi", "rho", "varsigma", "sigma", "tau", "upsilon", "phi", "chi", "psi", "omega",
]  # fmt: skip
LATEX |= {chr(0x3B1 + n): rf"$\{name}$" for n, name in enumerate(GREEK) if name}
LIGATURES = re.compile("(?<=-)(?=-)|(?<=')(?=')|(?<=`)(?=`)|(?<=,)(?=,)|(?<=[?!])(?=`)")  # one sign drawn for two

# Escaping.


def escape_terminal(text: str) -> str:
    """For a terminal: what would move its cursor, change its colours or turn the line round, as an escape.

    Spaces of all kinds and joined letters stay: they are in ordinary file names.
    """
    if text.isascii() and text.isprintable():  # nearly all are, and pages hold megabytes of it
        return text
    return "".join(_as_escape(c) if unicodedata.category(c) in HIDDEN or c in TURNING else c for c in text)


def escape_csv(text: str) -> str:
    """For a CSV file: as for a terminal, and with an apostrophe before what a spreadsheet would take for a formula.

    Only for text. A number such as -0.5 is to stay a number.
    """
    return f"'{escape_terminal(text)}" if text.startswith(FORMULA) else escape_terminal(text)


def escape_markdown(text: str) -> str:
    """Names may hold what markdown or HTML would take for its own."""
    return re.sub(r"([\\`*_{}\[\]<>|#~&])", r"\\\1", escape_terminal(text))


def escape_latex(text: str) -> str:
    """Text that LaTeX sets as it is: pdfLaTeX knows Latin letters, other engines all that their font has."""
    composed = unicodedata.normalize("NFC", escape_terminal(text))  # pdfLaTeX refuses é as two characters, as on macOS
    return "{}".join("".join(LATEX.get(c, c) for c in part) for part in LIGATURES.split(composed))


def _as_escape(c: str) -> str:
    return c.encode("unicode_escape").decode()


# Layout.


def align_columns(rows: Sequence[Sequence[str]], left: int = 1) -> Iterator[str]:
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


def join_few(names: Sequence[str], most: int = 5) -> str:
    """The first names, and how many more there are: `"a, b, c and 40 more"`."""
    first = ", ".join(names[:most])
    return first if len(names) <= most else f"{first} and {len(names) - most:,} more"


def plural(count: int, one: str, many: str = "") -> str:
    """`"1 image"`, `"2,048 images"`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


# Names.


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


def _bare(name: str) -> str:
    return "".join(c for c in name.casefold() if c.isalnum())
