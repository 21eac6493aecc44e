"""Accuracy on each held-out domain: a dot for every trial, a bar for their mean, methods one below the other."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from dspreg.reporting.html.curves import ROWS
from dspreg.reporting.html.svg import Picture, Scale, colour_class, fit_scale
from dspreg.reporting.tables import SelectedRow

DOTS = 50  # of a row; more trials than that are drawn as their range
LEFT, RIGHT, WIDTH, ROW, TOP = 10, 270, 284, 34, 6  # a name above its dots: beside them half of it would be cut


def draw_dots(rows: Sequence[SelectedRow]) -> list[tuple[str, str]]:
    """Of one data set: every domain and its picture, all on the same scale."""
    drawn, made = rows[:ROWS], []
    names = shorten_labels([row.label for row in drawn])
    values = {(row.label, target): _accuracies(row, target) for row in drawn for target in row.domains}
    scale = fit_scale([v for each in values.values() for _, v in each], LEFT, RIGHT)
    for target in drawn[0].domains:
        if not any(values[row.label, target] for row in drawn):
            continue  # not planned, or not finished
        picture = Picture(WIDTH, TOP + ROW * len(drawn) + 18, f"accuracy on {target} by method and trial, in per cent")
        picture.draw_x_axis(scale, TOP, TOP + ROW * len(drawn))
        for n, (row, name) in enumerate(zip(drawn, names, strict=True)):
            y, kind = TOP + ROW * (n + 0.7), colour_class(n, len(drawn))
            picture.text(0, y - 12, name, room=WIDTH)
            _trials(picture, y, kind, row.label, values[row.label, target], scale)
        made.append((target, picture.svg()))
    return made


def shorten_labels(labels: Sequence[str]) -> list[str]:
    """Without options that have one value in all rows of a method that name them, as far as names stay different."""
    parts = [label.partition("(") for label in labels]
    options = [rest.rpartition(")")[0].split(", ") for _, _, rest in parts]
    values: dict[tuple[str, str], set[str]] = defaultdict(set)
    for (name, _, _), mine in zip(parts, options, strict=True):
        for option in mine:
            values[name, option.partition("=")[0]].add(option)
    short = []
    for (name, _, rest), mine in zip(parts, options, strict=True):
        left = ", ".join(option for option in mine if len(values[name, option.partition("=")[0]]) > 1)
        short.append(name + (f"({left})" if left else "") + rest.rpartition(")")[2])
    return short if len(set(short)) == len(set(labels)) else list(labels)


def _accuracies(row: SelectedRow, target: str) -> list[tuple[int, float]]:
    """In per cent, by trial."""
    found = [(trial, row.accuracy(target, trial)) for trial in row.trials]
    return [(trial, 100 * value) for trial, value in found if value is not None and math.isfinite(value)]


def _trials(
    picture: Picture, y: float, kind: str, label: str, values: Sequence[tuple[int, float]], scale: Scale
) -> None:
    if not values:
        picture.text(scale.start, y + 3.5, "–")
        return
    accuracies = [value for _, value in values]
    if len(values) > DOTS:
        picture.line([(scale(min(accuracies)), y), (scale(max(accuracies)), y)], f"spread {kind}")
    else:
        for trial, value in values:
            picture.dot(scale(value), y, f"dot {kind}", title=f"{label}, trial {trial}: {value:.1f} %")
    mean = sum(accuracies) / len(accuracies)
    picture.line([(scale(mean), y - 7), (scale(mean), y + 7)], f"bar {kind}")
