"""Table and picture of bench/scale.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

COLOURS = ("#0369a1", "#c2410c", "#15803d", "#a21caf", "#525252", "#b45309")
MARKERS = "os^Dvp"
Series = dict[str, dict[float, float]]  # what → size → value


def by_name(points: Sequence[Mapping[str, Any]], value: str) -> Series:
    """Of what was measured twice the last."""
    found: Series = {}
    for each in points:
        if value in each:
            found.setdefault(each["what"], {})[each["size"]] = each[value]
    return {what: dict(sorted(sizes.items())) for what, sizes in found.items()}


def fit_exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Slope of the straight line on log axes through the largest half of the sizes, by least squares."""
    last = len(sizes) // 2
    return float(np.polyfit(np.log(sizes[last:]), np.log(values[last:]), 1)[0])


def print_table(points: Sequence[Mapping[str, Any]], axis: str) -> None:
    console = Console(width=150)
    for value in ("seconds", "megabytes"):
        series = by_name(points, value)
        if not series:
            continue
        sizes = sorted({size for each in series.values() for size in each})
        table = Table(value, *(f"{size:,.0f}" for size in sizes), "exponent", title=axis)
        for what, found in series.items():
            cells = (f"{found[size]:.3g}" if size in found else "" for size in sizes)
            table.add_row(what, *cells, f"{fit_exponent([*found], [*found.values()]):.2f}" if len(found) > 2 else "")
        console.print(table)


def draw(points: Sequence[Mapping[str, Any]], axis: str, path: Path) -> None:
    """Seconds, and beside them megabytes where they were measured."""
    panels = [(label, found) for key, label in (("seconds", "CPU seconds"), ("megabytes", "megabytes at the peak"))
              if (found := by_name(points, key))]  # fmt: skip
    figure = Figure(figsize=(6.8 * len(panels), 4.6), layout="constrained")
    for place, (label, series) in enumerate(panels, 1):
        _panel(figure.add_subplot(1, len(panels), place), series, axis, label)
    figure.savefig(path, dpi=110)


def _panel(axes: Axes, series: Series, axis: str, label: str) -> None:
    for (what, found), colour, marker in zip(series.items(), COLOURS, MARKERS, strict=False):
        sizes, values = [*found], [*found.values()]
        power = f"  (∝ n^{fit_exponent(sizes, values):.2f})" if len(sizes) > 2 else ""
        axes.loglog(sizes, values, color=colour, marker=marker, ms=5, lw=1.6, label=what + power)
    axes.set_xlabel(axis)
    axes.set_ylabel(label)
    axes.grid(True, which="major", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
