"""FisherTune: train only the parameters whose Fisher information moves with the domain. Experimental."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from dspreg.algorithms.base import Algorithm, Direction, Log
from dspreg.algorithms.compatibility import ONLY_CLASSES, Compatibility
from dspreg.algorithms.measure import measuring
from dspreg.algorithms.task import Task
from dspreg.batches import Batch
from dspreg.errors import ConfigError
from dspreg.networks import Network
from dspreg.randomness import generator
from dspreg.sensitivity.refresh import measure_s
from dspreg.sensitivity.samples import Samples
from dspreg.vectors import ParamVector, average, move_to, theta, trainable

EPS = 1e-12  # of the smaller Fisher information, which may be 0


class FisherTune(Algorithm):
    """Train only the parameters whose Fisher information is large or changes with the style of an image. Experimental.

        D_k = F_k(x) + exp(−(e_μ + e_σ)) · |F_k(x) − F_k(x')|/(min(F_k(x), F_k(x')) + ε)

    F is the Fisher diagonal of the whole prediction on the source domains, and x' is x in another style: mean and
    deviation of every channel times 1 + e_μ and 1 + e_σ. Until step `warmup` only the parameters of `exclude` move, the
    classifier's. From there on, so do the featurizer's with the largest D_k: a share that grows from `least` to `most`
    over the next `growth` steps, as least · (most/least)^progress. D is measured at `warmup` and every `refresh_steps`
    after it. What is not selected does not move, whatever the optimiser remembers.

    After Zhao et al., CVPR 2025, on segmentation with vision foundation models. There is no public code and we have
    not seen its constants, so this is our reading of a summary, **in no table**. Guessed are:

    - x': the style of the *image*, e_μ and e_σ drawn once for each measurement as |N(0, `noise`²)|; the paper perturbs
      features, where and how strongly we do not know; noise = 0.1.
    - F: labels drawn from the network (`dspreg.measure(of="fisher")`), the mean over source domains, on
      measure_batches = 4 batches of each, at the current weights. The paper stabilises it by variational inference
      around the pretrained weights, with constants γ and τ; that is left out.
    - ε = 1e-12, and that the two terms, of different units, are added as they are.
    - warmup = 500, growth = 2500, refresh_steps = 500, least = 0.1, most = 0.9, and the shape of the growth.
    - That single parameters are selected, over all tensors at once, and that normalisation layers are among them.
    - Optimiser and schedule: those of the run.

    Changes `update`; no extra pass beside those of measuring.
    """

    compatibility = Compatibility(trains_featurizer=True, kinds=ONLY_CLASSES)
    experimental = True
    step_options = ("warmup", "growth", "refresh_steps")
    saved_attributes = ("ranks", "refreshed_at")
    uses_c = True  # it measures, in double precision

    def __init__(
        self,
        base: Algorithm | None = None,
        *,
        warmup: int = 500,
        growth: int = 2500,
        refresh_steps: int = 500,
        least: float = 0.1,
        most: float = 0.9,
        noise: float = 0.1,
        measure_batches: int = 4,
        exclude: str | list[str] | None = "classifier.*",
    ):
        super().__init__(base)
        if warmup < 0 or growth < 0 or refresh_steps < 0 or measure_batches < 1:
            raise ConfigError("FisherTune: wanted numbers of steps ≥ 0, and at least 1 batch to measure on")
        if not 0 < least <= most <= 1:
            raise ConfigError(f"FisherTune: least={least}, most={most}; wanted shares, 0 < least ≤ most ≤ 1")
        if not 0 <= noise < float("inf"):
            raise ConfigError(f"FisherTune: noise={noise}; wanted a finite number ≥ 0")
        self.warmup, self.growth, self.refresh_steps = warmup, growth, refresh_steps
        self.least, self.most, self.noise = least, most, noise
        self.measure_batches, self.exclude = measure_batches, exclude
        self._begin()

    def _begin(self) -> None:
        self.ranks = ParamVector()  # of D: the share of parameters with a larger one
        self.refreshed_at: int | None = None

    def build(self, task: Task) -> Network:
        if not task.can_measure:
            raise ConfigError("FisherTune measures during training: give the Task a `samples` function")
        if task.num_domains < 2:
            raise ConfigError(f"FisherTune measures on several source domains and there is 1: {task.domains[0]}")
        self._begin()
        return self.base.build(task)

    def update(self, direction: Direction, batches: Sequence[Batch]) -> Log:
        since = self.t - self.warmup
        due = since >= 0 and (not self.ranks or (self.refresh_steps and since % self.refresh_steps == 0))
        if due and self.refreshed_at != self.t:  # a layer above may update several times in one step
            self.ranks, self.refreshed_at = rank(self.measure_scores()), self.t
        before = theta(self.net).select(exclude=self.exclude)
        log = self.base.update(direction, batches)
        params, moves = trainable(self.net), self.selected(before)
        move_to(self.net, before.map(lambda b, p, m: torch.where(m, p.detach(), b), ParamVector(params), moves))
        return log

    @property
    def share(self) -> float:
        """Of the featurizer's parameters that move."""
        if self.t < self.warmup:
            return 0.0
        progress = min(1.0, (self.t - self.warmup) / self.growth) if self.growth else 1.0
        return self.least * math.pow(self.most / self.least, progress)

    def selected(self, like: ParamVector) -> ParamVector:
        """Which parameters move, as truth values."""
        self.note(share=self.share)
        if not self.ranks:
            return like.map(lambda t: torch.zeros_like(t, dtype=torch.bool))
        return self.ranks.map(lambda t: t < self.share)

    def measure_scores(self) -> ParamVector:
        """D on fresh samples of the source domains."""
        drawn = torch.randn(2, generator=generator(*self.task.key, self.t, "FisherTune")).abs() * self.noise
        mean, deviation = drawn.tolist()
        found = []
        for change in (lambda x: x, lambda x: restyle(x, mean, deviation)):
            with measuring(self, self.measure_batches, of="fisher", exclude=self.exclude) as (meter, f, domains):
                found.append(average(measure_s(meter, f, change_images(domains, change)).values()))
        here, there = found
        share = math.exp(-(mean + deviation))
        return here.map(lambda a, b: a + share * (a - b).abs() / (torch.minimum(a, b) + EPS), there)


def rank(scores: ParamVector) -> ParamVector:
    """For every entry the share of entries that are larger, from 0 to below 1; equal ones in their order."""
    order = scores.flat().argsort(descending=True, stable=True)
    ranks = torch.empty(len(order), device=order.device)
    ranks[order] = torch.arange(len(order), device=order.device) / len(order)
    parts = ranks.split([t.numel() for t in scores.values()])
    return ParamVector((name, part.view(t.shape)) for part, (name, t) in zip(parts, scores.items(), strict=True))


def change_images(
    domains: Mapping[str, Sequence[Samples]], change: Callable[[Tensor], Tensor]
) -> dict[str, list[Samples]]:
    """The same samples with other images."""
    return {
        name: [Samples(change(s.inputs), s.y) for s in each if isinstance(s.inputs, Tensor)]
        for name, each in domains.items()
    }


def restyle(x: Tensor, mean: float, deviation: float) -> Tensor:
    """Images whose channels have a mean and a deviation larger by these shares; a vector is one channel."""
    middle = x.mean((2, 3) if x.ndim == 4 else tuple(range(1, x.ndim)), keepdim=True)
    return (x - middle) * (1 + deviation) + middle * (1 + mean)
