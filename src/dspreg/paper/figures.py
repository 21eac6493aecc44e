"""The paper's figures as pictures, and its tables as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from dspreg.files import make_folder
from dspreg.paper.item import Item
from dspreg.report.cells import Cell, Table
from dspreg.sensitivity import Profile
from dspreg.sensitivity.figures import POSITIONS, draw_panels, largest_tensor, panels_of, plain

OURS, PAPERS = "#c2410c", "#475569"


def saved(figure: Figure, folder: str | Path, name: str) -> Path:
    make_folder(Path(folder))
    path = Path(folder) / f"{name}.png"
    figure.savefig(path, dpi=130)
    return path


def curve(item: Item, table: Table) -> Figure:
    """Mean accuracy along T or λ, one line for each engine, and the one point that the paper prints."""
    figure = Figure(figsize=(5.6, 4.0), layout="constrained")
    axes = figure.subplots()
    means = {row.label: row.cells[table.columns.index("mean")] for row in table.rows if row.source == "ours"}
    for line in dict.fromkeys(arm.line for arm in item.arms):
        arms = [arm for arm in item.arms if arm.line == line and arm.label in means]
        points = [(arm.x, means[arm.label].value) for arm in arms if means[arm.label].value is not None]
        axes.plot([x for x, _ in points], [y for _, y in points], "o-", label=f"ours{', ' if line else ''}{line}")  # type: ignore[arg-type]
    assert item.best is not None
    x, accuracy = item.best
    where = "PACS, ResNet-50" if not item.as_published else "PACS"
    axes.plot([x], [accuracy], "*", ms=13, mfc="none", mec=PAPERS, label=f"paper: {accuracy} ({where})")
    every = sorted({arm.x for arm in item.arms if arm.x is not None})
    if every[-1] / every[0] >= 100:
        axes.set_xscale("log")
    axes.set_xticks(every, [f"{each:g}" for each in every])
    axes.set_xticks([], minor=True)
    axes.set_xlabel(item.axis)
    axes.set_ylabel("mean accuracy over targets, %")
    axes.set_title(_title(item), fontsize=9)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=8)
    return figure


def dots(item: Item, table: Table, column: str, label: str) -> Figure:
    """One column of a table: a row for each arm, ours with its error, the paper's hollow."""
    at = table.columns.index(column)
    names = list(dict.fromkeys(row.label for row in table.rows))
    figure = Figure(figsize=(6.4, 1.3 + 0.28 * len(names)), layout="constrained")
    axes = figure.subplots()
    for source, style in (("ours", {"color": OURS}), ("paper", {"color": PAPERS, "mfc": "none"})):
        found = [(names.index(r.label), r.cells[at]) for r in table.rows if r.source == source]
        there = [(y, cell) for y, cell in found if cell.value is not None]
        if there:
            axes.errorbar(
                [_value(cell) for _, cell in there],
                [y for y, _ in there],
                xerr=[cell.error or 0.0 for _, cell in there],
                fmt="o",
                label=source,
                **style,  # type: ignore[arg-type]
            )
    axes.set_yticks(range(len(names)), [plain(name) for name in names], fontsize=8)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlabel(label)
    axes.set_title(_title(item), fontsize=9)
    axes.grid(axis="x", alpha=0.25)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8)
    return figure


def heat_maps(profiles: Mapping[str, Profile], layer: str) -> Figure:
    """Columns are times, rows c and null; one scale for all."""
    first = next(iter(profiles.values()))
    name = largest_tensor(first, layer)
    figure = Figure(figsize=(1.0 + 3.0 * len(profiles), 6.6), layout="constrained")
    grid = figure.subplots(2, len(profiles), squeeze=False)
    for column, (when, profile) in zip(grid.T, profiles.items(), strict=True):
        image = draw_panels(list(column), panels_of(profile, name, f", {when}"), name, first.bound)
    count = first.c[name].numel()
    figure.suptitle(plain(f"{name}: {min(count, POSITIONS):,} of {count:,} parameters"), fontsize=10)
    figure.colorbar(image, ax=figure.axes, shrink=0.8).set_label("0 all domains alike, √(D−1) one alone", fontsize=8)
    return figure


def _title(item: Item) -> str:
    scale = "" if item.as_published else f"\nnot the paper's scale: {item.scale.name}, {item.setting('model')}"
    return plain(f"{item.what}{scale}")


def _value(cell: Cell) -> float:
    assert cell.value is not None
    return cell.value


def drawn(item: Item, tables: Sequence[Table], folder: str | Path) -> Path:
    """The item's picture; maps are drawn from their profiles."""
    table = next(each for each in tables if each.name == item.name)
    if item.best is not None:
        return saved(curve(item, table), folder, item.name)
    column, label = ("mean", "mean accuracy, %") if item.kind != "overhead" else ("time, ×", "time of a step, in ERM's")
    return saved(dots(item, table, column, label), folder, item.name)
