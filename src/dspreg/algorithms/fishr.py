"""Fishr: gradients that vary alike in every domain."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dspreg.algorithms.base import Algorithm
from dspreg.algorithms.compatibility import Compatibility
from dspreg.algorithms.task import Task
from dspreg.algorithms.warm_up import WarmUp
from dspreg.batches import Outputs, loss_slopes
from dspreg.distributions import LogUniform, Uniform
from dspreg.errors import ConfigError
from dspreg.networks import Network


class Fishr(WarmUp):
    """Match the domains' variances of the classifier's per-sample gradients.

        L + weight · mean_d mean_k (v_dk − v̄_k)²,  v_d = e_d/(1 − ema),  e_d ← ema · e_d + (1 − ema) · Var_i ∂_k CE_i

    over the entries k of the linear classifier, whose gradients have the closed form (p_i − y_i) fᵢᵀ and p_i − y_i. The
    average e_d starts at 0 and is kept without its graph. Until step `warmup` the weight is 0; there the optimiser
    starts anew. Of other kinds of task p_i − y_i is `batches.loss_slopes`.

    Rame et al., ICML 2022, in DomainBed's form; the averages are saved with the model, which DomainBed forgets. Changes
    `loss`, and `update` once; no extra pass.
    """

    space = {
        "weight": LogUniform(1, 4, key="lambda"),
        "warmup": Uniform(0, 5000, key="penalty_anneal_iters", integer=True),
        "ema": Uniform(0.90, 0.99, key="ema"),
    }
    compatibility = Compatibility(not_weighted="compares the gradients of samples that count the same")
    before = 0.0
    average: Tensor  # (D, C·(F + 1)), the e_d

    def __init__(self, base: Algorithm | None = None, *, weight: float = 1000.0, warmup: int = 1500, ema: float = 0.95):
        super().__init__(base)
        if not 0 <= ema < 1:
            raise ConfigError(f"Fishr: ema={ema}; wanted a number from 0 to below 1")
        self.weight, self.warmup, self.ema = weight, warmup, ema
        self.check()

    def build(self, task: Task) -> Network:
        net = self.base.build(task)
        if not isinstance(net.classifier, nn.Linear):
            kind = type(net.classifier).__name__
            raise ConfigError(f"Fishr takes gradients of a linear classifier in closed form, and this one is {kind}")
        self.register_buffer("average", torch.zeros(task.num_domains, task.num_classes * (net.featurizer.width + 1)))
        return net

    def loss(self, out: Outputs) -> Tensor:
        each = [variance(g) for g in out.by_domain(head_gradients(out))]
        new = self.ema * self.average[list(out.domains)] + (1 - self.ema) * torch.stack(each)
        self.stage("average", new, rows=out.domains)
        used = new / (1 - self.ema)
        penalty = (used - used.mean(0)).square().mean()
        self.note(penalty=penalty)
        return self.base.loss(out) + self.weight_now * penalty


def head_gradients(out: Outputs) -> Tensor:
    """∂ℓ_i of a linear classifier's bias and weight, every sample a row. (N, C + C·F)"""
    delta = loss_slopes(out.kind, out.logits, out.labels)
    return torch.cat([delta, (delta[:, :, None] * out.features[:, None]).flatten(1)], 1)


def variance(rows: Tensor) -> Tensor:
    """The population's, over samples."""
    return (rows - rows.mean(0)).square().mean(0)
