"""What flows through a training step: domain batches in, outputs of all domains in one tensor out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dspreg.devices import send
from dspreg.kinds import CLASSES, MULTILABEL
from dspreg.precision import full_precision


@dataclass(frozen=True)
class Batch:
    """Samples of one domain."""

    x: Tensor  # (B, …) images, or any other inputs
    y: Tensor  # (B,) classes, or (B, C): soft labels, several labels, numbers
    domain: int  # position among the source domains
    weights: Tensor | None = None  # (B,) how much each sample counts in the loss, 1 in the mean; None: all the same

    def __len__(self) -> int:
        return len(self.x)


Objective = Callable[[Sequence[Batch]], Tensor]  # what is minimised; a function, so that a layer may evaluate it again


@dataclass(frozen=True)
class Outputs:
    """The network's outputs for one batch per domain, samples of all domains in one tensor."""

    features: Tensor  # (N, F)
    logits: Tensor  # (N, C)
    labels: Tensor  # (N,), or (N, C): soft labels, several labels, numbers
    sizes: tuple[int, ...]  # samples per domain, in the order of `domains`
    domains: tuple[int, ...]
    weights: Tensor  # (D,) share of each domain's risk
    extras: Mapping[str, Tensor] = field(default_factory=dict)  # what a layer's forward passes to its loss, by name
    sample_weights: Tensor | None = None  # (N,) how much each sample counts in the loss; None: all the same
    kind: str = CLASSES  # of the task, which says what the loss of a sample is

    @classmethod
    def of(cls, batches: Sequence[Batch], features: Tensor, logits: Tensor, kind: str = CLASSES) -> Outputs:
        """Every sample counts the same: domain d has weight n_d/N."""
        sizes = tuple(len(b) for b in batches)
        weights = send(torch.tensor(sizes, dtype=at_least_float32(logits).dtype), logits.device) / sum(sizes)
        labels = join_labels([b.y for b in batches])
        given, own = join_weights(batches), tuple(b.domain for b in batches)
        return cls(features, logits, labels, sizes, own, weights, sample_weights=given, kind=kind)

    def by_domain(self, tensor: Tensor) -> tuple[Tensor, ...]:
        """The rows of each domain, as views."""
        return torch.split(tensor, list(self.sizes))

    def risks(self) -> Tensor:
        """Mean loss of the samples per domain, for classes the cross-entropy; of weighted ones mean_i w_i ℓ_i. (D,)"""
        losses = self.weigh(sample_losses(self.kind, self.logits, self.labels))
        return torch.stack([loss.mean() for loss in self.by_domain(losses)])

    def weigh(self, each: Tensor) -> Tensor:
        """What samples contribute to the loss (N,), by the weight of each."""
        return each if self.sample_weights is None else each * self.sample_weights.to(each.dtype)

    def replace(self, **changes: Any) -> Outputs:
        return replace(self, **changes)

    def tensors(self) -> dict[str, Tensor]:
        """What the network computed: features, logits and extras, by name."""
        return {"features": self.features, "logits": self.logits, **{f"extras.{n}": t for n, t in self.extras.items()}}

    def with_tensors(self, changes: Mapping[str, Tensor]) -> Outputs:
        """With other `tensors` under these names."""
        now = {**self.tensors(), **changes}
        extras = {name: now[f"extras.{name}"] for name in self.extras}
        return replace(self, features=now["features"], logits=now["logits"], extras=extras)


@dataclass(frozen=True)
class OutputObjective:
    """An objective that is a loss of the network's outputs, for those who want to take the two apart.

    Attributes:
        evaluate: `evaluate(f, batches)` is f of the outputs for these batches, with the random numbers of the step.
        loss: Of outputs.
    """

    evaluate: Callable[[Callable[[Outputs], Any], Sequence[Batch]], Any]
    loss: Callable[[Outputs], Tensor]

    def __call__(self, batches: Sequence[Batch]) -> Tensor:
        value: Tensor = self.evaluate(self.loss, batches)
        return value


def sample_losses(kind: str, logits: Tensor, labels: Tensor) -> Tensor:
    """The loss of every sample, at least in float32. (N,)

        classes      cross-entropy
        multilabel   1/C Σ_c  log(1 + exp z_c) − y_c z_c     binary cross-entropy, the mean over labels
        regression   1/C Σ_c  (z_c − y_c)²                   squared error, the mean over numbers

    Args:
        kind: Of `dspreg.kinds.KINDS`.
        logits: z (N, C).
        labels: y (N,), or (N, C); of several labels and of numbers always (N, C), for others would be broadcast.
    """
    z = at_least_float32(logits)
    if kind == CLASSES:
        return F.cross_entropy(z, labels, reduction="none")
    if labels.shape != z.shape:
        raise ValueError(f"outputs {tuple(z.shape)} and labels {tuple(labels.shape)}; wanted the same shape (N, C)")
    y = labels.to(z.dtype)
    if kind == MULTILABEL:
        return F.binary_cross_entropy_with_logits(z, y, reduction="none").mean(1)
    return F.mse_loss(z, y, reduction="none").mean(1)


def loss_slopes(kind: str, logits: Tensor, labels: Tensor) -> Tensor:
    """∂ℓ_i/∂z_i of `sample_losses`, in closed form: softmax(z) − y, (σ(z) − y)/C or 2(z − y)/C. (N, C)"""
    z = at_least_float32(logits)
    if kind == CLASSES:
        return z.softmax(1) - soft_labels(labels, z.shape[1], z.dtype)
    y = labels.to(z.dtype)
    residuals = z.sigmoid() - y if kind == MULTILABEL else 2 * (z - y)
    return residuals / z.shape[1]


def at_least_float32(tensor: Tensor) -> Tensor:
    """float32 instead of half precision, which is for networks and not for sums over a batch."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def join_weights(batches: Sequence[Batch]) -> Tensor | None:
    """The weights of all samples, 1 where a batch has none; None if no batch has any."""
    if all(b.weights is None for b in batches):
        return None
    return torch.cat([b.y.new_ones(len(b), dtype=torch.float32) if b.weights is None else b.weights for b in batches])


def join_labels(labels: Sequence[Tensor]) -> Tensor:
    """One tensor of labels, all hard or all soft: only a layer that knows C can convert hard ones."""
    if len({y.ndim for y in labels}) > 1:
        raise ValueError("hard and soft labels in one step; give every domain (B,) labels or every domain (B, C)")
    return torch.cat(list(labels))


def soft_labels(y: Tensor, num_classes: int, dtype: torch.dtype) -> Tensor:
    """Labels as probabilities. (B, C)"""
    if y.ndim == 2:
        return y.to(dtype)
    # not F.one_hot, which looks at the labels on some devices, and so waits for them
    return torch.zeros(len(y), num_classes, dtype=dtype, device=y.device).scatter(1, y[:, None], 1.0)


def mean_over_pairs(distance: Callable[[Tensor, Tensor], Tensor], parts: Sequence[Tensor]) -> Tensor:
    """The mean of `distance` over all unordered pairs; 0 for a single part: one domain has nothing to align."""
    with full_precision(parts[0].device.type):
        distances = [distance(a, b) for a, b in combinations(map(at_least_float32, parts), 2)]
    return torch.stack(distances).mean() if distances else parts[0].new_zeros(())
