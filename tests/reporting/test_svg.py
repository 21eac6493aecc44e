"""Scales, ticks and what a picture is made of."""

import itertools
import math
import re

import pytest

from dspreg.reporting.html import curves, dots
from dspreg.reporting.html.svg import Picture, Scale, colour_class, fit_scale, format_tick
from dspreg.reporting.tables import select_rows
from dspreg.runs.status import RunState, RunStatus
from helpers.runs import DOMAINS, single, trace


@pytest.mark.parametrize(
    ("scale", "ticks"),
    [
        (Scale(0, 1, 0, 100), [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (Scale(0, 5000, 0, 100), [0, 1000, 2000, 3000, 4000, 5000]),
        (Scale(61, 83, 0, 100), [65, 70, 75, 80]),
        (Scale(-0.011, 0.011, 0, 100), [-0.01, -0.005, 0, 0.005, 0.01]),
        (Scale(0.05, 40, 0, 100, log=True), [0.05, 0.5, 5]),
    ],
)
def test_ticks_are_round_and_within(scale, ticks):
    assert scale.ticks() == pytest.approx(ticks)


def test_a_scale_by_hand():
    plain, log = Scale(10, 20, 100, 0), Scale(1, 100, 0, 200, log=True)
    assert [plain(v) for v in (10, 12.5, 20)] == [100, 75, 0]
    assert [log(v) for v in (1, 10, 100)] == pytest.approx([0, 100, 200])


@pytest.mark.parametrize("values", [[], [3.0], [0.0], [-2.0, -2.0], [math.nan, 5.0, math.inf], [1e-12, 1e12]])
def test_any_values_have_a_scale(values):
    for options in ({}, {"zero": True}, {"log": True}):
        scale = fit_scale(values, 0, 100, **options)
        assert scale.low < scale.high
        assert scale.ticks()
        assert all(-1e-9 <= scale(v) <= 100 + 1e-9 for v in values if math.isfinite(v))


def test_a_line_has_a_gap_where_there_is_no_number():
    picture = Picture(10, 10, "x")
    picture.line([(0, 1), (1, 2), (2, math.nan), (3, 4)], "thin")
    assert re.findall('points="(.*?)"', picture.svg()) == ["0.0,1.0 1.0,2.0", "3.0,4.0"]


def test_names_are_cut_in_the_middle_and_whole_on_pointing():
    picture = Picture(10, 10, '"<&')
    picture.text(0, 0, "ERM [threads=1] <b>", room=70)
    assert "<title>ERM [threads=1] &lt;b&gt;</title>ERM … &lt;b&gt;</text>" in picture.svg()
    assert 'aria-label="&quot;&lt;&amp;"' in picture.svg()
    short = Picture(10, 10, "")
    short.text(0, 0, "ERM", room=70)
    assert ">ERM</text>" in short.svg()


def test_short_numbers_and_colours():
    assert [format_tick(v) for v in (0.30000000000000004, 5000.0, 20000.0, 0.0005)] == ["0.3", "5000", "20k", "0.0005"]
    assert (colour_class(2, 8), colour_class(2, 9)) == ("k2", "k")


def runs(trials=2, draws=1, steps=(0, 100, 200), **more):
    made = []
    for target, trial, draw in itertools.product(DOMAINS, range(trials), range(draws)):
        records = []
        for step in steps:
            validation = 0.4 + step / 1000 + draw / 100
            record = single(step, target, 0.5 + trial / 100, validation)
            records.append(record | {"validation": validation, "log": {"loss": 2.0 - step / 200}})
        made.append(trace(*records, targets=(target,), trial=trial, draw=draw, **more))
    return made


def test_lines_are_those_of_the_runs_that_were_chosen():
    (row,) = select_rows(runs(draws=3))
    found = list(curves.selected_lines(row))
    assert [(line.target, line.trial) for line in found] == [(d, t) for d in DOMAINS for t in (0, 1)]
    assert found[0].validation == pytest.approx([42.0, 52.0, 62.0])  # of the third draw, the best
    assert found[0].loss == [2.0, 1.5, 1.0]
    assert {line.chosen for line in found} == {200}


def test_the_mean_is_over_steps_that_all_have():
    one = curves.Line("a", 0, 0, [0, 100, 200], [10.0, 20.0, 30.0], [1.0, 1.0, math.nan])
    two = curves.Line("b", 0, 0, [0, 200], [20.0, 50.0], [3.0, 2.0])
    assert curves.mean_line([one, two], "validation") == [(0, 15.0), (200, 40.0)]
    first, last = curves.mean_line([one, two], "loss")
    assert first == (0, 2.0)
    assert math.isnan(last[1])


def test_few_runs_are_lines_and_many_are_a_range():
    (few,) = curves.draw_curves(select_rows(runs(trials=2)))
    assert (few.runs, few.validation.count('"thin'), few.validation.count("chosen"), few.loss.count('"thin')) == (
        6, 6, 12, 6,
    )  # fmt: skip
    (many,) = curves.draw_curves(select_rows(runs(trials=9)))
    assert (many.runs, many.validation.count('"thin'), many.validation.count('"range"')) == (27, 0, 1)
    assert many.validation.count('"mean"') == 1


def test_runs_without_a_loss_have_no_picture_of_it():
    (made,) = curves.draw_curves(select_rows([trace(single(0, "ash", 0.5, 0.5) | {"log": {}})]))
    assert made.loss == ""
    assert made.validation.startswith("<svg")


def test_points_are_thinned_and_keep_their_ends():
    points = [(float(n), 0.0) for n in range(1000)]
    few = curves.thin_out(points, 7)
    assert (len(few), few[0], few[-1]) == (7, points[0], points[-1])
    assert curves.thin_out(points[:5], 7) == points[:5]
    long = runs(trials=8, steps=tuple(range(0, 100_000, 100)))
    (made,) = curves.draw_curves(select_rows(long))
    assert len(made.validation) < 20_000


def test_only_so_many_methods_are_drawn():
    every = [run for n in range(curves.ROWS + 5) for run in runs(trials=1, algorithm=f"M{n:03}")]
    rows = select_rows(every)
    assert len(curves.draw_curves(rows)) == curves.ROWS
    assert all(picture.count(", trial 0") == curves.ROWS for _, picture in dots.draw_dots(rows))


def test_every_trial_is_a_dot_and_their_mean_a_bar():
    (row,) = select_rows(runs(trials=3))
    found = dict(dots.draw_dots([row]))
    assert list(found) == list(DOMAINS)
    titles = re.findall("<title>(.*?)</title>", found["ash"])
    assert titles == ["ERM, trial 0: 50.0 %", "ERM, trial 1: 51.0 %", "ERM, trial 2: 52.0 %"]
    at = [float(x) for x in re.findall('cx="(.*?)"', found["ash"])]
    (bar,) = re.findall('class="bar k0" points="([^,]*),', found["ash"])
    assert float(bar) == pytest.approx(sum(at) / 3, abs=0.1)


def test_many_trials_are_a_range_and_none_a_dash():
    every = [*runs(trials=60), trace(algorithm="IRM", state=RunState(RunStatus.STOPPED))]
    picture = dict(dots.draw_dots(select_rows(every)))["birch"]
    assert (picture.count("<circle"), picture.count('"spread'), picture.count(">–<")) == (0, 1, 1)
