"""Plots of one profile, of two of the same network, or of c beside what changes on a held-out domain.

c is always drawn beside null, c under random domain labels, on one scale from 0 to √(D−1).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.figure import Figure
from torch import Tensor

from dspreg.errors import ConfigError
from dspreg.io.text import escape_terminal
from dspreg.randomness import generator
from dspreg.sensitivity.profile import tensors_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

    from dspreg.sensitivity.compare import Comparison
    from dspreg.sensitivity.correlations import Correlation
    from dspreg.sensitivity.held_out import HeldOutComparison
    from dspreg.sensitivity.profile import Profile
    from dspreg.vectors import ParamVector

C_COLOUR, NULL_COLOUR, COLOURS = "#c2410c", "#64748b", "inferno"
POSITIONS = 2_500  # shown of a larger layer, as in the paper's figure

Panel = tuple[str, Tensor, Tensor]  # label, values, and for which of them some domain is sensitive


def draw_profile(profile: Profile, kind: str, layer: str | None = None) -> Figure:
    figures = {"layers": layers, "histogram": histogram}
    if kind == "map":
        return heat_map(profile, layer)
    if kind not in figures:
        raise ConfigError(f"figure {kind!r}; wanted 'layers', 'histogram' or 'map'")
    if layer is not None:
        raise ConfigError(f"layer={layer!r} goes with figure 'map', not with {kind!r}")
    return figures[kind](profile)


def layers(profile: Profile) -> Figure:
    """c of every layer, median and interquartile range over its parameters, beside the null."""
    owners = profile.layers()
    figure = Figure(figsize=(7.5, 1.4 + 0.24 * len(owners)), layout="constrained")
    axes = figure.subplots()
    rows = np.arange(len(owners))
    parts = [(profile.c, C_COLOUR, "c", -0.14)]
    if profile.null is not None:
        parts.append((profile.null, NULL_COLOUR, "null: c under random domain labels", 0.14))
    for vector, colour, label, shift in parts:
        low, middle, high = quartiles(vector, owners)
        axes.hlines(rows + shift, low, high, color=colour, lw=3, alpha=0.45)
        axes.plot(middle, rows + shift, "o", color=colour, ms=4, label=label)
    name_rows(axes, profile)
    _scale(axes, profile)
    figure.legend(loc="outside upper center", ncols=2, frameon=False, fontsize=8)
    axes.grid(axis="x", alpha=0.25)
    return figure


def quartiles(vector: ParamVector, owners: Mapping[str, Sequence[str]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lower quartile, median and upper quartile of every layer's parameters."""
    each = [torch.cat([vector[n].reshape(-1) for n in names]).double().numpy() for names in owners.values()]
    low, middle, high = (np.array([np.quantile(v, q) for v in each]) for q in (0.25, 0.5, 0.75))
    return low, middle, high


def name_rows(axes: Axes, profile: Profile) -> None:
    """One row per layer, the first on top, with its number of parameters."""
    owners = profile.layers()
    sizes = [sum(profile.c[n].numel() for n in names) for names in owners.values()]
    texts = [plain(f"{name or '(top)'}  {size:,}") for name, size in zip(owners, sizes, strict=True)]
    axes.set_yticks(np.arange(len(owners)), texts, fontsize=7)
    axes.set_ylim(len(owners) - 0.4, -0.6)


def plain(text: str) -> str:
    """Text without formulas: matplotlib would read what is between two dollar signs as one."""
    return escape_terminal(text).replace("$", r"\$")


def histogram(profile: Profile) -> Figure:
    """Histograms of c and of null over all parameters that some domain is sensitive to."""
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots()
    bins = np.linspace(0, profile.bound, 61).tolist()
    if profile.null is not None:
        null = profile.over_alive(profile.null).numpy()
        axes.hist(null, bins=bins, color=NULL_COLOUR, alpha=0.55, label=f"null, mean {null.mean():.2f}")
    c = profile.over_alive(profile.c).numpy()
    axes.hist(c, bins=bins, histtype="step", lw=1.8, color=C_COLOUR, label=f"c, mean {c.mean():.2f}")
    axes.set_ylabel(f"{len(c):,} of {profile.c.numel():,} parameters", fontsize=8)
    _scale(axes, profile)
    axes.legend(frameon=False)
    return figure


