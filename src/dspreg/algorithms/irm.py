"""IRM: features on which the same classifier is best in every domain."""

from __future__ import annotations

import torch
from torch import Tensor

from dspreg.algorithms.base import Algorithm
from dspreg.algorithms.warm_up import WarmUp
from dspreg.batches import Outputs, at_least_float32, loss_slopes
from dspreg.distributions import LogUniform
from dspreg.kinds import CLASSES


class IRM(WarmUp):
    """Invariant risk minimisation: no domain wants the logits scaled.

        L + weight · mean_d g_d^even · g_d^odd,  g^S = d/ds mean_{i∈S} CE(s·z_i, y_i) at s = 1

    S are the samples at even and odd places of the domain's batch, so the product is unbiased for the squared slope,
    and may be negative. Until step `warmup` the weight is 1; there the optimiser starts anew.

    Arjovsky et al., 2019 (IRMv1), in DomainBed's form; L stays as it is below, where DomainBed has the mean over
    domains: the same for batches of one size. Changes `loss`, and `update` once; no extra pass.
    """

    space = {
        "weight": LogUniform(-1, 5, key="irm_lambda"),
        "warmup": LogUniform(0, 4, key="irm_penalty_anneal_iters", integer=True),
    }

    def __init__(self, base: Algorithm | None = None, *, weight: float = 100.0, warmup: int = 500):
        super().__init__(base)
        self.weight, self.warmup = weight, warmup
        self.check()

    def loss(self, out: Outputs) -> Tensor:
        slopes = out.by_domain(out.weigh(slope(out.logits, out.labels, out.kind)))
        products = [each[::2].mean() * each[1::2].mean() for each in slopes if len(each) > 1]  # one sample has no pair
        penalty = torch.stack(products or [out.logits.sum() * 0]).mean()
        self.note(penalty=penalty)
        return self.base.loss(out) + self.weight_now * penalty


def slope(logits: Tensor, labels: Tensor, kind: str = CLASSES) -> Tensor:
    """d/ds ℓ(s·z_i, y_i) at s = 1 of every sample: of classes Σ_c (p_ic − y_ic) z_ic. (N,)"""
    return (loss_slopes(kind, logits, labels) * at_least_float32(logits)).sum(1)
