"""GSAM: SAM that also shrinks the gap between the worst loss nearby and the loss itself."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from dspreg.algorithms.base import Algorithm
from dspreg.batches import Batch, Objective
from dspreg.distributions import Choice
from dspreg.errors import ConfigError
from dspreg.vectors import ParamVector, displaced

TINY = 1e-12


class GSAM(Algorithm):
    """Descend at the worst point nearby, and ascend along what is left of the gradient at θ beside that direction.

        p = ∇L(θ + ρ g/‖g‖),  g = ∇L(θ),  v = g − (⟨g, p⟩/‖p‖²) p,  direction p − α v

    v is orthogonal to p, so going up along it narrows the gap between both losses and leaves the worst one as it is, to
    first order.

    Zhuang et al., ICLR 2022. `rho` is ρ, constant as in the DG benchmarks, `alpha` is α; with α = 0 it is SAM. Both
    passes see the same dropout mask. Changes `gradient`; two passes.
    """

    space = {"alpha": Choice(0.01, 0.02, 0.05, 0.1)}

    def __init__(self, base: Algorithm | None = None, *, rho: float = 0.05, alpha: float = 1e-3):
        super().__init__(base)
        if not rho > 0:
            raise ConfigError(f"GSAM: rho={rho}; wanted a number > 0")
        if not 0 <= alpha < float("inf"):
            raise ConfigError(f"GSAM: alpha={alpha}; wanted a finite number ≥ 0")
        self.rho, self.alpha = rho, alpha

    def gradient(self, objective: Objective, batches: Sequence[Batch]) -> tuple[Tensor, ParamVector]:
        loss, g = self.base.gradient(objective, batches)
        length = g.norm()
        with displaced(self.net, g * (self.rho / (length + TINY))):
            _, p = self.base.gradient(objective, batches)
        steep = p.norm()
        cosine = g.dot(p) / (length * steep + TINY)
        self.note(cosine=cosine)
        beside = g - p * (cosine * length / (steep + TINY))
        return loss, p - beside * self.alpha
