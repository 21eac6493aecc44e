"""GGA-L: noise in the gradient, the more the less the domains agree."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Tensor

from dspreg.algorithms.base import Algorithm
from dspreg.algorithms.compatibility import Compatibility
from dspreg.batches import Batch, Objective
from dspreg.devices import send
from dspreg.distributions import LogUniform
from dspreg.errors import ConfigError
from dspreg.networks.batch_norm import scratch_buffers
from dspreg.randomness import generator
from dspreg.vectors import ParamVector, gradient


class GGAL(Algorithm):
    """GGA-L: add noise to the gradient, in proportion to how little the domains' gradients agree.

        g + γ (1 − s̄) ξ,  ξ ~ N(0, 1)^P,  s̄ = mean_{i<j} cos(g_i, g_j),  g_d = ∇L_d

    over all parameters, at every step. Where domains agree, or there is only one, it is the gradient itself.

    Ballas & Diou, CVPR 2025 (supplement of the arXiv version). `gamma` is γ; the authors give no values besides their
    default, and the search space is ours. The text draws ξ from U(0, 1), which would push every parameter down; their
    code draws normal numbers, and so do we. All passes of a step see the same dropout mask, theirs do not, and batch
    norm takes the domains' passes of their own into no statistics. g_d are plain gradients of the objective, whatever a
    gradient layer below makes of them. Changes `gradient`; two passes.
    """

    compatibility = Compatibility(needs_several_domains=True)
    space = {"gamma": LogUniform(-4, -2)}

    def __init__(self, base: Algorithm | None = None, *, gamma: float = 1e-3):
        super().__init__(base)
        if not 0 <= gamma < float("inf"):
            raise ConfigError(f"GGAL: gamma={gamma}; wanted a finite number ≥ 0")
        self.gamma = gamma

    def gradient(self, objective: Objective, batches: Sequence[Batch]) -> tuple[Tensor, ParamVector]:
        loss, g = self.base.gradient(objective, batches)
        if len(batches) == 1:
            return loss, g
        with scratch_buffers(self.net):
            each = [gradient(objective([batch]), self.net) for batch in batches]
        similarity = torch.stack([a.cosine(b) for a, b in combinations(each, 2)]).mean()
        self.note(similarity=similarity)
        random = generator(*self.task.key, self.t, "GGAL")  # the same noise however often a step asks
        scale = self.gamma * (1 - similarity)
        return loss, g.map(lambda t: t + scale * send(torch.randn(t.shape, generator=random, dtype=t.dtype), t.device))
