"""Table and plot of bench/trajectory.py."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

ENGINES = (
    "exact", "finite_difference", "finite_difference(part=0.5)", "finite_difference(part=0.25)", "exact(part=0.5)",
    "exact(part=0.25)", "gauss_newton", "gauss_newton(part=0.5)", "gauss_newton(part=0.25)", "lookahead",
    "lookahead(radius=0.2*weight)", "lookahead(radius=20*weight)", "momentum",
)  # fmt: skip
TAKES_PLAIN = tuple(  # these start from g
    name for name in ENGINES if name.startswith(("exact(part", "gauss_newton(part", "lookahead"))
)
EVERY = {
    "exact": (2, 3, 4, 5, 10, 30),
    "finite_difference": (2, 3),
    "gauss_newton": (2, 3, 4),
    "lookahead": (5, 10, 30),
}
LAZY = {f"lazy({k}, {inner})": (k, inner) for inner, ks in EVERY.items() for k in ks}
TARGETS = ("exact", "large")


def windows_for(engine: str, rows: list[dict], target: str) -> list[list[float]]:
    """Cosine and norm ratio in every window that counts: of max(20, 2k) steps."""
    length = max(20, 2 * LAZY.get(engine, (1,))[0])
    rows = [r for r in rows if r["length"] == length and engine in r.get(target, ())]
    if target == "exact":  # every step in one window; for 60 steps in two
        return [r["exact"][engine] for r in rows if r["start"] % min(length, 30) == 0]
    return [r["large"][engine] for r in rows if r.get("large_at") is not None]


def cost(engine: str, steps: list[dict]) -> float:
    """In gradients: the median over steps, and for a lazy engine one of k."""
    if engine in LAZY:
        k, inner = LAZY[engine]
        return (k - 1 + cost(inner, steps)) / k
    found = [s["cpu"][engine] / s["cpu"]["plain"] for s in steps if engine in s.get("cpu", ())]
    return float(np.median(found)) + (engine in TAKES_PLAIN) if found else float("nan")


def print_table(out: Path) -> None:
    steps, rows = ([json.loads(line) for line in (out / n).open()] for n in ("steps.jsonl", "windows.jsonl"))
    console = Console(width=190)
    table = Table("engine", "gradients", "one step: cosine", "ratio", "to large batch", "ratio", "windows",
                  "summed: cosine", "ratio", "the first", "to large batch", "ratio")  # fmt: skip
    for engine in (*ENGINES, *LAZY):
        counted = windows_for(engine, rows, "exact")
        if not counted:
            continue
        cells = [f"{cost(engine, steps):.2f}"]
        for target in TARGETS:
            single = [s[target][engine] for s in steps if target in s and engine in s[target]]
            cells += quartiles(single)
        cells += [f"{len(counted)} × {max(20, 2 * LAZY.get(engine, (1,))[0])}", *quartiles(counted)]
        cells += ["{:.2f}, {:.2f}".format(*counted[0]), *quartiles(windows_for(engine, rows, "large"))]
        table.add_row(engine, *cells)
    console.print(table)
    console.print("Medians (quartiles). The rule: the cheapest with summed cosine ≥ 0.95 and ratio 0.8 to 1.25.")
    share = np.quantile([s["share"] for s in steps], (0, 0.5, 1))
    console.print(f"{len(steps)} steps; ‖exact part‖/‖g‖ from {share[0]:.1%} to {share[2]:.1%}, median {share[1]:.1%}")


def quartiles(pairs: list[list[float]]) -> list[str]:
    if not pairs:
        return ["–", "–"]
    return [f"{m:.3f} ({a:.2f}–{b:.2f})" for a, m, b in np.quantile(np.array(pairs), (0.25, 0.5, 0.75), axis=0).T]


def save_plot(out: Path, folder: Path) -> None:
    """Every window of every engine: cosine and norm ratio of its summed penalty part to exact's."""
    from matplotlib.figure import Figure

    rows = [json.loads(line) for line in (out / "windows.jsonl").open()]
    names = [name for name in (*ENGINES[1:], *LAZY) if windows_for(name, rows, "exact")]
    figure = Figure(figsize=(10, 0.32 * len(names) + 1.2), dpi=110, layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for y, name in enumerate(names):
        cosines, ratios = np.array(windows_for(name, rows, "exact")).T
        for axes, values in ((left, cosines), (right, ratios)):
            axes.plot(
                values, np.full(len(values), y), "o", color="#4a6fa5", alpha=0.45, markersize=5, markeredgewidth=0
            )
            axes.plot(np.median(values), y, "|", color="#1b2a41", markersize=14, mew=2)
    left.axvspan(0.95, 1.0, color="#7fb069", alpha=0.3, linewidth=0)
    right.axvspan(0.8, 1.25, color="#7fb069", alpha=0.3, linewidth=0)
    left.set(xlim=(-1, 1.02), xlabel="cosine to the summed exact part", yticks=range(len(names)), yticklabels=names)
    right.set(xscale="log", xlabel="ratio of norms")
    right.set_xticks([0.3, 1, 3, 10], ["0.3", "1", "3", "10"])
    right.minorticks_off()
    left.invert_yaxis()
    for axes in (left, right):
        axes.grid(axis="x", color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(length=0)
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "engines-windows.png")
