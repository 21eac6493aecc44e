"""CAD and CondCAD: features from which the domain can't be told by their neighbours."""

from __future__ import annotations

import torch
from torch import Tensor

from dspreg.algorithms.base import Algorithm
from dspreg.algorithms.compatibility import ONLY_CLASSES, Compatibility
from dspreg.batches import Outputs, at_least_float32
from dspreg.devices import send
from dspreg.distributions import Choice
from dspreg.errors import ConfigError
from dspreg.precision import full_precision

BASE = 0.07  # the temperature that the loss is scaled to, of supervised contrastive learning
NEVER = -1e30  # in place of log 0, whose slope is no number


class CAD(Algorithm):
    """Contrastive adversarial domain bottleneck: neighbours of a sample come from other domains as well.

        L − weight · temperature/0.07 · mean_i log Σ_{j: d_j ≠ d_i} p_ij,  p_ij = exp(s_ij)/Σ_{k≠i} exp(s_ik)
        s_ij = f_i · f_j / temperature

    f (N, F) features of all domains. The mean is over the samples that have another of their class in the batch, and
    that have any of another domain.

    Ruan et al., ICLR 2022, in DomainBed's form and with its choices: inner products of plain features, without a
    projection, and −log(1 − p) of the own domain instead of log p (`is_flipped`). Of soft labels the class is the
    likeliest. Changes `loss`; no extra pass.
    """

    space = {
        "weight": Choice(1e-4, 1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, key="lmbda"),
        "temperature": Choice(0.05, 0.1, key="temperature"),
    }
    compatibility = Compatibility(kinds=ONLY_CLASSES)
    conditional = False  # whether neighbours are those of the same class alone

    def __init__(self, base: Algorithm | None = None, *, weight: float = 0.1, temperature: float = 0.1):
        super().__init__(base)
        if not 0 <= weight < float("inf"):
            raise ConfigError(f"{type(self).__name__}: weight={weight}; wanted a finite number ≥ 0")
        if not 0 < temperature < float("inf"):
            raise ConfigError(f"{type(self).__name__}: temperature={temperature}; wanted a finite number > 0")
        self.weight, self.temperature = weight, temperature

    def loss(self, out: Outputs) -> Tensor:
        bottleneck = self.bottleneck(out)
        self.note(bottleneck=bottleneck)
        return self.base.loss(out) + self.weight * bottleneck

    def bottleneck(self, out: Outputs) -> Tensor:
        f = at_least_float32(out.features)
        domains = send(torch.tensor(out.domains).repeat_interleave(torch.tensor(out.sizes)), f.device)
        classes = out.labels if out.labels.ndim == 1 else out.labels.argmax(1)
        others = ~torch.eye(len(f), dtype=torch.bool, device=f.device)
        alike = (classes[:, None] == classes) & others
        abroad = domains[:, None] != domains
        with full_precision(f.device.type):
            s = f @ f.T / self.temperature
        among, there = (alike, alike & abroad) if self.conditional else (others, abroad)
        each = (log_sum(s, among) - log_sum(s, there)) * (self.temperature / BASE)
        valid = alike.any(1) & there.any(1)
        return torch.where(valid, each, 0.0).sum() / valid.sum().clamp(min=1)


class CondCAD(CAD):
    """Conditional contrastive adversarial domain bottleneck: CAD among the samples of one class.

        L − weight · temperature/0.07 · mean_i log Σ_{j: y_j = y_i, d_j ≠ d_i} p_ij,
        p_ij = exp(s_ij)/Σ_{k≠i, y_k = y_i} exp(s_ik)

    The mean is over the samples that have another of their class and of another domain in the batch. As for the rest,
    see CAD.
    """

    conditional = True


def log_sum(s: Tensor, where: Tensor) -> Tensor:
    """log Σ_j exp s_ij over these j; a finite number if there is none. (N,)"""
    return torch.logsumexp(s.masked_fill(~where, NEVER), 1)
