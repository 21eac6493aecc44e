"""Pictures of two profiles of one network, always on one scale."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from dspreg.errors import ConfigError
from dspreg.sensitivity.plots import (
    C_COLOUR,
    NULL_COLOUR,
    POSITIONS,
    draw_panels,
    largest_tensor,
    name_rows,
    panels_of,
    plain,
    quartiles,
)

if TYPE_CHECKING:
    from dspreg.sensitivity.compare import Comparison


def draw(comparison: Comparison, kind: str, layer: str | None = None) -> Figure:
    if kind == "map":
        return maps(comparison, layer)
    if kind != "layers":
        raise ConfigError(f"figure {kind!r} of a comparison; wanted 'layers' or 'map'")
    if layer is not None:
        raise ConfigError(f"layer={layer!r} goes with figure 'map', not with 'layers'")
    return layers(comparison)


def layers(comparison: Comparison) -> Figure:
    """c of every layer before and after, side by side: median and middle half, with the floors behind."""
    both = (("before", comparison.before), ("after", comparison.after))
    owners = comparison.before.layers()
    bound = max(profile.bound for _, profile in both)
    figure = Figure(figsize=(10, 1.6 + 0.24 * len(owners)), layout="constrained")
    rows = np.arange(len(owners))
    middles = {name: quartiles(profile.c, owners)[1] for name, profile in both}
    for axes, (name, profile) in zip(figure.subplots(1, 2, sharey=True), both, strict=True):
        labelled = name == "before"  # one legend for both
        if profile.null is not None:
            low, middle, high = quartiles(profile.null, owners)
            axes.hlines(rows + 0.16, low, high, color=NULL_COLOUR, lw=3, alpha=0.4)
            axes.plot(middle, rows + 0.16, "o", color=NULL_COLOUR, ms=4, label="null" if labelled else None)
        low, middle, high = quartiles(profile.c, owners)
        axes.hlines(rows - 0.12, low, high, color=C_COLOUR, lw=3, alpha=0.4)
        axes.plot(middle, rows - 0.12, "o", color=C_COLOUR, ms=4, label="c" if labelled else None)
        if name == "after":
            axes.plot(middles["before"], rows - 0.12, "o", mfc="none", mec=C_COLOUR, ms=5, label="c before")
        axes.set_title(f"{name}, {len(profile.domains)} domains", fontsize=9)
        axes.set_xlim(0, bound)
        axes.set_xlabel("c, 0: all domains alike", fontsize=8)
        axes.grid(axis="x", alpha=0.25)
    name_rows(figure.axes[0], comparison.before)
    figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=8)
    return figure


def maps(comparison: Comparison, layer: str | None) -> Figure:
    """The same parameters of one layer before and after, with their floors."""
    before, after = comparison.before, comparison.after
    name = largest_tensor(before, layer)
    rows = [panels_of(before, name, " before"), panels_of(after, name, " after")]
    width = max(map(len, rows))
    figure = Figure(figsize=(1.2 + 3.4 * width, 7.2), layout="constrained")
    grid = figure.subplots(2, width, squeeze=False)
    bound = max(before.bound, after.bound)
    for places, panels in zip(grid, rows, strict=True):
        image = draw_panels(list(places[: len(panels)]), panels, name, bound)
        for unused in places[len(panels) :]:
            unused.set_axis_off()
    count = before.c[name].numel()
    figure.suptitle(plain(f"{name}: {min(count, POSITIONS):,} of {count:,} parameters"), fontsize=10)
    scale = figure.colorbar(image, ax=figure.axes, shrink=0.8)
    scale.set_label("0 all domains alike, √(D−1) one alone", fontsize=8)
    return figure
