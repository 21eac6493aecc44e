"""Pictures of made-up tables: what stands where."""

from dataclasses import replace

import pytest

from dspreg.paper.figures import draw_curve, draw_dots, draw_item, title_of
from dspreg.paper.items import components, interval, strength
from dspreg.paper.render import render_tables
from dspreg.paper.scales import PAPER, SMOKE
from helpers.items import store_of


def made(item, path, accuracy):
    return next(table for table in render_tables(item, store_of(path, item, accuracy)) if table.name == item.name)


def test_a_curve_has_a_point_for_every_arm_and_the_papers_best(tmp_path):
    item = interval(SMOKE)
    means = {variant.algorithm: 0.4 + 0.01 * variant.x for variant in item.variants}
    (axes,) = draw_curve(item, made(item, tmp_path / "a", lambda run: means[run.algorithm])).axes
    ours, *_, paper = axes.lines
    assert ours.get_xdata().tolist() == [1, 2, 3, 4]
    assert ours.get_ydata().tolist() == pytest.approx([41, 42, 43, 44])
    assert set(paper.get_xdata()) == {2}
    assert "87.5 with a ResNet-50" in paper.get_label()
    assert axes.get_xscale() == "linear"
    flat = draw_curve(item, made(item, tmp_path / "b", lambda run: 0.5)).axes[0]
    assert flat.get_ylim()[1] - flat.get_ylim()[0] >= 2  # noise is not to fill the picture


def test_strength_has_a_line_for_each_engine_and_decades(tmp_path):
    item = strength(SMOKE, "lookahead")
    (axes,) = draw_curve(item, made(item, tmp_path / "a", lambda run: 0.5 + 0.1 * ("lookahead" in run.algorithm))).axes
    first, second = (container.lines[0] for container in axes.containers)
    assert [each.get_label() for each in axes.containers] == ["ours, lookahead", "ours, finite_difference"]
    assert first.get_ydata().tolist() == pytest.approx([60] * 4)
    assert second.get_xdata().tolist() == [1e-4, 1e-3, 1e-2, 1e-1]
    assert axes.get_xscale() == "log"


def test_the_papers_point_is_in_the_picture(tmp_path):
    item = interval(PAPER)
    (axes,) = draw_curve(item, made(item, tmp_path / "a", lambda run: 0.84 + 0.001 * run.trial)).axes
    star = next(line for line in axes.lines if line.get_label() == "paper: 87.5")
    low, high = axes.get_ylim()
    assert low < 84 < 87.5 < high
    assert star.get_ydata().tolist() == [87.5]


def test_arms_under_other_conditions_are_on_other_lines(tmp_path):
    item = interval(SMOKE)
    table = made(item, tmp_path / "a", lambda run: 0.5)
    moved = [replace(row, label=f"{row.label} [threads=2]") if row.label == "T = 3" else row for row in table.rows]
    (axes,) = draw_curve(item, replace(table, rows=tuple(moved))).axes
    drawn_at = {each.get_label(): each.lines[0].get_xdata().tolist() for each in axes.containers}
    assert drawn_at == {"ours": [1, 2, 4], "ours, [threads=2]": [3]}


def test_dots_of_another_scale_stand_apart_from_the_papers(tmp_path):
    item = components(SMOKE)
    table = made(item, tmp_path / "a", lambda run: 0.25)
    ours, paper = draw_dots(item, table, "mean", "accuracy").axes
    assert [label.get_text() for label in ours.get_yticklabels()] == ["full method", "λ = 0", "c = 1", "c shuffled"]
    assert ours.lines[0].get_xdata().tolist() == pytest.approx([25.0] * 4)
    assert paper.lines[0].get_xdata().tolist() == [87.5, 85.5, 85.8]
    assert paper.lines[0].get_ydata().tolist() == [0, 1, 2]
    widths = [axes.get_xlim()[1] - axes.get_xlim()[0] for axes in (ours, paper)]
    assert widths[0] == pytest.approx(widths[1])  # a point is as wide in both
    assert widths[0] >= 2
    one = draw_dots(replace(item, scale=PAPER), table, "mean", "accuracy")
    assert len(one.axes) == 1


def test_pictures_say_which_scale_they_are_of(tmp_path):
    item = components(SMOKE)
    assert title_of(item).splitlines()[1] == "not the paper's scale: smoke, digits, small-cnn"
    assert title_of(components(PAPER)).splitlines() == ["Table 2: what the parts are worth"]
    path = draw_item(
        item, render_tables(item, store_of(tmp_path / "a", item, lambda run: 0.25)), tmp_path / "new/pictures"
    )
    assert path == tmp_path / "new/pictures/components.png"
    assert path.stat().st_size > 5_000
