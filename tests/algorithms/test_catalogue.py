"""What `dspreg algorithms` says of each: its cost as measured, its arrows, its options."""

import re

import pytest

from dspreg.algorithms import Algorithm
from dspreg.algorithms.base import options_of
from dspreg.algorithms.catalogue import costs, listing, page
from dspreg.algorithms.registry import algorithms


def test_every_method_has_a_measured_cost_and_no_other_does():
    measured = costs()
    assert set(measured["of_erm"]) == set(algorithms())
    assert measured["of_erm"]["ERM"] == {"median": 1.0, "low": 1.0, "high": 1.0}
    assert all(0.5 < each["low"] <= each["median"] <= each["high"] for each in measured["of_erm"].values())
    assert measured["command"] == "python bench/algorithms.py"


def test_one_line_each_with_cost_arrow_summary_and_options():
    lines = {
        line.split()[0]: line
        for line in listing().splitlines()[1:]
        if line and not line.startswith(("cost", "experimental"))
    }
    assert set(lines) == set(algorithms())
    cost = f"{costs()['of_erm']['SAM']['median']:.2f}"
    assert re.match(rf"SAM +{re.escape(cost)}× +gradient +Sharpness-aware minimisation: .*\[rho\]$", lines["SAM"])
    assert lines["Fish"].endswith("[meta_lr]")


@pytest.mark.parametrize("name", algorithms())
def test_one_in_full(name):
    text = page(name)
    for option in options_of(algorithms()[name]):
        assert re.search(rf"^  {option} += ", text, re.MULTILINE)
    assert re.search(r"^cost: a step of ResNet-18, .* is [\d.]+× \([\d.]+–[\d.]+\) that of ERM", text, re.MULTILINE)


def test_options_counted_in_steps_are_marked():
    (line,) = [line for line in page("IRM").splitlines() if line.startswith("  warmup")]
    assert line.endswith("shorter in a run of fewer than 5,001 steps")
    assert "shorter in a run" not in page("SAM")


class SAM(Algorithm):
    """Of the same name as one of ours."""


def test_a_class_of_ones_own_has_no_cost():
    assert "cost" not in page(f"{__name__}.SAM")
