"""Training curves: source validation and loss against step, of the runs that the tables' numbers come from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dspreg.protocol.selection import Choice, Record
from dspreg.reporting.html.svg import Picture, Point, Scale, colour_class, fit_scale
from dspreg.reporting.tables import SelectedRow

ROWS = 40  # of a data set that are drawn; the others are in its table
LINES = 24  # of a picture; more runs than that are drawn as the range of most of them
POINTS = 600  # of all lines of a picture together
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 284, 150, 34, 270, 8, 128


@dataclass(frozen=True)
class Line:
    """One run: what was recorded, and the step that was chosen."""

    target: str
    trial: int
    chosen: int
    steps: list[int]
    validation: list[float]  # in per cent
    loss: list[float]


@dataclass(frozen=True)
class Curves:
    """Of one row: two pictures."""

    label: str
    runs: int
    validation: str
    loss: str


def draw_curves(rows: Sequence[SelectedRow]) -> list[Curves]:
    """Of one data set, all on the same scales."""
    every = [(row, list(selected_lines(row))) for row in rows[:ROWS]]
    there = [(row, found) for row, found in every if found]
    flat = [line for _, found in there for line in found]
    if not flat:
        return []
    x = fit_scale([step for line in flat for step in line.steps], LEFT, RIGHT, zero=True)
    validation = fit_scale([v for line in flat for v in line.validation], BOTTOM, TOP)
    loss = fit_scale([v for line in flat for v in line.loss], BOTTOM, TOP, log=True)
    made = []
    for row, found in there:
        label = f"{row.label} on {row.dataset}, {len(found)} runs"
        accuracies = _picture(f"source validation against step: {label}", row, found, "validation", x, validation)
        recorded = any(math.isfinite(v) for line in found for v in line.loss)
        losses = _picture(f"loss against step: {label}", row, found, "loss", x, loss) if recorded else ""
        made.append(Curves(row.label, len(found), accuracies, losses))
    return made


def selected_lines(row: SelectedRow) -> Iterator[Line]:
    """The run of every choice, by target and trial."""
    runs = {(run.targets, run.trial, run.draw): run for run in row.runs if run.finished}
    for (target, trial), choice in row.choices.items():
        if isinstance(choice, Choice):
            records = sorted(runs[(target,), trial, choice.draw].records, key=lambda each: int(each["step"]))
            steps = [int(each["step"]) for each in records]
            yield Line(
                target,
                trial,
                choice.step,
                steps,
                [100 * _value(each, "validation") for each in records],
                [_value(each.get("log", {}), "loss") for each in records],
            )


def mean_line(found: Sequence[Line], what: str) -> list[Point]:
    """At every step that all of the runs recorded."""
    return [(step, float(np.mean(values))) for step, values in _by_step(found, what)]


def _by_step(found: Sequence[Line], what: str) -> list[tuple[int, list[float]]]:
    every = [dict(zip(line.steps, getattr(line, what), strict=True)) for line in found]
    shared = sorted(set.intersection(*(set(each) for each in every)))
    return [(step, [each[step] for each in every]) for step in shared]


def _value(record: Record, name: str) -> float:
    found = record.get(name)
    return found if isinstance(found, float) and math.isfinite(found) else math.nan


def _picture(label: str, row: SelectedRow, found: Sequence[Line], what: str, x: Scale, y: Scale) -> str:
    picture = Picture(WIDTH, HEIGHT, label)
    picture.draw_y_axis(y, LEFT, RIGHT)
    picture.draw_x_axis(x, TOP, BOTTOM, rules=False)
    places = {target: n for n, target in enumerate(row.domains)}
    if len(found) > LINES:
        _range(picture, found, what, x, y)
    else:
        for line in found:
            points = list(zip(line.steps, getattr(line, what), strict=True))
            kind = f"thin {colour_class(places[line.target], len(places))}"
            picture.line([(x(a), y(b)) for a, b in thin_out(points, POINTS // len(found))], kind)
            at = dict(points).get(line.chosen, math.nan)
            if what == "validation" and math.isfinite(at):
                title = f"{line.target} held out, trial {line.trial}: step {line.chosen:,} chosen"
                picture.dot(
                    x(line.chosen), y(at), f"chosen {colour_class(places[line.target], len(places))}", 2.2, title
                )
    picture.line([(x(a), y(b)) for a, b in thin_out(mean_line(found, what), POINTS)], "mean")
    return picture.svg()


def _range(picture: Picture, found: Sequence[Line], what: str, x: Scale, y: Scale) -> None:
    """The middle four fifths of all runs at every step that all recorded."""
    by_step = _by_step(found, what)
    edges = [(step, np.quantile(values, (0.1, 0.9))) for step, values in by_step if np.isfinite(values).all()]
    lower, upper = ([(x(step), y(float(each[end]))) for step, each in edges] for end in (0, 1))
    picture.area([*thin_out(upper, POINTS // 2), *reversed(thin_out(lower, POINTS // 2))], "range")


def thin_out(points: Sequence[Point], most: int) -> list[Point]:
    """Evenly fewer of them, the first and the last among them."""
    most = max(most, 2)
    if len(points) <= most:
        return list(points)
    return [points[round(n * (len(points) - 1) / (most - 1))] for n in range(most)]
