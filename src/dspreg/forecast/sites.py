"""How well a model will do on a new site: a prediction interval over sites, and not the standard error of their mean.

The sites that were held out are taken for a few draws from all the sites there might be, in no particular order, and
the new one for another draw. On the scale of logits, where no interval leaves [0, 1],

    η_s ~ N(μ, τ²)        images recognised at site s ~ Binomial(images, 1 / (1 + exp(−η_s)))

τ is how far sites differ, and nobody knows it from four of them: the forecast is the mean over all μ and τ, each as
credible as the held-out sites and a prior make it. Every integral is a sum over a grid, so that nothing is approximated
where accuracies are near 1 or images are few.

    μ ~ N(1, 2²)        τ² ~ Gamma(1/4, rate 1/2)

The prior lies between 1/τ, under which the interval would be Student's with S − 1 degrees of freedom, and a half-normal
one, and says that sites rarely differ by a factor of twenty in their odds. `bench/forecast.py` compares it with others
on made families of sites, and shows how often the interval is right on further ones.

Higgins, Thompson & Spiegelhalter, JRSS A 2009, on why it is the interval of a new site that matters, and not that of
the mean; Partlett & Riley, Stat. Med. 2017, and Nagashima, Noma & Furukawa, SMMR 2019, on why the usual one is too
short where there are few.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from numpy.typing import NDArray

from dspreg.errors import DataError

Array = NDArray[np.float64]
LEVELS = (0.8, 0.9)
FEWEST = 2  # sites that say anything of how sites differ
SHAPE, RATE = 0.25, 0.5  # of the prior of τ²
CENTRE, SPREAD = 1.0, 2.0  # of the prior of μ, in logits
NEAR = 0.01  # trainings whose logits differ by less are the same


@dataclass(frozen=True)
class SiteAccuracy:
    """What came of one site that was held out.

    Attributes:
        site: Its name.
        images: Of it that were classified.
        accuracies: Share of them that was recognised, by each training that did not see the site.
    """

    site: str
    images: int
    accuracies: tuple[float, ...]

    def __post_init__(self) -> None:
        if self.images < 1 or not self.accuracies or not all(0 <= each <= 1 for each in self.accuracies):
            raise DataError(
                f"site {self.site!r} has {self.images} images and the accuracies {self.accuracies}; wanted at least "
                "one image, and accuracies between 0 and 1"
            )

    @property
    def accuracy(self) -> float:
        """Mean over trainings."""
        return sum(self.accuracies) / len(self.accuracies)


@dataclass(frozen=True)
class Interval:
    """Where the accuracy on a new site lies in a share `level` of all cases."""

    level: float
    low: float
    high: float

    def __contains__(self, accuracy: object) -> bool:
        return isinstance(accuracy, float | int) and self.low <= accuracy <= self.high


@dataclass(frozen=True)
class Forecast:
    """The accuracy on a new site, as a distribution.

    Attributes:
        sites: It was made from.
        chances: Of each logit of `grid()`; they add up to 1.
        spread: Standard deviation of sites in logits, as far as these sites tell: the median of what is credible.
    """

    sites: tuple[SiteAccuracy, ...]
    chances: Array = field(repr=False)
    spread: float

    @property
    def expected(self) -> float:
        """The median: a new site is as often better as worse."""
        return float(self.quantile(0.5))

    def interval(self, level: float = 0.9, images: int | None = None) -> Interval:
        """Where the accuracy on the new site lies in so many of all cases.

        Args:
            level: Share of the cases.
            images: Of the new site that the accuracy is measured on, which adds to the interval; None: of all images
                that the site will ever have.
        """
        tail = (1 - level) / 2
        if images is None:
            return Interval(level, float(self.quantile(tail)), float(self.quantile(1 - tail)))
        return Interval(level, self._measured_quantile(tail, images), self._measured_quantile(1 - tail, images))

    def quantile(self, share: float) -> float:
        """The accuracy that a new site stays below with this probability."""
        eta, step = grid(), grid()[1] - grid()[0]
        return float(sigmoid(np.interp(share, np.cumsum(self.chances), eta + step / 2)))

    def chance_below(self, accuracy: float) -> float:
        """Probability that a new site is worse than this."""
        if not 0 < accuracy < 1:
            return float(accuracy >= 1)
        eta, step = grid(), grid()[1] - grid()[0]
        return float(np.interp(math.log(accuracy / (1 - accuracy)), eta + step / 2, np.cumsum(self.chances)))

    def _measured_quantile(self, share: float, images: int) -> float:
        """Of the accuracy on so many images, each recognised with the site's own probability."""
        p = sigmoid(grid())
        there = self.chances > 1e-9
        p, chances = p[there], self.chances[there]
        low, high = 0, images  # the least count of recognised images that is not exceeded often enough
        while low < high:
            middle = (low + high) // 2
            if float(chances @ binomial_cumulative(middle, images, p)) < share:
                low = middle + 1
            else:
                high = middle
        return low / images


