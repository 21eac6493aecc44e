"""IGA: the same gradient in every domain."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dspreg.algorithms.base import Algorithm
from dspreg.algorithms.compatibility import Compatibility
from dspreg.algorithms.domain_gradients import gradient_by_domain
from dspreg.batches import Batch, Objective
from dspreg.distributions import LogUniform
from dspreg.errors import ConfigError
from dspreg.networks.batch_norm import scratch_buffers
from dspreg.penalty.engines import call_twice_differentiable
from dspreg.vectors import ParamVector, average, gradient


class IGA(Algorithm):
    """Inter-environmental gradient alignment: penalise the spread of the domains' gradients.

        L + weight · Σ_d ‖g_d − ḡ‖²,  g_d = ∇L_d, ḡ = mean_d g_d        its gradient: ∇L + 2 weight · Σ_d H_d (g_d − ḡ)

    over all parameters; H_d is the Hessian of L_d, and ḡ contributes nothing, as Σ_d (g_d − ḡ) = 0.

    Koyama & Yamaguchi, 2020, in DomainBed's form: a sum, no mean, over domains and parameters. L stays as it is below,
    where DomainBed has the mean over domains: the same for batches of one size. g_d are plain gradients of the
    objective, whatever a gradient layer below makes of them. Changes `gradient`; one pass and a double backward more.
    """

    compatibility = Compatibility(needs_several_domains=True)
    space = {"weight": LogUniform(1, 5, key="penalty")}

    def __init__(self, base: Algorithm | None = None, *, weight: float = 1000.0):
        super().__init__(base)
        if not 0 <= weight < float("inf"):
            raise ConfigError(f"IGA: weight={weight}; wanted a finite number ≥ 0")
        self.weight = weight

    def gradient(self, objective: Objective, batches: Sequence[Batch]) -> tuple[Tensor, ParamVector]:
        if len(batches) == 1 or not self.weight:
            return self.base.gradient(objective, batches)
        loss, g, each = gradient_by_domain(self, objective, batches)
        mean, pull = average(each), ParamVector()
        self.note(penalty=torch.stack([(one - mean).square().sum() for one in each]).sum())
        with scratch_buffers(self.net):
            for batch, one in zip(batches, each, strict=True):  # one graph at a time
                pull = pull + self._curvature(objective, batch, one - mean)
        return loss, g + pull * (2 * self.weight)

    def _curvature(self, objective: Objective, batch: Batch, v: ParamVector) -> ParamVector:
        """H_d v."""

        def compute() -> ParamVector:
            return gradient(gradient(objective([batch]), self.net, create_graph=True).dot(v), self.net)

        return call_twice_differentiable(self.net, compute, "IGA", "")
