"""Layers that mask the gradient by how well the domains agree on it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dspreg.algorithms.base import Algorithm
from dspreg.algorithms.compatibility import Compatibility
from dspreg.algorithms.domain_gradients import gradient_by_domain
from dspreg.batches import Batch, Objective
from dspreg.vectors import ParamVector


class GradientMask(Algorithm):
    """A layer that multiplies the gradient of every tensor by a `mask` and divides it by the mask's mean.

    The gradient is that of the layers below, and the mask is made of the plain gradients of the domains. With a single
    domain there is nothing to agree on, and it is the layers below.
    """

    compatibility = Compatibility(needs_several_domains=True)

    def mask(self, gradients: Tensor) -> Tensor:
        """Of one parameter tensor, from the domains' gradients (D, …): from 0 to 1."""
        raise NotImplementedError

    def gradient(self, objective: Objective, batches: Sequence[Batch]) -> tuple[Tensor, ParamVector]:
        if len(batches) == 1:
            return self.base.gradient(objective, batches)
        loss, g, each = gradient_by_domain(self, objective, batches)
        masked, kept = {}, g.sum().new_zeros(())
        for name, whole in g.items():
            mask = self.mask(torch.stack([one[name] if name in one else torch.zeros_like(whole) for one in each]))
            share = mask.mean()
            masked[name] = mask * whole * (1 / (1e-10 + share))
            kept = kept + share * whole.numel()
        self.note(kept=kept / g.numel())
        return loss, ParamVector(masked)


def sign_agreement(gradients: Tensor) -> Tensor:
    """|mean_d sign g_d|: 1 where all domains want to move a parameter the same way."""
    return gradients.sign().mean(0).abs()