def heat_map(profile: Profile, layer: str | None) -> Figure:
    """c of one layer's largest tensor, every parameter a cell, beside the null of the same cells.

    Grey cells are parameters that no domain is sensitive to.
    """
    name = largest_tensor(profile, layer)
    panels = panels_of(profile, name)
    figure = Figure(figsize=(1.2 + 3.6 * len(panels), 4.0), layout="constrained")
    image = draw_panels(list(np.atleast_1d(figure.subplots(1, len(panels)))), panels, name, profile.bound)
    count = profile.c[name].numel()
    missing = "" if profile.null is not None else " (no null measured)"
    figure.suptitle(plain(f"{name}: {min(count, POSITIONS):,} of {count:,} parameters{missing}"), fontsize=10)
    scale = figure.colorbar(image, ax=figure.axes, shrink=0.8)
    scale.set_label("0 all domains alike, √(D−1) one alone", fontsize=8)
    return figure


def largest_tensor(profile: Profile, layer: str | None) -> str:
    """The largest parameter tensor of a layer, which stands for it in a map."""
    names = tensors_of(layer, profile.c)
    return max(names, key=lambda n: profile.c[n].numel())


def panels_of(profile: Profile, name: str, label: str = "") -> list[Panel]:
    """c of one tensor and, if measured, its null."""
    alive = profile.alive()[name]
    panels = [(f"c{label}", profile.c[name], alive)]
    return panels if profile.null is None else [*panels, (f"null{label}", profile.null[name], alive)]


def draw_panels(places: Sequence[Axes], panels: Sequence[Panel], name: str, bound: float) -> AxesImage:
    """Draw each panel as a map, on one scale, with the same positions of a large tensor in all."""
    colours = colormaps[COLOURS].with_extremes(bad="#9ca3af")
    for axes, (label, values, alive) in zip(places, panels, strict=True):
        grid = cells(torch.where(alive, values.double(), torch.nan), name)
        image = axes.imshow(grid, cmap=colours, vmin=0, vmax=bound, interpolation="nearest")
        note = f"mean {float(values[alive].double().mean()):.2f}" if alive.any() else "no domain is sensitive"
        axes.set_title(f"{label}, {note}", fontsize=10)
        axes.set_xticks([])
        axes.set_yticks([])
    return image


def cells(values: Tensor, name: str) -> np.ndarray:
    """A tensor as a near-square grid: all of it, or keyed positions of a large one. Unused cells are NaN."""
    flat = values.detach().double().reshape(-1)
    if flat.numel() > POSITIONS:
        flat = flat[torch.randperm(flat.numel(), generator=generator(name, "positions"))[:POSITIONS]]
    width = math.ceil(math.sqrt(flat.numel()))
    grid = torch.full((math.ceil(flat.numel() / width) * width,), float("nan"), dtype=torch.float64)
    grid[: flat.numel()] = flat
    return grid.view(-1, width).numpy()


def _scale(axes: Axes, profile: Profile) -> None:
    if profile.null is None:
        axes.set_title("no null measured: how much of c is noise is unknown", fontsize=8)
    axes.set_xlim(0, profile.bound)
    axes.set_xlabel(
        f"c, from 0 (all {len(profile.s)} domains alike) to √{len(profile.s) - 1} (one domain alone)", fontsize=8
    )


# Two profiles of one network, before and after.


def draw_comparison(comparison: Comparison, kind: str, layer: str | None = None) -> Figure:
    if kind == "map":
        return compare_maps(comparison, layer)
    if kind != "layers":
        raise ConfigError(f"figure {kind!r} of a comparison; wanted 'layers' or 'map'")
    if layer is not None:
        raise ConfigError(f"layer={layer!r} goes with figure 'map', not with 'layers'")
    return compare_layers(comparison)


