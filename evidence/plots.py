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


def plot_premise(found: Mapping[str, Steps]) -> Figure:
    """At the end of training, level taken off: the change by tenths of c, above; what predicts the excess, below."""
    from premise_tables import PREDICTORS, value_of

    figure = Figure(figsize=(7.2, 6.0), layout="constrained")
    above, below = figure.subplots(2, len(found), squeeze=False, height_ratios=(1, 1.15))
    for column, (name, steps) in enumerate(found.items()):
        last = max(step for _, step in steps)
        lines = [line for (_, step), chosen in steps.items() if step == last for line in chosen]
        axes = above[column]
        series = (("unseen", OURS, "on the target"), ("sources", GREY, "on held-out images of the sources"))
        for outcome, colour, label in series:
            runs = [[part[1] for part in line["parts"][f"{outcome}_less_level"]] for line in lines]
            mean = [fmean(values) for values in zip(*runs, strict=True)]
            for each in runs:
                axes.plot(range(1, 11), each, color=colour, lw=0.6, alpha=0.3)
            axes.plot(range(1, 11), mean, "o-", color=colour, ms=4, label=label)
        axes.set_title(f"{name}, {len(lines)} runs", fontsize=10)
        axes.set_xlabel("tenths of the parameters, by c of the sources", fontsize=8)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.25)
        axes = below[column]
        there = [p for p in PREDICTORS if any(p in line["correlations"] for line in lines)]
        for y, predictor in enumerate(there):
            for which, colour, shift in ((0, OURS, -0.14), (1, BASE, 0.14)):
                values = [value_of(line, predictor, "excess_less_level", which) for line in lines]
                values = [value for value in values if value is not None]
                label = ("all parameters", "within tensor and tenth by s̄")[which] if y == 0 else None
                axes.plot(values, [y + shift] * len(values), ".", color=colour, ms=4, alpha=0.25)
                axes.plot([fmean(values)], [y + shift], "o", color=colour, ms=6, label=label)
        axes.axvline(0, color="black", lw=0.8)
        axes.axhspan(len(there) - 2.5, len(there) - 0.5, color="#fef3c7", zorder=0)
        axes.set_ylim(len(there) - 0.5, -0.5)
        axes.set_xlim(-1, 1)
        axes.set_yticks(range(len(there)), [PREDICTORS[p] for p in there] if column == 0 else [], fontsize=8)
        axes.set_xlabel("rank correlation with the excess", fontsize=8)
        axes.grid(axis="x", alpha=0.25)
    above[0].set_ylabel("median change |log s/s̄|, level off", fontsize=8)
    above[0].legend(frameon=False, fontsize=7, loc="upper left")
    below[-1].legend(frameon=False, fontsize=7, loc="right")
    figure.supxlabel("one faint line or dot per run; shaded: has seen the target", fontsize=8)
    return figure
