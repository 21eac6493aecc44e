"""The paper's figures as pictures, and its tables as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dspreg.io.atomic_files import make_folder, write_output
from dspreg.io.html import png
from dspreg.paper.item import Item
from dspreg.reporting.table import Table
from dspreg.sensitivity import Profile
from dspreg.sensitivity.plots import POSITIONS, draw_panels, largest_tensor, panels_of, plain

OURS, PAPERS = "#c2410c", "#475569"


def save_figure(figure: Figure, folder: str | Path, name: str) -> Path:
    make_folder(Path(folder))
    path = Path(folder) / f"{name}.png"
    write_output(path, png(figure))
    return path


def draw_curve(item: Item, table: Table) -> Figure:
    """Mean accuracy along T or λ, one line for each engine, and the paper's full method where its settings are."""
    figure = Figure(figsize=(5.6, 4.0), layout="constrained")
    axes = figure.subplots()
    for line, points in _lines(item, table).items():
        x_values, y_values, errors = zip(*points, strict=True)
        axes.errorbar(x_values, y_values, yerr=errors, fmt="o-", capsize=3, label=line)
    assert item.best is not None
    x, accuracy = item.best
    if item.as_published:
        axes.plot([x], [accuracy], "*", ms=13, mfc="none", mec=PAPERS, label=f"paper: {accuracy}")
    else:  # its accuracy is another scale's, and so would be the axis
        axes.axvline(x, ls=":", color=PAPERS, label=f"paper's choice; {accuracy} with a ResNet-50 on PACS")
    low, high = axes.get_ylim()
    middle = (low + high) / 2
    axes.set_ylim(min(low, middle - 1), max(high, middle + 1))  # a tenth of a point is not to fill the picture
    every = sorted({variant.x for variant in item.variants if variant.x is not None})
    if every[-1] / every[0] >= 100:
        axes.set_xscale("log")
    axes.set_xticks(every, [f"{each:g}" for each in every])
    axes.set_xticks([], minor=True)
    axes.set_xlabel(item.axis)
    axes.set_ylabel("mean accuracy over targets, %")
    axes.set_title(title_of(item), fontsize=9)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=8)
    return figure


def _lines(item: Item, table: Table) -> dict[str, list[tuple[float, float, float]]]:
    """x, mean and error of every variant that has one; variants run under several conditions are on a line for each."""
    at = table.columns.index("mean")
    found: dict[str, list[tuple[float, float, float]]] = {}
    for variant in item.variants:
        for row in table.rows:
            conditions = row.label.removeprefix(variant.label)
            mine = row.source == "ours" and row.label.startswith(variant.label) and conditions[:2] in ("", " [")
            cell = row.cells[at]
            if mine and cell.value is not None and variant.x is not None:
                line = ", ".join(filter(None, ("ours", variant.line, conditions.strip())))
                found.setdefault(line, []).append((variant.x, cell.value, cell.error or 0.0))
    return found


def draw_dots(item: Item, table: Table, column: str, label: str) -> Figure:
    """One column of a table: a row for each variant, ours with its error, the paper's hollow."""
    at, names = table.columns.index(column), list(dict.fromkeys(row.label for row in table.rows))
    ratio = item.kind == "overhead"  # the same on every machine, or so one hopes
    apart = not item.as_published and not ratio and any(row.source == "paper" for row in table.rows)
    figure = Figure(figsize=(9.0 if apart else 6.4, 1.4 + 0.28 * len(names)), layout="constrained")
    places = list(figure.subplots(1, 1 + apart, sharey=True, squeeze=False)[0])
    for source, style, axes in (("ours", {}, places[0]), ("paper", {"mfc": "none"}, places[-1])):
        found = [(names.index(row.label), row.cells[at]) for row in table.rows if row.source == source]
        there = [(y, cell.value, cell.error or 0.0) for y, cell in found if cell.value is not None]
        colour = OURS if source == "ours" else PAPERS
        if there:
            y, values, errors = zip(*there, strict=True)
            axes.errorbar(values, y, xerr=errors, fmt="o", color=colour, label=source, **style)
    for axes in places:
        axes.set_xlabel(label)
        axes.grid(axis="x", alpha=0.25)
    if apart:
        for axes, source in zip(places, ("ours", "paper"), strict=True):
            axes.set_title(source, fontsize=9)
        _as_wide(places)
    elif places[0].get_legend_handles_labels()[0]:
        places[0].legend(frameon=False, fontsize=8)
    places[0].set_yticks(range(len(names)), [plain(name) for name in names], fontsize=8)
    places[0].set_ylim(len(names) - 0.4, -0.6)
    figure.suptitle(title_of(item), fontsize=9)
    return figure


def _as_wide(places: Sequence[Axes]) -> None:
    """A percentage point is as wide in all, and no tenth of one fills a picture."""
    limits = [axes.get_xlim() for axes in places]
    half = max(2.0, *(high - low for low, high in limits)) / 2
    for axes, (low, high) in zip(places, limits, strict=True):
        axes.set_xlim((low + high) / 2 - half, (low + high) / 2 + half)


def draw_heat_maps(profiles: Mapping[str, Profile], layer: str, title: str = "") -> Figure:
    """Columns are times, rows c and null; one scale for all."""
    first = next(iter(profiles.values()))
    name = largest_tensor(first, layer)
    figure = Figure(figsize=(1.0 + 3.0 * len(profiles), 6.6), layout="constrained")
    grid = figure.subplots(2, len(profiles), squeeze=False)
    for column, (when, profile) in zip(grid.T, profiles.items(), strict=True):
        image = draw_panels(list(column), panels_of(profile, name, f", {when}"), name, first.bound)
    count = first.c[name].numel()
    subtitle = plain(f"{name}: {min(count, POSITIONS):,} of {count:,} parameters")
    figure.suptitle(f"{title}\n{subtitle}" if title else subtitle, fontsize=10)
    figure.colorbar(image, ax=figure.axes, shrink=0.8).set_label("0 all domains alike, √(D−1) one alone", fontsize=8)
    return figure


def title_of(item: Item) -> str:
    lines = [item.what]
    if not item.as_published:
        lines.append(f"not the paper's scale: {item.scale.name}, {', '.join(item.domains())}, {item.setting('model')}")
    return "\n".join(map(plain, lines))


def draw_item(item: Item, tables: Sequence[Table], folder: str | Path) -> Path | None:
    """The item's picture, if there is anything of ours to draw; maps are drawn from their profiles."""
    table = next(each for each in tables if each.name == item.name)
    column, label = ("mean", "mean accuracy, %") if item.kind != "overhead" else ("time, ×", "time of a step, in ERM's")
    at = table.columns.index(column)
    if all(row.cells[at].value is None for row in table.rows if row.source == "ours"):
        return None
    if item.best is not None:
        return save_figure(draw_curve(item, table), folder, item.name)
    return save_figure(draw_dots(item, table, column, label), folder, item.name)
