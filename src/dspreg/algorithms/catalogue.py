"""What there is, in words: one line per algorithm, or one algorithm in full."""

from __future__ import annotations

import inspect
import json
from importlib.resources import files
from typing import Any, cast

from dspreg.algorithms.base import Algorithm, options_of
from dspreg.algorithms.compatibility import arrows_of
from dspreg.algorithms.registry import algorithms, find_algorithm


def listing() -> str:
    """One line per algorithm: name, cost, the arrows it changes, what it does and which options it has."""
    measured = costs()
    rows = [("", "cost", "changes", "")]
    for name, cls in algorithms().items():
        cost = measured["of_erm"].get(name)
        says = " ".join([summary(cls), *([f"[{', '.join(options_of(cls))}]"] if options_of(cls) else [])])
        rows.append((name, f"{cost['median']:.2f}×" if cost else "?", ", ".join(arrows_of(cls)), says))
    wide, number, arrow = (max(len(row[i]) for row in rows) for i in range(3))
    lines = [f"{n:{wide}}  {c:>{number}}  {a:{arrow}}  {says}".rstrip() for n, c, a, says in rows]
    aside = [name for name, cls in algorithms(experimental=True).items() if cls.experimental]
    lines += ["", f"experimental, and in no table: {', '.join(aside)}"]
    return "\n".join([*lines, "", f"cost: a step of {measured['case']}, in ERM steps ({measured['command']})"])


def page(name: str) -> str:
    """One algorithm in full: its docstring, its options with defaults, where search draws them from, and its cost."""
    cls = find_algorithm(name)
    lines = [f"{name}: changes {', '.join(arrows_of(cls))}", "", inspect.getdoc(cls) or ""]
    options = options_of(cls)
    if options:
        lines += ["", "options and defaults:"]
        wide = max(map(len, options))
        for option, parameter in options.items():
            prior = f"   drawn from {cls.space[option]}" if option in cls.space else ""
            less = "smaller" if isinstance(parameter.default, float) else "shorter"  # a decay, or a number of steps
            short = f"   {less} in a run of fewer than 5,001 steps" if option in cls.step_options else ""
            lines.append(f"  {option:{wide}} = {parameter.default!r}{prior}{short}")
    measured = costs()
    if cls.__name__ in measured["of_erm"] and cls.__module__.startswith("dspreg."):
        cost = measured["of_erm"][cls.__name__]
        between = f"{cost['median']:.2f}× ({cost['low']:.2f}–{cost['high']:.2f})"
        lines += ["", f"cost: a step of {measured['case']} is {between} that of ERM ({measured['command']})"]
    return "\n".join(lines)


def costs() -> dict[str, Any]:
    """What bench/algorithms.py measured, as it wrote it."""
    return cast(dict[str, Any], json.loads((files("dspreg.algorithms") / "costs.json").read_text(encoding="utf-8")))


def summary(cls: type[Algorithm]) -> str:
    return (inspect.getdoc(cls) or "").split("\n")[0]
