"""Time and memory, without a word about how long anything takes."""

from dataclasses import replace

import pytest

from dspreg.config.train_config import Execution
from dspreg.paper import overhead as cost
from dspreg.paper.items import overhead
from dspreg.paper.overhead import (
    Cost,
    TimedVariant,
    block_of,
    cost_sentence,
    peak_of,
    render_tables,
    settings_of,
    two_step_spec,
)
from dspreg.paper.scales import PAPER, SMALL, SMOKE
from dspreg.training.experiment import prepare_experiment
from helpers import tiny
from helpers.tiny import make_images


def cells(table, label, source="ours"):
    (row,) = [row for row in table.rows if (row.label, row.source) == (label, source)]
    return dict(zip(table.columns, row.cells, strict=True))


COSTS = {
    "ERM": Cost([1.0, 2.0, 1.0], 0, 2.0),
    "exact": Cost([3.0, 6.0, 4.0], 3, 5.0, 0.5),
    "finite_difference": Cost([2.1, 4.2, 2.1], 3, 2.6, 0.4),
    "finite_difference, running c": Cost([2.0, 4.0, 2.0], 3, 2.6, 0.1),
    "gauss_newton": Cost([2.0, 4.0, 2.0], 3, 2.6, 0.4),
    "gauss_newton(part=0.5)": Cost([1.5, 3.0, 1.5], 3, 2.4, 0.4),
    "lookahead": Cost([2.0, 4.0, 2.0], 3, 2.5),
    "momentum": Cost([1.0, 2.0, 1.2], 3, 2.2),
    "lazy(30)": Cost([1.0, 2.0, 1.4], 2, 2.1),
}


def test_ratios_and_the_papers_figures():
    *_, made = render_tables(overhead(SMOKE), COSTS, 10)
    assert cells(made, "ERM")["steps/s"].value == pytest.approx(30 / 4)
    exact = cells(made, "exact")
    assert exact["time, ×"].value == pytest.approx(13 / 4)
    assert exact["refreshes, ×"].value == pytest.approx(0.5 / 4)
    assert cells(made, "finite_difference, running c")["refreshes, ×"].value == pytest.approx(0.1 / 4)
    assert "steps + refreshes in ERM's: exact 3.125 + 0.125, finite_difference 2.000 + 0.100, " in made.notes[-2]
    assert made.notes[-2].endswith("the paper has 1.036 in all.")
    assert exact["of blocks"].text == "3.000–4.000"
    assert exact["memory, ×"].value == pytest.approx(2.5)
    assert (exact["refreshes"].text, exact["planned"].text, exact["steps"].text) == ("3", "3", "30")
    assert (cells(made, "lazy(30)")["refreshes"].text, cells(made, "lazy(30)")["planned"].text) == ("2", "3")
    assert cells(made, "ERM")["planned"].text == "0"
    paper = cells(made, "exact", "paper")
    assert (paper["steps/s"].value, paper["peak, GB"].value) == (2.8, 24.3)
    assert paper["time, ×"].value == pytest.approx(1.0357, abs=1e-4)
    assert paper["memory, ×"].value == pytest.approx(1.0611, abs=1e-4)
    assert (cells(made, "ERM", "paper")["steps/s"].value, cells(made, "ERM", "paper")["peak, GB"].value) == (2.9, 22.9)
    assert not [row for row in made.rows if row.source == "difference"]  # of another network it would say nothing
    *_, made = render_tables(overhead(PAPER), COSTS, 10)
    apart = cells(made, "exact", "difference")
    assert apart["time, ×"].value == pytest.approx(3.25 - 1.0357, abs=1e-4)
    assert apart["steps/s"].value is None  # another machine has another clock
    assert "exact 3.25× and 2.50×, " in made.notes[-1] == cost_sentence(COSTS)
    assert made.notes[-1].endswith("the paper has 1.04× and 1.06×.")


def test_a_block_is_from_refresh_to_refresh():
    assert block_of(PAPER, 50) == 100
    assert block_of(SMALL, 50) == 60
    assert block_of(SMOKE, 50) == 10
    assert settings_of(overhead(PAPER))["targets"] == ("sketch",)


@pytest.fixture(scope="module")
def experiment():
    how = Execution(threads=1, workers=0)
    return prepare_experiment(settings_of(overhead(SMOKE)), how)


@pytest.mark.parametrize("label", ["ERM", "exact", "lazy(30)"])
def test_every_block_has_one_refresh_in_it(experiment, label):
    variant = TimedVariant(experiment, overhead(SMOKE).variant(label).spec)
    variant.block(1)
    for n in range(2):
        assert variant.block(10) > 0
        assert sorted(variant.refreshes) == ([] if label == "ERM" else [10, 20][: n + 1])
    assert variant.algorithm.t == 21


def test_two_steps_with_a_refresh_and_the_penalty_in_the_second(experiment):
    for label in ("exact", "lazy(30)"):
        variant = TimedVariant(experiment, two_step_spec(SMOKE, label))
        variant.block(2)
        assert variant.refreshes == {1}
    assert two_step_spec(SMALL, "lazy(30)") == "DSPReg(engine='lazy(2)', refresh_steps=1)"
    assert two_step_spec(SMALL, "ERM") == "ERM"
    running = "DSPReg(engine='finite_difference', refresh_steps=1, measure_batches=4, refresh_memory=0.75)"
    assert two_step_spec(SMALL, "finite_difference, running c") == running
    assert two_step_spec(SMOKE, "exact, running c").endswith("measure_batches=1, refresh_memory=0.75)")


def test_a_refresh_costs_what_its_step_takes_beyond_the_others(experiment):
    variant = TimedVariant(experiment, "ERM")
    assert variant.refresh_seconds() == 0
    variant.without, variant.within = [1.0, 1.0, 9.0, 1.0], [3.0, 4.0]
    assert variant.refresh_seconds() == 5.0


def test_images_of_a_folder_are_read_in_the_process_that_is_timed(tmp_path, monkeypatch):
    """By default four other processes would read them: not timed, and a process that measures memory may have none."""
    monkeypatch.setattr(
        cost, "settings_of", lambda item: tiny.settings(make_images(tmp_path / "woods"), algorithm="ERM")
    )
    monkeypatch.setattr(cost, "BLOCKS", 1)
    seen = []
    monkeypatch.setattr(cost, "prepare_experiment", lambda *given: seen.append(prepare_experiment(*given)) or seen[0])
    item = replace(overhead(SMOKE), variants=overhead(SMOKE).variants[:2])
    costs, length = cost.measure_costs(item, Execution(threads=1, check_images="never"))
    assert seen[0].workers == 0
    assert length == 10
    assert all(each.peak > 0.1 for each in costs.values())
    assert costs[item.variants[1].label].refreshes == 1


def test_memory_is_that_of_another_process():
    """A larger batch needs more, and this process's own size does not enter."""
    settings = settings_of(overhead(SMOKE))
    how = Execution(threads=1, workers=0)
    few, many = (peak_of(settings | {"batch_size": n}, how) for n in (2, 256))
    assert 0.1 < few < many
    ballast = bytearray(500_000_000)
    ballast[::4096] = bytes(len(ballast[::4096])).replace(b"\0", b"\1")
    assert peak_of(settings | {"batch_size": 2}, how) < few + 0.2
    assert len(ballast) == 500_000_000
