"""MMD: make features of all domains have the same distribution."""

from __future__ import annotations

from torch import Tensor

from dspreg.algorithms.base import Algorithm
from dspreg.batches import Outputs, mean_over_pairs
from dspreg.distributions import LogUniform
from dspreg.errors import ConfigError

GAMMAS = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3)


class MMD(Algorithm):
    """Shrink the maximum mean discrepancy between the domains' features.

        L + weight · mean_{i<j} [ K(i, i) + K(j, j) − 2 K(i, j) ],  K(a, b) = mean_{uv} Σ_γ exp(−γ ‖a_u − b_v‖²)

    over the features (B, F) of every pair of domains and γ = 10⁻³ … 10³. K(i, i) includes u = v, so the estimate is
    biased and at least 0.

    Li et al., CVPR 2018, in DomainBed's form: no autoencoder, no adversary; L stays as it is below, where DomainBed
    has the mean over domains: the same for batches of one size. Changes `loss`; no extra pass.
    """

    space = {"weight": LogUniform(-1, 1, key="mmd_gamma")}

    def __init__(self, base: Algorithm | None = None, *, weight: float = 1.0):
        super().__init__(base)
        if not 0 <= weight < float("inf"):
            raise ConfigError(f"MMD: weight={weight}; wanted a finite number ≥ 0")
        self.weight = weight

    def loss(self, out: Outputs) -> Tensor:
        gap = mean_over_pairs(discrepancy, out.by_domain(out.features))
        self.note(gap=gap)
        return self.base.loss(out) + self.weight * gap


def discrepancy(a: Tensor, b: Tensor) -> Tensor:
    """The squared maximum mean discrepancy of two sets of features (B, F)."""
    return kernel(a, a).mean() + kernel(b, b).mean() - 2 * kernel(a, b).mean()


def kernel(a: Tensor, b: Tensor) -> Tensor:
    """Σ_γ exp(−γ ‖a_u − b_v‖²). (B_a, B_b)"""
    squares = a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.T
    squares = squares.clamp(min=1e-30)  # multiplied out they may round to less than nothing
    return sum((squares.mul(-gamma).exp() for gamma in GAMMAS[1:]), squares.mul(-GAMMAS[0]).exp())
