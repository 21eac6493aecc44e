"""Quantiles of Student's t, by SciPy, which is loaded when the first is asked for."""

from __future__ import annotations


def quantile(probability: float, freedom: float) -> float:
    """t with P(T ≤ t) = probability."""
    from scipy.special import stdtrit  # not scipy.stats, which takes four times as long to load

    return float(stdtrit(freedom, probability))