def compare_layers(comparison: Comparison) -> Figure:
    """c of every layer before and after, side by side: median and interquartile range, beside the nulls."""
    both = (("before", comparison.before), ("after", comparison.after))
    owners = comparison.before.layers()
    bound = max(profile.bound for _, profile in both)
    figure = Figure(figsize=(10, 1.6 + 0.24 * len(owners)), layout="constrained")
    rows = np.arange(len(owners))
    middles = {name: quartiles(profile.c, owners)[1] for name, profile in both}
    for axes, (name, profile) in zip(figure.subplots(1, 2, sharey=True), both, strict=True):
        with_label = name == "before"  # one legend for both
        if profile.null is not None:
            low, middle, high = quartiles(profile.null, owners)
            axes.hlines(rows + 0.16, low, high, color=NULL_COLOUR, lw=3, alpha=0.4)
            axes.plot(middle, rows + 0.16, "o", color=NULL_COLOUR, ms=4, label="null" if with_label else None)
        low, middle, high = quartiles(profile.c, owners)
        axes.hlines(rows - 0.12, low, high, color=C_COLOUR, lw=3, alpha=0.4)
        axes.plot(middle, rows - 0.12, "o", color=C_COLOUR, ms=4, label="c" if with_label else None)
        if name == "after":
            axes.plot(middles["before"], rows - 0.12, "o", mfc="none", mec=C_COLOUR, ms=5, label="c before")
        axes.set_title(f"{name}, {len(profile.domains)} domains", fontsize=9)
        axes.set_xlim(0, bound)
        axes.set_xlabel("c, 0: all domains alike", fontsize=8)
        axes.grid(axis="x", alpha=0.25)
    name_rows(figure.axes[0], comparison.before)
    figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=8)
    return figure


def compare_maps(comparison: Comparison, layer: str | None) -> Figure:
    """The same parameters of one layer before and after, with their nulls."""
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


# A domain that was held out.


def draw_held_out(found: HeldOutComparison) -> Figure:
    """Left the change by tenths of c, on the held-out domain and on held-out images of the sources; right correlations.

    With the level taken off, so that a larger loss on a domain is no change of its parameters.
    """
    from dspreg.sensitivity.held_out import CEILINGS, LEVEL

    figure = Figure(figsize=(11, 4.4), layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=(1.15, 1, 1))
    series = (("unseen", C_COLOUR, f"on {found.unseen}"), ("sources", NULL_COLOUR, "on held-out images of the sources"))
    top = 0.0
    for name, colour, label in series:
        low, median, high = np.array(found.parts[f"{name}{LEVEL}"]).T
        tenths = np.arange(1, len(median) + 1)
        left.fill_between(tenths, low, high, color=colour, alpha=0.15, lw=0)
        left.plot(tenths, median, "o-", color=colour, ms=4, label=plain(label))
        top = max(top, float(median.max()))
    left.set_xticks(tenths)
    left.set_ylim(0, 1.5 * top or 1)  # the upper quartile of the noisiest tenth may be far above
    left.set_xlabel(f"tenths of the parameters, by c of {len(found.sources)} sources", fontsize=8)
    left.set_ylabel("change |log s/s̄|, level taken off: median, middle half", fontsize=8)
    left.set_title("Does the change grow with c, more than noise does?", fontsize=9)
    left.legend(frameon=False, fontsize=8, loc="upper left")

    names = list(found.correlations)
    rows = np.arange(len(names))
    for shift, (name, colour, label) in zip((-0.13, 0.13), series, strict=True):
        each = [found.correlations[p][f"{name}{LEVEL}"] for p in names]
        dots(middle, rows + shift, each, "all", colour, label)
    middle.set_title("Rank correlation with the change", fontsize=9)
    excess = [found.correlations[p][f"excess{LEVEL}"] for p in names]
    dots(right, rows - 0.13, excess, "all", C_COLOUR, "over all parameters")
    dots(right, rows + 0.13, excess, "within", "#0369a1", "within tensor and tenth by s̄")
    right.set_title(plain(f"… with the excess due to {found.unseen}"), fontsize=9)
    for axes in (middle, right):
        axes.axvline(0, color="black", lw=0.8)
        axes.axhspan(len(names) - len(CEILINGS) - 0.5, len(names) - 0.5, color="#fef3c7", zorder=0)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_xlim(-1, 1)
        axes.grid(axis="x", alpha=0.25)
        axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.08))
    middle.set_yticks(rows, [plain(found.label(name)) for name in names], fontsize=8)
    right.set_yticks(rows, [""] * len(names))
    shaded = f"lines: 95 % intervals; shaded: has seen {found.unseen}, so it shows what could be known"
    figure.supxlabel(plain(shaded), fontsize=8)
    return figure


def dots(axes: Axes, rows: np.ndarray, found: Sequence[Correlation], which: str, colour: str, label: str) -> None:
    """One dot per correlation, with its interval."""
    each = [getattr(correlation, which) for correlation in found]
    for row, estimate in zip(rows, each, strict=True):
        if estimate.low is not None:
            axes.plot([estimate.low, estimate.high], [row, row], color=colour, lw=2, alpha=0.5)
    values = [np.nan if estimate.value is None else estimate.value for estimate in each]
    axes.plot(values, rows, "o", color=colour, ms=5, label=plain(label))
