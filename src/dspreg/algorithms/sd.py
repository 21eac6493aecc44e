"""SD: keep logits small."""

from __future__ import annotations

from torch import Tensor

from dspreg.algorithms.base import Algorithm
from dspreg.algorithms.compatibility import Compatibility
from dspreg.batches import Outputs, at_least_float32
from dspreg.distributions import LogUniform
from dspreg.errors import ConfigError
from dspreg.kinds import CLASSES, MULTILABEL


class SD(Algorithm):
    """Spectral decoupling: a penalty on the logits instead of one on the weights.

        L + weight · mean_{ic} z_ic²

    z (N, C) logits. A feature that is easy to learn no longer drives the loss to 0 by itself, and so no longer starves
    the others of their gradient.

    Pezeshki et al., NeurIPS 2021 (Gradient Starvation), in DomainBed's form: the mean over samples and classes, where
    the paper has half the sum over classes. Changes `loss`; no extra pass.
    """

    compatibility = Compatibility(kinds=(CLASSES, MULTILABEL))  # of numbers, z is the prediction itself
    space = {"weight": LogUniform(-5, -1, key="sd_reg")}

    def __init__(self, base: Algorithm | None = None, *, weight: float = 0.1):
        super().__init__(base)
        if not 0 <= weight < float("inf"):
            raise ConfigError(f"SD: weight={weight}; wanted a finite number ≥ 0")
        self.weight = weight

    def loss(self, out: Outputs) -> Tensor:
        penalty = at_least_float32(out.logits).square().mean()
        self.note(penalty=penalty)
        return self.base.loss(out) + self.weight * penalty
