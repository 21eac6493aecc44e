"""Tables and plots of bench/noise.py."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from rich.console import Console
from rich.table import Table

OF = ("loss", "fisher", "output")
TRUSTED = (0.8, 0.9)  # reliabilities to look for
COLUMNS = {  # of a table: what of a record, and how it is written
    "n": ("n", "d"), "estimator": ("estimator", "s"), "mean c": ("c", ".3f"), "null": ("null", ".3f"),
    "debiased": ("c_debiased", ".3f"), "> null": ("over", ".0%"), "> 95%": ("above", ".1%"), "alive": ("alive", ".0%"),
    "reliability": ("reliability", ".3f"), "full length": ("full", ".3f"), "with reference": ("agreement", ".3f"),
    "seconds": ("seconds", ".1f"),
}  # fmt: skip
STYLES: dict[str, dict[str, Any]] = {  # minibatch thin and hollow: it often lies on signed
    "persample": {"color": "#c2410c", "marker": "o", "lw": 1.8},
    "signed": {"color": "#0369a1", "marker": "s", "lw": 2.4},
    "signed-4": {"color": "#0d9488", "marker": "^", "lw": 1.8},
    "minibatch": {"color": "#a21caf", "marker": "D", "lw": 1.0, "mfc": "white"},
}
SOLID, DASHED = "-", (0, (3, 2))
Record = dict[str, Any]


def by_model(rows: Sequence[Record]) -> dict[str, list[Record]]:
    """The records of each network in the order of the tables; of a cell measured twice the last."""
    found: dict[str, dict[tuple[int, ...], Record]] = {}
    for r in rows:
        model = f"{r['model']}{' trained ' + r['network'] if r['network'] else ''}, {r['image_size']} pixels"
        found.setdefault(model, {})[OF.index(r["of"]), r["n"], list(STYLES).index(r["estimator"])] = r
    return {model: [each[cell] for cell in sorted(each)] for model, each in found.items()}


def format_value(value: Any, form: str = ".3f") -> str:
    return "–" if value is None else format(value, form)


def print_tables(model: str, found: Sequence[Record], console: Console) -> None:
    """All tables of one network."""
    for of in dict.fromkeys(r["of"] for r in found):
        table = Table(*COLUMNS, title=f"{model}: of {of}")
        mine = [r for r in found if r["of"] == of]
        for r, following in zip(mine, [*mine[1:], None], strict=True):
            ends = following is not None and following["n"] != r["n"]
            table.add_row(*(format_value(r[what], form) for what, form in COLUMNS.values()), end_section=ends)
        console.print(table)
    console.print(
        "n: images per domain. > null: share of parameters with c above their own null, 50% where nothing differs. "
        "> 95%: above the 95% quantile of all null, 0% while that is the bound. full length: reliability by "
        "Spearman–Brown, 2r/(1+r). with reference: Spearman of c with persample at the largest n. seconds: processor "
        "time, floor included, for which signed and minibatch go twice."
    )
    console.print(enough_images_table(model, found))
    if any(r["with"] for r in found):
        console.print(agreement_table(model, found))


def enough_images_table(model: str, found: Sequence[Record]) -> Table:
    """The least n from which on c is reliable, and what measuring it costs."""
    heads = [head for wanted in TRUSTED for head in (f"n for reliability ≥ {wanted}", "seconds")]
    table = Table("of", "estimator", *heads, title=f"{model}: enough images")
    for of, name in dict.fromkeys((r["of"], r["estimator"]) for r in found):
        mine = [r for r in found if (r["of"], r["estimator"]) == (of, name)]
        cells = []
        for wanted in TRUSTED:
            poor = max((r["n"] for r in mine if r["full"] is None or r["full"] < wanted), default=0)
            least = next((r for r in mine if r["n"] > poor), None)
            cells += [str(least["n"]), f"{least['seconds']:.1f}"] if least else [f"> {mine[-1]['n']}", "–"]
        table.add_row(of, name, *cells)
    return table


def agreement_table(model: str, found: Sequence[Record]) -> Table:
    """Rank agreement of c between two kinds, `persample`: recorded by the one measured later."""
    pairs = list(combinations(OF, 2))
    both = {(r["n"], frozenset((r["of"], o))): v for r in found for o, v in r["with"].items()}
    table = Table("n", *(" and ".join(pair) for pair in pairs), title=f"{model}: Spearman of c between kinds")
    for n in sorted({n for n, _ in both}):
        table.add_row(str(n), *(format_value(both.get((n, frozenset(pair)))) for pair in pairs))
    return table


def save_plots(model: str, found: Sequence[Record], folder: Path) -> None:
    """Two plots of one network, a column for each `of`.

    Args:
        model: Its name, for the title and the names of the files.
        found: Its records.
        folder: Where the plots go.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[ ,]+", "-", model.removesuffix(" pixels"))
    c = {"mean c": {"c": SOLID, "null": DASHED}}
    plot(model, found, c, 4.0, 1.02 * np.sqrt(2)).savefig(folder / f"noise-{name}-c.png", dpi=110)
    ranks = {
        "reliability of c\n(full length)": {"full": SOLID},
        "Spearman of c with\nthe reference": {"agreement": SOLID},
    }
    plot(model, found, ranks, 5.6, 1.02).savefig(folder / f"noise-{name}-ranks.png", dpi=110)


