"""SagNet: decide by the content of features and not by their style."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dspreg.algorithms.base import Algorithm, Direction, Log
from dspreg.algorithms.compatibility import ONLY_CLASSES, Compatibility
from dspreg.algorithms.stack import descend
from dspreg.algorithms.task import Task
from dspreg.batches import Batch, Outputs, at_least_float32
from dspreg.devices import send
from dspreg.distributions import LogUniform
from dspreg.errors import ConfigError
from dspreg.networks import Network
from dspreg.randomness import generator, seeded


class SagNet(Algorithm):
    """Style-agnostic network: the classifier sees random styles, and style features no longer predict the class.

        f_i = σ_i u_i + μ_i        style μ_i, σ_i² = var + 1e-5 over the features of sample i; content u_i
        1. network:     min L with f_i in a style between its own and another's: μ = a μ_i + (1 − a) μ_j, the same of σ²
        2. style head:  min CE(head(σ_i u_j + μ_i), y_i),  u_j the content of another sample, a constant
        3. featurizer:  min weight · CE(head(σ_i u_j + μ_i), uniform)

    f (N, F), a ~ U(0, 1) per sample, j by a random permutation of the batch, a new one for each of the three. Layers
    above see the plain features, on which the prediction rests.

    Nam et al., CVPR 2021, in DomainBed's form: style and content are of the vector after pooling, not of feature maps.
    All three forward passes see the same dropout mask, and batch norm takes a batch into its statistics once;
    DomainBed's draw and take three times. Changes `forward` and `update`, and `build` for the head; three forward and
    two backward passes.
    """

    space = {"weight": LogUniform(-2, 1, key="sag_w_adv")}
    style_head: nn.Module
    compatibility = Compatibility(trains_featurizer=True, reads_images=True, kinds=ONLY_CLASSES)

    def __init__(self, base: Algorithm | None = None, *, weight: float = 0.1):
        super().__init__(base)
        if not 0 <= weight < float("inf"):
            raise ConfigError(f"SagNet: weight={weight}; wanted a finite number ≥ 0")
        self.weight = weight

    def build(self, task: Task) -> Network:
        net = self.base.build(task)
        with seeded(*task.key, "SagNet"):
            self.style_head = nn.Linear(net.featurizer.width, task.num_classes)
        return net

    def forward(self, batches: Sequence[Batch]) -> Outputs:
        out: Outputs = self.base(batches)
        u, mean, var = split_style(out.features)
        a, j = torch.rand_like(mean), torch.randperm(len(u), device=u.device)
        between = restyle(u, a * mean + (1 - a) * mean[j], a * var + (1 - a) * var[j])
        classify = self.net.classifier
        # as a change, so that what the base did to its logits stays
        change = classify(between.to(out.features.dtype)) - classify(out.features)
        return out.replace(logits=out.logits + change)

    def update(self, direction: Direction, batches: Sequence[Batch]) -> Log:
        def adversary(out: Outputs) -> Tensor:
            uniform = torch.full_like(out.logits, 1 / out.logits.shape[1])
            return self.weight * self.style_risk(out.replace(labels=uniform), "adversary")

        log = self.base.update(direction, batches)
        self.note(style=descend(self.stack, lambda out: self.style_risk(out, "style"), self.style_head, batches))
        self.note(adversary=descend(self.stack, adversary, self.net.featurizer, batches))
        return log

    def style_risk(self, out: Outputs, purpose: str) -> Tensor:
        """The cross-entropy of the head's guess from styles, with contents of other samples."""
        u, mean, var = split_style(out.features)
        # keyed: torch's own numbers are the same at every evaluation of a step
        j = send(torch.randperm(len(u), generator=generator(*self.task.key, self.t, "SagNet", purpose)), u.device)
        guess = self.style_head(restyle(u[j].detach(), mean, var).to(out.features.dtype))
        return out.weights.dot(out.replace(logits=guess).risks())


def split_style(features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Content (N, F), and mean and variance over the features of every sample (N, 1)."""
    f = at_least_float32(features)
    var, mean = torch.var_mean(f, 1, keepdim=True)
    return (f - mean) / (var + EPS).sqrt(), mean, var


def restyle(content: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    return content * (var + EPS).sqrt() + mean


EPS = 1e-5
