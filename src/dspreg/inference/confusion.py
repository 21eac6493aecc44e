"""Which class is taken for which, as a picture."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from dspreg.inference.evaluate_run import DomainScores, RunEvaluation
from dspreg.io import html
from dspreg.io.text import escape_terminal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

COUNTED = 15  # classes up to which numbers fit into the cells
LONGEST = 22  # letters of a name
NO_IMAGES = "#d4d4d8"


def draw(found: RunEvaluation) -> Figure:
    """One panel per domain: rows are true classes, columns predicted ones, colours the share of the row.

    Grey rows are classes without an image in that domain.
    """
    side, size, every = _measures(len(found.classes))
    names = [plot_label(name) for name in found.classes]
    margin = 0.35 + 0.0085 * size * max(map(len, names))  # room for the names, in inches
    columns = min(len(found.domains), 2 if side > 5 or len(found.domains) == 4 else 3)
    rows = math.ceil(len(found.domains) / columns)
    width, height = columns * (side + margin + 0.25), rows * (side + margin + 0.9)
    figure = Figure(figsize=(width + 0.9, height + 0.3), layout=ConstrainedLayoutEngine(h_pad=0.12, w_pad=0.08))
    grid = [*figure.subplots(rows, columns, squeeze=False).flat]
    image = None
    for axes, each in zip(grid, found.domains, strict=False):
        image = _panel(axes, each)
        ticks = np.arange(0, len(names), every)
        axes.set_xticks(ticks, [names[t] for t in ticks], rotation=90, fontsize=size)
        axes.set_yticks(ticks, [names[t] for t in ticks], fontsize=size)
        axes.tick_params(length=2)
        axes.set_xlabel("predicted", fontsize=9)
        axes.set_ylabel("true", fontsize=9)
        if len(names) <= COUNTED:
            _numbers(axes, each.scores.confusion)
    for axes in grid[len(found.domains) :]:
        axes.set_visible(False)
    assert image is not None
    bar = figure.colorbar(image, ax=figure.axes, shrink=min(1.0, 3.2 / height), aspect=18, pad=0.02)
    bar.set_label("share of the true class", fontsize=9)
    bar.ax.tick_params(labelsize=8)
    return figure


def png(found: RunEvaluation) -> bytes:
    """The picture as a file."""
    return html.png(draw(found), dpi=110)


def _panel(axes: Axes, each: DomainScores) -> AxesImage:
    counts = each.scores.confusion
    totals = counts.sum(1, keepdims=True)
    share = np.divide(counts, totals, out=np.full(counts.shape, np.nan), where=totals > 0)
    # of many classes every confusion is rare, and would be white on white
    norm = PowerNorm(1.0 if len(counts) <= COUNTED else 0.5, vmin=0, vmax=1)
    axes.set_facecolor(NO_IMAGES)  # seen through rows that are not a number
    image = axes.imshow(share, cmap="Blues", norm=norm, interpolation="nearest")
    images = f"{each.scores.images:,} {'held-out ' if each.part == 'out' else ''}images"
    axes.set_title(f"{plot_label(each.domain)}\n{100 * each.scores.accuracy:.1f} % of {images}", fontsize=10)
    return image


def _numbers(axes: Axes, counts: np.ndarray) -> None:
    size = 8 if len(counts) <= 10 and counts.max() < 1000 else 6
    for (row, column), count in np.ndenumerate(counts):
        if count:
            dark = count > 0.55 * counts[row].sum()
            axes.text(column, row, f"{count}", ha="center", va="center", fontsize=size, color="w" if dark else "k")


def _measures(num_classes: int) -> tuple[float, float, int]:
    """Side of a panel in inches, size of its letters in points, and every how many-th class is named."""
    if num_classes <= COUNTED:
        return max(1.8, 0.3 * num_classes), 8, 1
    if num_classes <= 100:
        return max(4.5, 0.115 * num_classes), 6, 1
    return 11.5, 6, math.ceil(num_classes / 100)


def plot_label(name: str) -> str:
    """A name as matplotlib is to show it: short, and no formula."""
    text = escape_terminal(name)
    text = text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
    return text.replace("$", r"\$")  # otherwise matplotlib reads what is between two of them as a formula
