"""Accuracy on each held-out domain: a dot for every trial, a bar for their mean, methods one below the other."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dspreg.report.curves import ROWS
from dspreg.report.drawing import LETTER, Picture, Scale, colour, spanning
from dspreg.report.tables import Selected

DOTS = 50  # of a row; more trials than that are drawn as their range
LEFT, RIGHT, WIDTH, ROW, TOP = (50, 140), 270, 284, 20, 6  # as much to the left as names need, within bounds


def pictures(rows: Sequence[Selected]) -> list[tuple[str, str]]:
    """Of one data set: every domain and its picture, all on the same scale."""
    drawn, made = rows[:ROWS], []
    values = {(row.label, target): _accuracies(row, target) for row in drawn for target in row.domains}
    left = min(max(LETTER * max(len(row.label) for row in drawn), LEFT[0]), LEFT[1])
    scale = spanning([v for each in values.values() for _, v in each], left + 10, RIGHT)
    for target in drawn[0].domains:
        picture = Picture(WIDTH, TOP + ROW * len(drawn) + 18, f"accuracy on {target} by method and trial, in per cent")
        picture.upright(scale, TOP, TOP + ROW * len(drawn))
        for n, row in enumerate(drawn):
            y, kind = TOP + ROW * (n + 0.5), colour(n, len(drawn))
            picture.text(left, y + 3.5, row.label, "end", room=left)
            _trials(picture, y, kind, row.label, values[row.label, target], scale)
        made.append((target, picture.svg()))
    return made


def _accuracies(row: Selected, target: str) -> list[tuple[int, float]]:
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
            picture.dot(scale(value), y, f"dot {kind}", says=f"{label}, trial {trial}: {value:.1f} %")
    mean = sum(accuracies) / len(accuracies)
    picture.line([(scale(mean), y - 7), (scale(mean), y + 7)], f"bar {kind}")
