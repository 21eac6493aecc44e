"""Student's t, for the few quantiles that intervals need; SciPy would be 100 MB for them."""

from __future__ import annotations

import math


def quantile(probability: float, freedom: float) -> float:
    """t with P(T ≤ t) = probability, for probabilities of at least one half."""
    low, high = 0.0, 1.0
    while cumulative(high, freedom) < probability:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if cumulative(middle, freedom) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def cumulative(t: float, freedom: float) -> float:
    """P(T ≤ t) = 1 − I_x(ν/2, ½)/2 with x = ν/(ν + t²), for t ≥ 0."""
    return 1 - beta(freedom / (freedom + t * t), freedom / 2, 0.5) / 2


def beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function, by its continued fraction (Lentz)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast on the other side alone
        return 1 - beta(1 - x, b, a)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    tiny = 1e-300
    c, d = 1.0, 1 / max(1 - (a + b) * x / (a + 1), tiny)
    value = d
    for m in range(1, 1_000):
        for top in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / (1 + top * d or tiny)
            c = 1 + top / c or tiny
            value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return front * value / a
