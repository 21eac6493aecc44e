"""CORAL: align the first two moments of the features across domains."""

from __future__ import annotations

from torch import Tensor

from dspreg.algorithms.base import Algorithm
from dspreg.batches import Outputs, mean_over_pairs
from dspreg.distributions import LogUniform
from dspreg.errors import ConfigError


class CORAL(Algorithm):
    """Make features of all domains have the same mean and covariance.

        L + weight · mean_{i<j} [ mean_f (μ_i − μ_j)² + mean_{fg} (C_i − C_j)² ]

    μ_d (F,) and C_d (F, F) are of the domain's features in the batch, C with denominator B − 1.

    Sun & Saenko, Deep CORAL, 2016, in DomainBed's form: with the means, without the factor 1/4; L stays as it is
    below, where DomainBed has the mean over domains: the same for batches of one size. Changes `loss`; no extra pass.
    """

    space = {"weight": LogUniform(-1, 1, key="mmd_gamma")}

    def __init__(self, base: Algorithm | None = None, *, weight: float = 1.0):
        super().__init__(base)
        if not 0 <= weight < float("inf"):
            raise ConfigError(f"CORAL: weight={weight}; wanted a finite number ≥ 0")
        self.weight = weight

    def loss(self, out: Outputs) -> Tensor:
        gap = mean_over_pairs(moment_gap, out.by_domain(out.features))
        self.note(gap=gap)
        return self.base.loss(out) + self.weight * gap


def moment_gap(a: Tensor, b: Tensor) -> Tensor:
    """Mean squared difference of the means plus that of the covariances of two sets of features (B, F)."""
    means = (a.mean(0) - b.mean(0)).square().mean()
    return means + (covariance(a) - covariance(b)).square().mean()


def covariance(features: Tensor) -> Tensor:
    """(F, F), with denominator B − 1; zero for a single sample."""
    centred = features - features.mean(0)
    return centred.T @ centred / max(len(features) - 1, 1)
