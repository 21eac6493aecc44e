"""Mixup between domains."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dspreg.algorithms.base import Algorithm
from dspreg.algorithms.compatibility import Compatibility
from dspreg.batches import Batch, Outputs, soft_labels
from dspreg.distributions import LogUniform
from dspreg.errors import ConfigError


class Mixup(Algorithm):
    """Train on mixtures of images of two domains.

        x = m x_i + (1 − m) x_j,  y = m y_i + (1 − m) y_j,  m ~ Beta(α, α)

    Domains are paired in a random circle, each pair cropped to the shorter batch and mixed with one m; pairs count
    equally. Cross-entropy with a mixed label is the mixed cross-entropy, so every loss above works unchanged.

    Zhang et al., ICLR 2018, between domains as in DomainBed. `alpha` is α. Changes `forward`; no extra pass.
    """

    compatibility = Compatibility(reads_images=True, not_weighted="mixes images of different weights")
    space = {"alpha": LogUniform(-1, 1, key="mixup_alpha")}

    def __init__(self, base: Algorithm | None = None, *, alpha: float = 0.2):
        super().__init__(base)
        if not alpha > 0:
            raise ConfigError(f"Mixup: alpha={alpha}; wanted a number > 0")
        self.alpha = alpha

    def forward(self, batches: Sequence[Batch]) -> Outputs:
        circle = [batches[i] for i in torch.randperm(len(batches)).tolist()]
        mixed = [self.mix(a, b) for a, b in zip(circle, circle[1:] + circle[:1], strict=True)]
        out: Outputs = self.base(mixed)
        return out.replace(weights=torch.full_like(out.weights, 1 / len(mixed)))

    def mix(self, a: Batch, b: Batch) -> Batch:
        n = min(len(a), len(b))
        m = float(torch.distributions.Beta(self.alpha, self.alpha).sample())

        def between(u: Tensor, v: Tensor) -> Tensor:
            return m * u[:n] + (1 - m) * v[:n]

        y_a, y_b = (soft_labels(y, self.task.num_classes, a.x.dtype) for y in (a.y, b.y))
        return Batch(between(a.x, b.x), between(y_a, y_b), a.domain)
