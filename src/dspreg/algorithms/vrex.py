"""VREx: the same risk in every domain."""

from __future__ import annotations

from torch import Tensor

from dspreg.algorithms.base import Algorithm
from dspreg.algorithms.warm_up import WarmUp
from dspreg.batches import Outputs
from dspreg.distributions import LogUniform


class VREx(WarmUp):
    """Risk extrapolation: penalise the variance of the domains' risks.

        L + weight · mean_d (R_d − R̄)²,  R_d = CE_d, R̄ = mean_d R_d

    Until step `warmup` the weight is 1; there the optimiser starts anew.

    Krueger et al., ICML 2021, in DomainBed's form; L stays as it is below, where DomainBed has R̄: the same for batches
    of one size. Changes `loss`, and `update` once; no extra pass.
    """

    space = {
        "weight": LogUniform(-1, 5, key="vrex_lambda"),
        "warmup": LogUniform(0, 4, key="vrex_penalty_anneal_iters", integer=True),
    }

    def __init__(self, base: Algorithm | None = None, *, weight: float = 10.0, warmup: int = 500):
        super().__init__(base)
        self.weight, self.warmup = weight, warmup
        self.check()

    def loss(self, out: Outputs) -> Tensor:
        risks = out.risks()
        spread = (risks - risks.mean()).square().mean()
        self.note(spread=spread)
        return self.base.loss(out) + self.weight_now * spread
