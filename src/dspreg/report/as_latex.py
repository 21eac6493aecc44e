"""A table for a paper: booktabs, names escaped, nothing cut."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence

from dspreg.names import shown
from dspreg.report.cells import Cell, Table

SPECIAL = {
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
SPECIAL |= {chr(0x3B1 + n): rf"$\{name}$" for n, name in enumerate(GREEK) if name}
JOINED = re.compile("(?<=-)(?=-)|(?<=')(?=')|(?<=`)(?=`)|(?<=,)(?=,)|(?<=[?!])(?=`)")  # fonts draw one sign for two


def latex(table: Table) -> str:
    """One table environment; the document needs `\\usepackage{booktabs}`."""
    return "\n".join(_lines(table)) + "\n"


def _lines(table: Table) -> Iterator[str]:
    reasons = table.reasons()
    yield r"\begin{table}"
    yield r"\centering"
    yield rf"\caption{{{escaped(table.title)}}}"
    yield rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}"
    yield r"\toprule"
    yield _row(["", *map(escaped, table.columns)])
    yield r"\midrule"
    for row in table.rows:
        label = escaped(row.label) if row.source == "ours" else rf"\quad {row.source}"
        yield _row([label, *(_shown(cell, reasons) for cell in row.cells)])
    yield r"\bottomrule"
    yield r"\end{tabular}"
    notes = [f"[{n}] {reason}" for n, reason in enumerate(reasons, 1)] + list(table.notes)
    yield from (rf"\par\footnotesize {escaped(note)}" for note in notes)
    yield r"\end{table}"


def escaped(text: str) -> str:
    """Text that LaTeX sets as it is: pdfLaTeX knows Latin letters, other engines all that their font has."""
    composed = unicodedata.normalize("NFC", shown(text))  # macOS writes é as two characters, which pdfLaTeX refuses
    return "{}".join("".join(SPECIAL.get(c, c) for c in part) for part in JOINED.split(composed))


def _shown(cell: Cell, reasons: list[str]) -> str:
    if cell.reason:
        return f"-- [{reasons.index(cell.reason) + 1}]"
    text = escaped(cell.shown())
    return f"${text[0]}${text[1:]}" if cell.signed and text[:1] in ("+", "-") else text


def _row(cells: Sequence[str]) -> str:
    text = " & ".join(cells) + r" \\"
    return "{}" + text if text.startswith(("[", "*")) else text  # the line before would take it for its own option
