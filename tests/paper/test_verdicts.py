"""Sentences from made-up numbers."""

from dataclasses import replace

import pytest

from dspreg.paper.verdicts import Comparison, order_sentence, pair_sentence, pairs_sentence
from dspreg.reporting.contrasts import contrast_differences


def compared(differences, paper=None):
    """One target for each list, in points."""
    found = contrast_differences([[d / 100 for d in each] for each in differences]) if differences else None
    return Comparison("full", "λ = 0", found, paper)


def test_an_interval_without_0_names_the_better_one():
    said = pair_sentence(compared([[2.0, 2.2, 1.8], [3.0, 3.2, 2.8]], paper=2.0))
    assert said.startswith("full − λ = 0 is +2.5 points (95 % +2.")
    assert "6 pairs): full is better" in said
    assert said.endswith("the paper's +2.0 lies outside the interval")
    assert "λ = 0 is better" in pair_sentence(compared([[-2.0, -2.2, -1.8], [-3.0, -3.2, -2.8]]))


def test_what_is_higher_need_not_be_better():
    found = contrast_differences([[0.02, 0.022, 0.018], [0.03, 0.032, 0.028]])
    assert Comparison("ERM", "before", found, larger="higher").verdict == "ERM is higher"
    assert Comparison("before", "ERM", None, larger="higher").verdict == "none: no pairs"


def test_an_interval_with_0_is_not_distinguishable():
    """d̄ = 0.5, s² = (2·2² + 2·1²…)/4: ±2 and ±3 around the means of two targets."""
    said = pair_sentence(compared([[2.5, -1.5, 0.5], [3.5, -2.5, 0.5]], paper=2.0))
    # s² = (4 + 4 + 9 + 9)/4 = 6.5; SE = √(6.5 · 2/3)/2 = 1.0408; t(0.975, 4) = 2.7764: ±2.89
    assert said == (
        "full − λ = 0 is +0.5 points (95 % -2.4 to +3.4, 6 pairs): not distinguishable, "
        "and the paper's +2.0 lies inside the interval"
    )


@pytest.mark.parametrize("differences", [[[9.0]], [[9.0, 9.1], [9.2, 9.1]], [[9.0]] * 4])
def test_fewer_than_five_pairs_give_no_verdict_however_large(differences):
    said = pair_sentence(compared(differences, paper=2.0))
    assert "no verdict (fewer than 5 pairs)" in said
    assert "better" not in said
    assert "interval" not in said
    assert said.endswith("the paper has +2.0")


def test_of_another_scale_the_papers_difference_is_told_and_not_judged():
    other = replace(compared([[2.0, 2.2, 1.8], [3.0, 3.2, 2.8]], paper=2.0), comparable=False)
    assert pair_sentence(other).endswith("full is better (the paper, at its own scale: +2.0)")


def test_what_rounds_to_nothing_has_no_sign():
    assert "is 0.0 points in" in pair_sentence(compared([[-0.01]]))
    assert "is -0.1 points in" in pair_sentence(compared([[-0.06]]))


def test_one_pair_is_one_pair():
    assert "in 1 pair, no" in pair_sentence(compared([[1.0]]))


def test_one_trial_of_many_targets_gives_none_either():
    said = pair_sentence(compared([[9.0]] * 6))
    assert "in 6 pairs, no verdict (no target has two pairs)" in said


def test_nothing_to_compare():
    assert pair_sentence(compared([])) == "full − λ = 0: no trial has both under the same conditions"
    assert pairs_sentence([compared([]), compared([])]).count("; ") == 1


def test_nothing_is_ever_confirmed():
    cases = [[], [[9.0]], [[2.0, 2.2, 1.8], [3.0, 3.2, 2.8]], [[2.5, -1.5, 0.5], [3.5, -2.5, 0.5]]]
    for case in cases:
        for paper in (None, 2.0):
            assert "confirm" not in pair_sentence(compared(case, paper))


def test_where_the_highest_mean_is():
    points = [("T = 1", 1, 70.0), ("T = 2", 2, 71.26), ("T = 3", 3, 71.0)]
    assert "71.3 %, is at T = 2; the paper takes 2, so there too;" in order_sentence("T", points, 2)
    assert "is at T = 2; the paper takes 3, so elsewhere;" in order_sentence("T", points, 3)
    tie = [("T = 1", 1, 70.0), ("T = 2", 2, 70.0)]
    assert "at T = 1 and T = 2; the paper takes 2, so there too;" in order_sentence("T", tie, 2)
    assert "at T = 1 and T = 2;" in order_sentence(
        "T", [("T = 1", 1, 70.04), ("T = 2", 2, 70.0)], 2
    )  # equal as printed
    assert "an order of means is no verdict" in order_sentence("T", points, 2)
    assert order_sentence("T", [], 2) == "No mean is there yet along T; the paper takes 2."
