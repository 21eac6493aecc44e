"""The plots of docs/understand/evidence.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from c_tables import Steps
from matplotlib.figure import Figure
from variants import OTHERS

from dspreg import Contrast

OURS, BASE, GREY = "#c2410c", "#0369a1", "#94a3b8"


def plot_contrasts(found: Mapping[str, Mapping[str, Contrast]]) -> Figure:
    """Every contrast with its interval; hollow where there are too few pairs for a verdict."""
    figure = Figure(figsize=(7.2, 2.9), layout="constrained")
    places = figure.subplots(1, len(found), squeeze=False, sharex=True, sharey=True)[0]
    for axes, (name, each) in zip(places, found.items(), strict=True):
        for y, other in enumerate(OTHERS):
            if other not in each:
                continue
            c, colour = each[other], OURS if y == 0 else BASE
            if c.low is not None and c.high is not None:
                axes.plot([c.low, c.high], [y, y], color=colour, lw=2)
            axes.plot([c.difference], [y], "o", ms=7, color=colour, mfc=colour if c.enough_pairs else "none")
        axes.axvline(0, color=GREY, lw=1)
        axes.set_title(name, fontsize=10)
        axes.set_xlabel("DSP-Reg less …, points")
        axes.grid(axis="x", alpha=0.25)
    places[0].set_yticks(range(len(OTHERS)), [f"{o}{' (primary)' if o == OTHERS[0] else ''}" for o in OTHERS])
    places[0].set_ylim(len(OTHERS) - 0.5, -0.5)
    return figure


def plot_pairs(found: Mapping[str, Mapping[str, Sequence[float]]]) -> Figure:
    """The pairs of the primary contrast, one dot each, and the mean of each target."""
    figure = Figure(figsize=(7.2, 2.9), layout="constrained")
    places = figure.subplots(1, len(found), squeeze=False, sharey=True)[0]
    for axes, (name, targets) in zip(places, found.items(), strict=True):
        for x, values in enumerate(targets.values()):
            beside = [x + 0.06 * (i - (len(values) - 1) / 2) for i in range(len(values))]
            axes.plot(beside, [100 * v for v in values], "o", ms=4, color=OURS, alpha=0.7)
            axes.plot([x - 0.35, x + 0.35], [100 * fmean(values)] * 2, color="black", lw=1.5)
        axes.axhline(0, color=GREY, lw=1)
        axes.set_xticks(range(len(targets)), list(targets), fontsize=8)
        axes.set_title(name, fontsize=10)
        axes.grid(axis="y", alpha=0.25)
    places[0].set_ylabel("DSP-Reg − shuffled c, points")
    return figure


def plot_c(found: Steps) -> Figure:
    """Left c and its null (c under random domain labels), means over runs; right c without noise, of each target."""
    figure = Figure(figsize=(7.2, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    targets = sorted({each["targets"][0] for chosen in found.values() for each in chosen})
    for variant, colour, style in (("ERM", BASE, "--"), ("DSP-Reg", OURS, "-")):
        at = {step: chosen for (name, step), chosen in sorted(found.items()) if name == variant}
        for key, mark in (("c", "o"), ("null", "")):
            values = [fmean(each[key] for each in chosen) for chosen in at.values()]
            left.plot([*at], values, f"{mark}{style}", color=colour, ms=4, label=f"{key}, {variant}")
        for n, target in enumerate(targets):
            chosen = {step: [e["c_debiased"] for e in c if target in e["targets"]] for step, c in at.items()}
            lines = {step: fmean(values) for step, values in chosen.items() if values}
            right.plot([*lines], [*lines.values()], style, color=f"C{n}", label=f"{target}, {variant}")
    for axes, title in ((left, "c and its null"), (right, "c without the share of noise, by target")):
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("step")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize=7, ncols=2, loc="lower right")
    left.set_ylabel("mean over parameters")
    return figure
