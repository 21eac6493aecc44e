"""Mean, spread and c against numpy and literal examples, and the laws c obeys."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dspreg import ParamVector, coefficient_of_variation
from dspreg.sensitivity.statistics import Moments, debiased, rank_correlation, root_mean_square


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
@given(st.lists(st.tuples(st.floats(-5, 5), st.integers(1, 40)), min_size=2, max_size=9))
def test_moments_are_those_of_numpy(pairs):
    values, weights = map(np.array, zip(*pairs, strict=True))
    moments = Moments()
    for value, weight in pairs:
        moments.add(ParamVector({"w": torch.tensor([value], dtype=torch.float64)}), weight)
    mean = np.average(values, weights=weights)
    variance = np.average((values - mean) ** 2, weights=weights)
    assert moments.mean["w"].item() == pytest.approx(mean, abs=1e-12)
    assert moments.deviation["w"].item() == pytest.approx(np.sqrt(variance), abs=1e-9)


def test_standard_error_is_that_of_the_mean_of_all_samples():
    """Batches of unequal size: the mean of the estimate over many repetitions is the true squared error σ²/N."""
    random = np.random.default_rng(0)
    sizes, estimates, means = (5, 9, 16, 30), [], []
    for _ in range(4000):
        moments = Moments()
        for n in sizes:
            batch = torch.tensor([random.normal(3.0, 2.0, n).mean()])
            moments.add(ParamVector({"w": batch}), n)
        estimates.append(moments.standard_error["w"].item() ** 2)
        means.append(moments.mean["w"].item())
    assert np.mean(estimates) == pytest.approx(4.0 / sum(sizes), rel=0.05)
    assert np.var(means) == pytest.approx(4.0 / sum(sizes), rel=0.08)


def test_debiased_removes_what_noise_adds():
    """Seen with noise, E[v] is too large by (1 − 1/D)·SE², and that is taken off."""
    across = Moments(vectors([[1.0], [2.0], [3.0]]))
    noise = root_mean_square(vectors([[0.1], [0.2], [0.3]]))
    expected = math.sqrt(2 / 3 - (2 / 3) * (0.01 + 0.04 + 0.09) / 3) / 2
    assert debiased(across, noise)["w"].item() == pytest.approx(expected, rel=1e-12)
    assert debiased(across, noise * 100)["w"].item() == 0  # more noise than spread


@pytest.mark.parametrize("ties", [False, True])
def test_rank_correlation_is_spearmans(ties):
    random = np.random.default_rng(1)
    a, b = random.normal(size=(2, 500))
    b += a
    if ties:
        a, b = np.round(a), np.maximum(b, 0)
    ours = rank_correlation(torch.tensor(a), torch.tensor(b))
    assert ours == pytest.approx(stats.spearmanr(a, b).statistic, abs=1e-12)
