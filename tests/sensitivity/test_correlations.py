"""Rank correlations against scipy and against a plain loop, in float64."""

import numpy as np
import pytest
import torch
from scipy.stats import rankdata, spearmanr

from dspreg.sensitivity.correlations import CELLS, LEAST, RankCorrelations, rank_rows

SIZES = [700, 45, 9, 300, 26]  # of the tensors; the third is too small for a cell


def draw(ties=False, seed=0):
    random = np.random.default_rng(seed)
    mean = random.lognormal(0, 2, sum(SIZES))
    c = random.gamma(2, size=sum(SIZES))
    change = 0.5 * c + random.gamma(2, size=sum(SIZES)) + 0.3 * np.log(mean)
    if ties:
        c, change = c.round(), np.where(change < 2, 0, change.round(1))
    return {"c": c, "change": change, "mean": mean}


def correlations(columns, key="key"):
    tensors = {name: torch.from_numpy(values) for name, values in columns.items()}
    return RankCorrelations(tensors, tensors["mean"], SIZES, key)


@pytest.mark.parametrize("ties", [False, True])
def test_ranks_of_rows_are_scipys(ties):
    random = np.random.default_rng(1)
    values = random.normal(size=(3, 200))
    values = values.round(1) if ties else values
    np.testing.assert_array_equal(rank_rows(torch.from_numpy(values)).numpy(), rankdata(values, axis=1))


@pytest.mark.parametrize("ties", [False, True])
def test_over_all_parameters_it_is_scipys_spearman(ties):
    columns = draw(ties)
    found = correlations(columns)
    for a in columns:
        for b in columns:
            assert found.pair(a, b).all.value == pytest.approx(spearmanr(columns[a], columns[b]).statistic, abs=1e-10)


@pytest.mark.parametrize("ties", [False, True])
def test_within_cells_it_is_the_weighted_mean_of_scipys(ties):
    columns = draw(ties)
    total, weight, start = 0.0, 0, 0
    for size in SIZES:
        part = {name: values[start : start + size] for name, values in columns.items()}
        start += size
        order = np.argsort(part["mean"], kind="stable")
        for cell in np.array_split(order, min(CELLS, size // LEAST)) if size >= LEAST else []:
            total += len(cell) * spearmanr(part["c"][cell], part["change"][cell]).statistic
            weight += len(cell)
    assert weight == sum(SIZES) - 9
    assert correlations(columns).pair("c", "change").within.value == pytest.approx(total / weight, abs=1e-10)


def test_a_constant_has_no_correlation_and_cells_where_it_is_constant_do_not_count():
    columns = draw()
    columns["flat"] = np.zeros(sum(SIZES))
    columns["half"] = np.where(np.arange(sum(SIZES)) < SIZES[0], columns["c"], 0)  # varies in the first tensor alone
    found = correlations(columns)
    assert found.pair("flat", "c").all.value is None
    assert found.pair("flat", "c").within.value is None
    alone = RankCorrelations(
        {name: torch.from_numpy(columns[name][: SIZES[0]]) for name in ("c", "change", "mean")},
        torch.from_numpy(columns["mean"][: SIZES[0]]), SIZES[:1],
    )  # fmt: skip
    assert found.pair("half", "change").within.value == pytest.approx(alone.pair("c", "change").within.value)
    assert alone.pair("c", "change").all.low is None  # one tensor has no spread between tensors


def test_intervals_are_those_of_resampled_tensors():
    """By copies of whole tensors, with the ranks of the whole network."""
    columns = draw()
    found = correlations(columns).pair("c", "change").all
    ranks = {name: rankdata(columns[name]) for name in ("c", "change")}
    parts = np.split(np.arange(sum(SIZES)), np.cumsum(SIZES)[:-1])
    random = np.random.default_rng(0)
    drawn = []
    for _ in range(4_000):
        chosen = np.concatenate([parts[i] for i in random.integers(len(SIZES), size=len(SIZES))])
        drawn.append(np.corrcoef(ranks["c"][chosen], ranks["change"][chosen])[0, 1])
    assert [found.low, found.high] == pytest.approx(np.quantile(drawn, [0.025, 0.975]).tolist(), abs=0.02)


def test_the_same_key_gives_the_same_interval():
    columns = draw()
    first, again, other = (correlations(columns, key).pair("c", "change") for key in ("a", "a", "b"))
    assert first == again
    assert first != other
    assert first.all.value == other.all.value


def test_a_difference_of_correlations_is_resampled_together():
    found = correlations(draw())
    same = found.combine([(1.0, "c", "change"), (-1.0, "c", "change")]).all
    assert (same.value, same.low, same.high) == (0, 0, 0)
    mean = found.combine([(0.5, "c", "change"), (0.5, "c", "mean")]).all.value
    assert mean == pytest.approx((found.pair("c", "change").all.value + found.pair("c", "mean").all.value) / 2)
