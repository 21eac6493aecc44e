"""Mean, spread and c against numpy and literal examples, and the laws c obeys."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dspreg import ParamVector, coefficient_of_variation
from dspreg.sensitivity.statistics import BLOCK, Spread, coefficients, rank_correlation
from dspreg.sensitivity.summary import HALVES, Domain, Summary


def vectors(rows):
    return [ParamVector({"w": torch.tensor(row, dtype=torch.float64)}) for row in rows]


@pytest.mark.parametrize(
    ("s", "c"),
    [
        ((1.0, 4.0), 0.6),  # mean 2.5, deviation 1.5
        ((1.0, 9.0), 0.8),
        ((1.0, 2.0, 3.0), math.sqrt(2 / 3) / 2),
        ((5.0, 5.0, 5.0), 0.0),
        ((0.0, 0.0), 0.0),  # 0/0 := 0
        ((0.0, 0.0, 7.0), math.sqrt(2)),  # one domain has it all: √(D−1)
        ((0.0, 0.0, 0.0, 1.0), math.sqrt(3)),
    ],
)
def test_c_of_literal_sensitivities(s, c):
    assert coefficient_of_variation(vectors([[x] for x in s]))["w"].item() == pytest.approx(c, abs=1e-15)


def test_eps_enters_the_denominator():
    c = coefficient_of_variation(vectors([[1.0], [4.0]]), eps=0.5)
    assert c["w"].item() == pytest.approx(1.5 / 3.0)


sensitivities = st.lists(st.lists(st.floats(1e-3, 1e3), min_size=4, max_size=4), min_size=2, max_size=6)


@settings(max_examples=150, deadline=None)
@given(sensitivities, st.integers(-90, 90), st.randoms(use_true_random=False))
def test_laws_of_c(rows, exponent, random):
    c = coefficient_of_variation(vectors(rows))["w"]
    expected = np.std(rows, axis=0) / np.mean(rows, axis=0)
    np.testing.assert_allclose(c, expected, rtol=1e-7, atol=1e-12)
    assert (c >= 0).all()
    assert (c <= math.sqrt(len(rows) - 1)).all()
    scaled = coefficient_of_variation(vectors(np.array(rows) * 10.0**exponent))["w"]
    np.testing.assert_allclose(scaled, c, rtol=1e-7, atol=1e-12)
    shuffled = random.sample(rows, len(rows))
    np.testing.assert_allclose(coefficient_of_variation(vectors(shuffled))["w"], c, rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose(coefficient_of_variation(vectors(rows + rows))["w"], c, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1e160, 1e300])
def test_c_survives_the_ends_of_float64(scale):
    """Squares of such numbers are 0 or infinite; only roots are ever formed."""
    c = coefficient_of_variation(vectors([[1.0 * scale], [4.0 * scale]]))
    assert c["w"].item() == pytest.approx(0.6, rel=1e-12)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 5), st.integers(1, 40)), min_size=2, max_size=9))
def test_spread_is_numpys(pairs):
    values, weights = map(np.array, zip(*pairs, strict=True))
    spread = Spread()
    for value, weight in pairs:
        spread.add({"w": torch.tensor([value * weight], dtype=torch.float64)}, over=weight, weight=weight)
    mean = np.average(values, weights=weights)
    variance = np.average((values - mean) ** 2, weights=weights)
    assert spread.mean["w"].item() == pytest.approx(mean, abs=1e-12)
    relative = math.sqrt(spread.relative["w"].item() / weights.sum())
    assert relative * mean == pytest.approx(np.sqrt(variance), abs=1e-9)


@pytest.mark.parametrize("size", [1, BLOCK - 1, BLOCK, 2 * BLOCK + 3])
def test_blocks_cover_everything_however_it_lies_in_memory(size):
    s = torch.rand(4, 3, size, dtype=torch.float64)
    s[0] = 0
    s[:, 1, 0] = 0
    spread = Spread()
    for one in s:
        spread.add({"w": one.T.contiguous().T})
    expected = torch.where(s.sum(0) > 0, s.std(0, correction=0) / s.mean(0), 0.0)
    assert torch.allclose(spread.c()["w"], expected, rtol=1e-12)


@pytest.mark.parametrize("shape", [(), (0,), (5,), (BLOCK + 3,), (7, 3, 2, BLOCK // 16), (4, 1, 3)])
@pytest.mark.parametrize("floor", [0.0, 0.3])
def test_c_of_sums_at_hand_however_they_lie_in_memory(shape, floor):
    sums, over = torch.rand(3, *shape, dtype=torch.float64), [2.0, 5.0, 9.0]
    if shape and shape[0]:
        sums[:, 0] = 0  # nobody is sensitive
        sums[:2, -1] = 0  # one domain alone is
    s = torch.stack([x / n for x, n in zip(sums, over, strict=True)])
    expected = torch.where(s.mean(0) > 0, (s - s.mean(0)).square().mean(0).sqrt() / (s.mean(0) + floor), 0.0)
    orders = [range(len(shape)), [*range(2, len(shape)), 0, 1], [0, *range(2, len(shape)), 1]]
    for order in orders if len(shape) > 1 else orders[:1]:
        there = [1 + i for i in order]
        lying = sums.permute(0, *there).contiguous().permute(0, *(1 + list(order).index(i) for i in range(len(shape))))
        c = coefficients(lying, over, floor)
        assert c.is_contiguous()
        assert torch.allclose(c, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
def test_float32_is_enough_for_sums_at_hand(scale):
    s = torch.rand(3, 1000, dtype=torch.float64).square() * scale
    c = coefficients((s * 16).float(), [16.0] * 3).double()
    assert (c - s.std(0, correction=0) / s.mean(0)).abs().max() < 1e-6


def test_float32_is_enough_for_c():
    """Held in float32 c has an error of about 1e-7, also where s is as small as float32 can hold."""
    for scale in (1.0, 1e-30, 1e30):
        s = torch.rand(5, 1000, dtype=torch.float64).square() * scale
        spread = Spread()
        for one in s:
            spread.add({"w": one.float()})
        assert (spread.c()["w"].double() - s.std(0, correction=0) / s.mean(0)).abs().max() < 1e-6


def test_standard_error_is_that_of_the_mean_of_all_samples():
    """Batches of unequal size: the mean of the estimate over many repetitions is the true squared error σ²/N."""
    random = np.random.default_rng(0)
    sizes, estimates, means = (5, 9, 16, 30), [], []
    for _ in range(4000):
        spread = Spread()
        for n in sizes:
            spread.add({"w": torch.tensor([random.normal(9.0, 2.0, n).mean()])}, weight=n)
        means.append(spread.mean["w"].item())
        estimates.append(spread.squared_error("w").item() * means[-1] ** 2)
    assert np.mean(estimates) == pytest.approx(4.0 / sum(sizes), rel=0.05)
    assert np.var(means) == pytest.approx(4.0 / sum(sizes), rel=0.08)


def test_debiased_removes_what_noise_adds():
    """Seen with noise, E[v] is too large by (1 − 1/D)·SE², and that is taken off."""
    batches = {"a": (0.9, 1.1), "b": (1.8, 2.2), "c": (2.4, 3.6)}  # SE 0.1, 0.2, 0.6
    summary, domains = Summary({}, 1.0, 0.0), []
    for pair in batches.values():
        domains.append(Domain())
        for mean in pair:
            domains[-1].add({"w": torch.tensor([mean * 4], dtype=torch.float64)}, 4)
    summary.add("w", domains, None)
    expected = math.sqrt(2 / 3 - (2 / 3) * (0.01 + 0.04 + 0.36) / 3) / 2
    assert summary.get("c_debiased")["w"].item() == pytest.approx(expected, rel=1e-12)
    assert summary.get("c")["w"].item() == pytest.approx(math.sqrt(2 / 3) / 2, rel=1e-12)


def test_nothing_remains_where_there_is_more_noise_than_spread():
    summary, domains = Summary({}, 1.0, 0.0), [Domain(), Domain()]
    for domain, pair in zip(domains, ((1.0, 3.0), (1.0, 3.2)), strict=True):
        for mean in pair:
            domain.add({"w": torch.tensor([mean], dtype=torch.float64)}, 1)
    summary.add("w", domains, None)
    assert summary.get("c")["w"].item() > 0
    assert summary.get("c_debiased")["w"].item() == 0


def test_reliability_of_many_parameters_is_that_of_some(monkeypatch):
    random = np.random.default_rng(0)
    summary = Summary({}, 1.0, 0.0)
    odd = torch.tensor(random.normal(size=40_000))
    even = odd + torch.tensor(random.normal(size=40_000))
    for half, values in zip(HALVES, (odd, even), strict=True):
        summary.halves[half].append(values)
    whole = summary.reliability()
    assert whole == pytest.approx(stats.spearmanr(odd, even).statistic, abs=1e-9)
    monkeypatch.setattr("dspreg.sensitivity.summary.RANKED", 10_000)
    assert summary.reliability() != whole
    assert summary.reliability() == pytest.approx(whole, abs=0.03)
    assert summary.reliability() == summary.reliability()


@pytest.mark.parametrize("ties", [False, True])
def test_rank_correlation_is_spearmans(ties):
    random = np.random.default_rng(1)
    a, b = random.normal(size=(2, 500))
    b += a
    if ties:
        a, b = np.round(a), np.maximum(b, 0)
    ours = rank_correlation(torch.tensor(a), torch.tensor(b))
    assert ours == pytest.approx(stats.spearmanr(a, b).statistic, abs=1e-12)
