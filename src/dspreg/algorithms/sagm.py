"""SAGM: lower the loss, the worst loss nearby and the gap between them together."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from dspreg.algorithms.base import Algorithm
from dspreg.batches import Batch, Objective
from dspreg.distributions import Choice
from dspreg.errors import ConfigError
from dspreg.vectors import ParamVector, displaced


class SAGM(Algorithm):
    """Sharpness-aware gradient matching: half the gradient at θ, half that at a point nearby, moved back a little.

        ½ g + ½ ∇L(θ + (ρ/‖g‖ − α) g),  g = ∇L(θ)

    Moving back by α g makes the second gradient reward its agreement with the first.

    Wang et al., CVPR 2023. `rho` is ρ, `alpha` is α and multiplies the gradient itself, not its direction. The authors'
    search draws α from ρ's values; ours from those they use. Both passes see the same dropout mask, theirs do not.
    Changes `gradient`; two passes.
    """

    space = {"alpha": Choice(5e-4, 1e-3)}

    def __init__(self, base: Algorithm | None = None, *, rho: float = 0.05, alpha: float = 1e-3):
        super().__init__(base)
        if not rho > 0:
            raise ConfigError(f"SAGM: rho={rho}; wanted a number > 0")
        if not 0 <= alpha < float("inf"):
            raise ConfigError(f"SAGM: alpha={alpha}; wanted a finite number ≥ 0")
        self.rho, self.alpha = rho, alpha

    def gradient(self, objective: Objective, batches: Sequence[Batch]) -> tuple[Tensor, ParamVector]:
        loss, g = self.base.gradient(objective, batches)
        with displaced(self.net, g * (self.rho / (g.norm() + 1e-12) - self.alpha)):
            _, ahead = self.base.gradient(objective, batches)
        return loss, g * 0.5 + ahead * 0.5