def plot(model: str, found: Sequence[Record], rows: dict[str, dict[str, Any]], height: float, top: float) -> Figure:
    """Rows of panels by what is on their y axis: which columns of the records, and in which kind of line."""
    kinds, ticks = list(dict.fromkeys(r["of"] for r in found)), sorted({r["n"] for r in found})
    figure = Figure(figsize=(10, height), layout="constrained", facecolor="white")
    grid = figure.subplots(len(rows), len(kinds), sharex=True, sharey="row", squeeze=False)
    for panels, (label, columns) in zip(grid, rows.items(), strict=True):
        for axes, of in zip(panels, kinds, strict=True):
            plot_lines(axes, [r for r in found if r["of"] == of], columns)
            axes.set_xscale("log", base=2)
            axes.set_xticks(ticks, [str(n) for n in ticks])
            axes.minorticks_off()
            axes.tick_params(labelsize=8)
            axes.grid(alpha=0.25)
            axes.spines[["top", "right"]].set_visible(False)
        panels[0].set_ylim(min(0.0, panels[0].get_ylim()[0]), top)
        panels[0].set_ylabel(label, fontsize=9)
    for axes, of in zip(grid[0], kinds, strict=True):
        axes.set_title(f"of {of}", fontsize=10)
    figure.supxlabel("images per domain", fontsize=9)
    names = [name for name in STYLES if any(r["estimator"] == name for r in found)]
    handles = [Line2D([], [], **STYLES[name], ms=5, label=name) for name in names]
    if any("null" in columns for columns in rows.values()):
        handles.append(Line2D([], [], color="#475569", ls=DASHED, label="null of each"))
    place = {"loc": "outside upper center", "ncols": len(handles)}
    figure.legend(handles=handles, **place, frameon=False, fontsize=9, title=model, title_fontsize=10)
    return figure


def plot_lines(axes: Axes, found: Sequence[Record], columns: dict[str, Any]) -> None:
    for name, style in STYLES.items():
        for column, kind in columns.items():
            mine = [r for r in found if r["estimator"] == name]
            if column == "agreement":  # of the reference with itself nothing is learnt
                mine = [r for r in mine if (name, r["n"]) != ("persample", r["reference"])]
            values = np.array([r[column] for r in mine], dtype=float)  # NaN where there is none
            axes.plot([r["n"] for r in mine], values, **style, ls=kind, ms=4)
