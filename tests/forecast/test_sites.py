"""The forecast for a new site, against integrals done another way, and against what really comes."""

import math

import numpy as np
import pytest
from scipy import stats

from dspreg import DataError
from dspreg.forecast.sites import (
    Interval,
    SiteAccuracy,
    binomial_cumulative,
    exchangeable_chance,
    forecast_new_site,
    trial_spread,
    width_with_another,
)


def sites(*accuracies, images=400):
    return [SiteAccuracy(f"site {n}", images, (a,)) for n, a in enumerate(accuracies)]


def cumulative_by_quadrature(accuracies, images, at):
    """P(accuracy of a new site ≤ at): Gauss-Hermite over each site, Simpson-like sums over μ and log τ."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(101)
    weights = weights / weights.sum()
    total = below = 0.0
    for tau in np.exp(np.linspace(math.log(0.05), math.log(4.0), 30)):
        for mu in np.linspace(-5, 7, 61):
            evidence = 1.0
            for accuracy, n in zip(accuracies, images, strict=True):
                p = 1 / (1 + np.exp(-(mu + tau * nodes)))
                evidence *= float(weights @ stats.binom.pmf(round(accuracy * n), n, p))
            prior = stats.norm.pdf(mu, 1, 2) * stats.gamma.pdf(tau**2, 0.25, scale=2) * 2 * tau**2
            total += evidence * prior
            below += evidence * prior * stats.norm.cdf((math.log(at / (1 - at)) - mu) / tau)
    return below / total


@pytest.mark.parametrize("accuracies", [(0.6, 0.9), (0.85, 0.7, 0.8)])
def test_it_is_the_integral_that_is_written_down(accuracies):
    images = (20, 30, 25)[: len(accuracies)]
    made = [SiteAccuracy(str(n), i, (a,)) for n, (a, i) in enumerate(zip(accuracies, images, strict=True))]
    found = forecast_new_site(made)
    for at in (0.5, 0.85):
        assert found.chance_below(at) == pytest.approx(cumulative_by_quadrature(accuracies, images, at), abs=0.01)
    assert found.chance_below(found.quantile(0.3)) == pytest.approx(0.3, abs=1e-6)


def test_the_interval_of_a_sample_is_that_of_binomials_at_the_logits():
    found = forecast_new_site(sites(0.8, 0.7, 0.9))
    drawn = np.random.default_rng(0)
    p = np.array([found.quantile(share) for share in drawn.random(20_000)])
    measured = drawn.binomial(40, p) / 40
    interval = found.interval(0.8, images=40)
    assert interval.low == pytest.approx(np.quantile(measured, 0.1), abs=0.026)  # a step of one image
    assert interval.high == pytest.approx(np.quantile(measured, 0.9), abs=0.026)
    assert interval.low <= found.interval(0.8).low
    many = found.interval(0.8, images=200_000)
    assert (many.low, many.high) == pytest.approx((found.interval(0.8).low, found.interval(0.8).high), abs=0.002)


@pytest.mark.parametrize("of", [1, 7, 1_000])
def test_binomial_sums_are_scipys(of):
    p = np.array([0.001, 0.3, 0.5, 0.97])
    for count in {0, of // 3, of - 1, of}:
        np.testing.assert_allclose(binomial_cumulative(count, of, p), stats.binom.cdf(count, of, p), atol=1e-10)


def test_of_many_images_the_normal_law_is_near():
    p = np.array([0.2, 0.5, 0.9])
    np.testing.assert_allclose(binomial_cumulative(2_500, 5_000, p), stats.binom.cdf(2_500, 5_000, p), atol=2e-3)


def test_the_interval_holds_new_sites_as_often_as_it_says_and_that_of_the_mean_does_not():
    random = np.random.default_rng(3)
    ours, of_mean = [], []
    for _ in range(25):  # families of sites
        centre, spread = random.uniform(0, 3), math.exp(random.uniform(math.log(0.15), math.log(1.2)))
        new = 1 / (1 + np.exp(-(centre + spread * random.standard_normal(500))))
        for count in (3, 5, 8):
            p = 1 / (1 + np.exp(-(centre + spread * random.standard_normal(count))))
            hits = random.binomial(200, p) / 200
            interval = forecast_new_site(sites(*hits, images=200)).interval(0.9)
            ours.append(np.mean((new >= interval.low) & (new <= interval.high)))
            half = stats.t.ppf(0.95, count - 1) * hits.std(ddof=1) / math.sqrt(count)
            of_mean.append(np.mean(abs(new - hits.mean()) <= half))
    assert 0.83 < np.mean(ours) < 0.96
    assert np.mean(of_mean) < 0.75


def test_what_does_not_matter_and_what_does():
    found = forecast_new_site(sites(0.7, 0.8, 0.9)).interval(0.9)
    again = forecast_new_site(sites(0.9, 0.7, 0.8)).interval(0.9)
    assert (found.low, found.high) == pytest.approx((again.low, again.high), abs=1e-9)
    alike = forecast_new_site(sites(0.8, 0.8, 0.8)).interval(0.9)
    assert alike.high - alike.low < found.high - found.low
    more = forecast_new_site(sites(*[0.7, 0.8, 0.9] * 4)).interval(0.9)
    assert more.high - more.low < found.high - found.low
    assert 0.8 in found
    assert 0.2 not in found
    assert "0.8" not in found


def test_it_stays_between_none_and_all():
    for accuracies in ((1.0, 1.0, 1.0), (0.0, 0.0), (0.0, 1.0)):
        interval = forecast_new_site(sites(*accuracies, images=5)).interval(0.9)
        assert 0 <= interval.low < interval.high <= 1


def test_several_trainings_add_what_one_lacks():
    assert trial_spread(sites(0.8, 0.7)) == 0
    varied = [SiteAccuracy("a", 1_000, (0.75, 0.85)), SiteAccuracy("b", 1_000, (0.6, 0.7))]
    logits = [[math.log((a * 1000 + 0.5) / ((1 - a) * 1000 + 0.5)) for a in each.accuracies] for each in varied]
    pooled = np.mean([np.var(each, ddof=1) for each in logits])
    assert trial_spread(varied) == pytest.approx(math.sqrt(pooled / 2))
    means = [SiteAccuracy(each.site, 1_000, (each.accuracy,)) for each in varied]
    wide, narrow = (forecast_new_site(each).interval(0.8) for each in (varied, means))
    assert wide.low < narrow.low
    assert wide.high > narrow.high


def test_one_more_site_narrows_and_costs_no_assumption_to_rank():
    found = forecast_new_site(sites(0.8, 0.7, 0.9))
    interval = found.interval(0.9)
    assert 0.5 * (interval.high - interval.low) < width_with_another(found) < interval.high - interval.low
    random = np.random.default_rng(0)
    drawn = random.standard_cauchy((20_000, 5))  # any law: the last is the worst as often as each other
    assert (drawn[:, 4] < drawn[:, :4].min(1)).mean() == pytest.approx(exchangeable_chance(4), abs=0.01)


def test_what_says_nothing_is_refused():
    with pytest.raises(DataError, match="at least 2 sites"):
        forecast_new_site(sites(0.8))
    for images, accuracies in ((0, (0.5,)), (5, ()), (5, (1.2,)), (5, (math.nan,))):
        with pytest.raises(DataError, match="wanted at least"):
            SiteAccuracy("a", images, accuracies)
    assert 0.5 in Interval(0.9, 0.5, 0.6)
