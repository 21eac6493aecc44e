"""SAM: descend along the gradient taken at the worst point nearby."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from dspreg.algorithms.base import Algorithm
from dspreg.batches import Batch, Objective
from dspreg.distributions import Choice
from dspreg.errors import ConfigError
from dspreg.vectors import ParamVector, displaced


class SAM(Algorithm):
    """Sharpness-aware minimisation: descend along the gradient of the worst point nearby.

        g' = ∇L(θ + ρ g/‖g‖),  g = ∇L(θ)

    Foret et al., ICLR 2021. `rho` is ρ, an absolute radius in the norm of all parameters together. The loss returned
    is that at θ, and both passes see the same dropout mask, as in the authors' code. Changes `gradient`; two passes.
    """

    space = {"rho": Choice(0.01, 0.02, 0.05, 0.1)}

    def __init__(self, base: Algorithm | None = None, *, rho: float = 0.05):
        super().__init__(base)
        if not rho > 0:
            raise ConfigError(f"SAM: rho={rho}; wanted a number > 0")
        self.rho = rho

    def gradient(self, objective: Objective, batches: Sequence[Batch]) -> tuple[Tensor, ParamVector]:
        loss, g = self.base.gradient(objective, batches)
        scale = self.rho / g.norm().clamp(min=1e-12)  # at a stationary point there is no way up
        with displaced(self.net, g * scale):
            _, g = self.base.gradient(objective, batches)
        return loss, g
