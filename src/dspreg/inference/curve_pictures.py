"""ROC curves, and how honest the probabilities are, as pictures."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dspreg.inference.confusion import plot_label
from dspreg.inference.evaluate_run import DomainScores, RunEvaluation
from dspreg.inference.metrics import BINS
from dspreg.io import html
from dspreg.metrics import defined_classes, score_of

DRAWN = 8  # classes that have a curve of their own; of more only the mean is drawn
SIDE = 3.0  # inches
GRID = np.linspace(0, 1, 201)  # false positive rates at which curves are averaged


def roc_picture(found: RunEvaluation) -> bytes:
    """A panel for each domain: the curve of every class against the rest, and their mean."""
    figure, panels = _panels(found)
    for axes, each in zip(panels, found.domains, strict=True):
        axes.plot([0, 1], [0, 1], color="#a1a1aa", linewidth=0.8, linestyle=":")
        _draw_curves(axes, each, found.classes)
        axes.set_xlabel("false positive rate", fontsize=9)
        axes.set_ylabel("true positive rate", fontsize=9)
    return html.png(figure, dpi=110)


def roc_curve_of(positive: np.ndarray, score: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """False and true positive rates from (0, 0) to (1, 1), by scikit-learn."""
    from sklearn.metrics import roc_curve

    false, true, _ = roc_curve(positive, score)
    return false, true


def _draw_curves(axes: Axes, each: DomainScores, classes: tuple[str, ...]) -> None:
    answers = each.answers
    assert answers is not None
    there = defined_classes(answers.labels)
    if not there:
        axes.text(0.5, 0.5, "one class: no curve", ha="center", va="center", fontsize=9)
        return
    binary = len(classes) == 2
    curves = {
        c: roc_curve_of(answers.labels == c, score_of(answers.log_p, c)) for c in (there[1:] if binary else there)
    }
    if len(curves) <= DRAWN:
        for c, (false, true) in curves.items():
            axes.plot(
                false, true, linewidth=1.1, label=f" {plot_label(classes[c])}"
            )  # matplotlib hides what begins with _
        axes.legend(fontsize=7, loc="lower right", frameon=False)
    if len(curves) > 1:
        mean = np.mean([np.interp(GRID, false, true) for false, true in curves.values()], axis=0)
        axes.plot(GRID, mean, color="#18181b", linewidth=2, label="mean")
    area = each.figures["auroc"]
    axes.set_title(f"{axes.get_title()}\nAUROC {area:.3f}", fontsize=10)


def reliability_picture(found: RunEvaluation) -> bytes:
    """A panel for each domain: of the images that the model is so sure of, the share that it gets right."""
    figure, panels = _panels(found)
    for axes, each in zip(panels, found.domains, strict=True):
        images, confidence, right = each.scores.bins
        there = images > 0
        at, share = confidence[there] / images[there], right[there] / images[there]
        edges = np.arange(BINS) / BINS
        axes.bar(edges, images / images.sum(), width=1 / BINS, align="edge", color="#d4d4d8", linewidth=0)
        axes.plot([0, 1], [0, 1], color="#a1a1aa", linewidth=0.8, linestyle=":")
        # ± one standard error of a share of so many images
        error = np.sqrt(share * (1 - share) / images[there])
        axes.errorbar(at, share, yerr=error, fmt="o-", markersize=3.5, linewidth=1.2, color="#1d4ed8", ecolor="#93c5fd")
        axes.set_xlabel("confidence", fontsize=9)
        axes.set_ylabel("right (grey: share of images)", fontsize=9)
        axes.set_title(f"{axes.get_title()}\nECE {100 * each.scores.calibration_error:.1f} %", fontsize=10)
    return html.png(figure, dpi=110)


def _panels(found: RunEvaluation) -> tuple[Figure, list[Axes]]:
    number = len(found.domains)
    columns = min(number, 2 if number == 4 else 3)
    rows = math.ceil(number / columns)
    figure = Figure(figsize=(columns * (SIDE + 0.4) + 0.2, rows * (SIDE + 0.7) + 0.1), layout="constrained")
    grid = [*figure.subplots(rows, columns, squeeze=False).flat]
    for axes in grid[number:]:
        axes.set_visible(False)
    for axes, each in zip(grid, found.domains, strict=False):
        held_out = "held-out " if each.part == "out" else ""
        axes.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01))
        axes.set_aspect("equal")
        axes.tick_params(labelsize=8, length=2)
        axes.set_title(f"{plot_label(each.domain)}: {each.scores.images:,} {held_out}images", fontsize=10)
    return figure, grid[:number]
