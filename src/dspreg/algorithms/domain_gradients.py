"""The gradient of every domain beside the whole one, at the price of the whole one where that is possible."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dspreg.algorithms.base import ERM, Algorithm
from dspreg.algorithms.compatibility import arrows_of
from dspreg.batches import Batch, Objective
from dspreg.networks.batch_norm import scratch_buffers
from dspreg.vectors import ParamVector, gradient


def gradient_by_domain(
    layer: Algorithm, objective: Objective, batches: Sequence[Batch]
) -> tuple[Tensor, ParamVector, list[ParamVector]]:
    """For `gradient` of a layer: the loss and the gradient of the layers below it, and ∇L_d of every batch.

    Where no other layer changes forward, loss or gradient, the objective is a mean over samples: the domains' gradients
    make up the whole one, in as many passes as ERM takes, on smaller batches. Else they are plain gradients of the
    objective on one domain, beside the gradient of the layers below: twice as many passes.
    """
    if domains_sum_up(layer):
        found = [layer.base.gradient(objective, [batch]) for batch in batches]
        shares = [len(batch) / sum(map(len, batches)) for batch in batches]
        loss = torch.stack([one * share for (one, _), share in zip(found, shares, strict=True)]).sum()
        total = ParamVector()
        for (_, g), share in zip(found, shares, strict=True):
            total = total + g * share
        return loss, total, [g for _, g in found]
    loss, total = layer.base.gradient(objective, batches)
    with scratch_buffers(layer.net):
        return loss, total, [gradient(objective([batch]), layer.net) for batch in batches]


def domains_sum_up(layer: Algorithm) -> bool:
    others = [each for each in layer.stack.layers if each is not layer and not isinstance(each, ERM)]
    return not any({"forward", "loss", "gradient"} & set(arrows_of(type(each))) for each in others)


def shrinkage(values: Tensor, strength: float, prior: float) -> Tensor:
    """v̄²/(v̄² + strength·V/D) of values (D, …): 1 where domains agree, 0 where their mean is nothing but spread.

    V is their variance with D − 1 degrees of freedom, mixed with `prior` parts of its mean over the tensor.
    """
    # squares of small values would underflow
    v = values / values.abs().amax().clamp(min=torch.finfo(values.dtype).tiny)
    signal, variance = v.mean(0).square(), v.var(0)
    variance = (variance + prior * variance.mean()) / (1 + prior)
    total = signal + strength / len(v) * variance
    return torch.where(signal > 0, signal / total.clamp(min=torch.finfo(v.dtype).tiny), 0.0)