def forecast_new_site(sites: Sequence[SiteAccuracy]) -> Forecast:
    """What to expect of a model, trained in the same way on all of these sites, on another one.

        sites = [SiteAccuracy("A", 500, (0.83,)), SiteAccuracy("B", 300, (0.71,)), SiteAccuracy("C", 400, (0.88,))]
        forecast_new_site(sites).interval(0.9)

    Where several trainings held a site out, their mean counts, and how they differ is added for the new site, where
    one of them will be used.

    Args:
        sites: What came of each when it was held out. Their order does not matter; that they could as well have come
            in another one, and the new one among them, is what the forecast stands on.

    Raises:
        DataError: There are fewer than two.
    """
    if len(sites) < FEWEST:
        raise DataError(
            f"a forecast needs at least {FEWEST} sites that were held out in turn, and there "
            f"{'is 1' if len(sites) == 1 else 'is none'}: nothing says how far sites differ"
        )
    centres, spreads, prior = _parameters()
    eta = grid()
    right = np.array([each.accuracy * each.images for each in sites])[:, None]
    images = np.array([float(each.images) for each in sites])[:, None]
    log_p, log_q = -np.logaddexp(0, -eta), -np.logaddexp(0, eta)
    likelihood = right * log_p + (images - right) * log_q  # of each logit
    likelihood = np.exp(likelihood - likelihood.max(1, keepdims=True))
    evidence = np.log(np.maximum(likelihood @ _densities(), 1e-300)).sum(0)  # of each μ and τ
    weights = np.exp(evidence - evidence.max()) * prior
    weights /= weights.sum()
    chances = _densities() @ weights
    by_spread = weights.reshape(len(centres), len(spreads)).sum(0).cumsum()
    spread = float(np.exp(np.interp(0.5, by_spread, np.log(spreads))))
    return Forecast(tuple(sites), _widen(chances, trial_spread(sites)), spread)


def trial_spread(sites: Sequence[SiteAccuracy]) -> float:
    """Standard deviation, in logits, that one training has and the mean of several lacks; 0 if there was one each."""
    squares, freedom, lacking = 0.0, 0, []
    for each in sites:
        logits = [math.log((a * each.images + 0.5) / ((1 - a) * each.images + 0.5)) for a in each.accuracies]
        mean = sum(logits) / len(logits)
        squares += sum((value - mean) ** 2 for value in logits)
        freedom += len(logits) - 1
        lacking.append(1 - 1 / len(logits))
    return math.sqrt(squares / freedom * sum(lacking) / len(lacking)) if freedom else 0.0


def exchangeable_chance(sites: int) -> float:
    """Probability that a new site is worse than the worst of so many, whatever the distribution: their ranks
    are equal."""
    return 1 / (sites + 1)


def width_with_another(found: Forecast, level: float = 0.9) -> float:
    """How wide the interval is to be expected once one more site has been held out, in accuracy.

    The mean over what that site may bring, by the forecast itself.
    """
    images = round(float(np.median([each.images for each in found.sites])))
    few = [(n + 0.5) / 9 for n in range(9)]
    widths = []
    for share in few:
        more = SiteAccuracy("another", images, (found.quantile(share),))
        interval = forecast_new_site([*found.sites, more]).interval(level)
        widths.append(interval.high - interval.low)
    return sum(widths) / len(widths)


# The grids.


@cache
def grid() -> Array:
    """Logits of accuracies."""
    return np.linspace(-8, 8, 801)


def sigmoid(eta: Array | float) -> Array:
    return np.asarray(1 / (1 + np.exp(-np.asarray(eta, float))))


@cache
def _parameters() -> tuple[Array, Array, Array]:
    """Every μ, every τ, and the prior of each pair, (μ, τ) in one row."""
    centres, spreads = np.linspace(-5, 7, 73), np.exp(np.linspace(math.log(0.05), math.log(4), 30))
    of_centre = np.exp(-0.5 * ((centres - CENTRE) / SPREAD) ** 2)
    # a density of τ² in steps of log τ: dτ² = 2τ² d log τ
    of_spread = spreads ** (2 * SHAPE) * np.exp(-RATE * spreads**2)
    return centres, spreads, (of_centre[:, None] * of_spread[None]).ravel()


@cache
def _densities() -> Array:
    """(logits, pairs): the probability of each logit under each μ and τ."""
    centres, spreads, _ = _parameters()
    z = (grid()[:, None, None] - centres[None, :, None]) / spreads[None, None, :]
    found = np.exp(-0.5 * z * z).reshape(len(grid()), -1)
    return np.asarray(found / found.sum(0))


def _widen(chances: Array, spread: float) -> Array:
    """With normal noise added to the logit."""
    if spread < NEAR:
        return chances
    step = grid()[1] - grid()[0]
    reach = min(len(chances) // 2 - 1, math.ceil(5 * spread / step))
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) * step / spread) ** 2)
    found = np.convolve(chances, kernel / kernel.sum(), mode="same")
    return np.asarray(found / found.sum())


def binomial_cumulative(count: int, of: int, p: Array) -> Array:
    """P(X ≤ count) of X ~ Binomial(of, p), for each p; exact up to a thousand, by the normal law beyond."""
    if count >= of:
        return np.ones_like(p)
    if of <= 1_000:
        ks = np.arange(count + 1)
        ways = [math.lgamma(of + 1) - math.lgamma(k + 1) - math.lgamma(of - k + 1) for k in ks]
        terms = np.array(ways)[:, None] + ks[:, None] * np.log(p) + (of - ks)[:, None] * np.log1p(-p)
        return np.asarray(np.minimum(1.0, np.exp(terms).sum(0)))
    z = (count + 0.5 - of * p) / np.sqrt(of * p * (1 - p))
    return np.array([0.5 * (1 + math.erf(each / math.sqrt(2))) for each in z])
