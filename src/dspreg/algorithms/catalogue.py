"""What there is, in words: one line per algorithm, or one algorithm in full."""

from __future__ import annotations

import inspect

import dspreg.algorithms as index
from dspreg.algorithms.base import Algorithm, options_of
from dspreg.algorithms.spec import algorithm_named


def listing() -> str:
    """One line per algorithm: name, the arrows it changes, what it does."""
    found = [c for name in sorted(index.__all__) if isinstance(c := getattr(index, name), type) and c is not Algorithm]
    rows = [(c.__name__, ", ".join(c.arrows()), summary(c)) for c in found if issubclass(c, Algorithm)]
    wide, arrow = (max(len(row[i]) for row in rows) for i in (0, 1))
    return "\n".join(f"{name:{wide}}  {changes:{arrow}}  {says}" for name, changes, says in rows)


def page(name: str) -> str:
    """One algorithm in full: its docstring, its options with defaults, and where search draws them from."""
    cls = algorithm_named(name)
    lines = [f"{name}: changes {', '.join(cls.arrows())}", "", inspect.getdoc(cls) or ""]
    options = options_of(cls)
    if options:
        lines += ["", "options and defaults:"]
        wide = max(map(len, options))
        for option, parameter in options.items():
            prior = f"   drawn from {cls.space[option]}" if option in cls.space else ""
            lines.append(f"  {option:{wide}} = {parameter.default!r}{prior}")
    return "\n".join(lines)


def summary(cls: type[Algorithm]) -> str:
    return (inspect.getdoc(cls) or "").split("\n")[0]
