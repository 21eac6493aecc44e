"""Weights averaged along training, to predict with."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from dspreg.algorithms.base import Algorithm
from dspreg.algorithms.compatibility import Compatibility
from dspreg.batches import Batch
from dspreg.networks.batch_norm import set_statistics, standing_statistics
from dspreg.vectors import ParamVector, move_to, standing_at, theta, trainable


class WeightAverage(Algorithm):
    """A layer that trains as its base does and predicts at `mean`, an average of the weights of `net`.

        θ̄ ← θ̄ + share · (θ − θ̄)

    at the end of a step, however often θ moved in it; θ̄ is a copy of θ the first time. All trainable parameters of
    `net` are averaged, also those that other layers put there (ARM, MTL). Its buffers, such as the running statistics
    of a batch norm that is not frozen, are those of the last step, as torch's `AveragedModel` has them by default.
    """

    saved_attributes: ClassVar[tuple[str, ...]] = ("mean", "count")
    compatibility = Compatibility(predicts_at_other_weights=True)

    def __init__(self, base: Algorithm | None = None):
        super().__init__(base)
        self.mean, self.count = ParamVector(), 0  # θ̄, and of how many steps

    def share(self) -> float:
        """Of the newest θ in the mean; `count` has it in already."""
        raise NotImplementedError

    @torch.no_grad()
    def on_step_end(self) -> None:
        if not self.mean:
            self.mean, self.count = theta(self.net), 1
            return
        self.count += 1
        params = trainable(self.net)
        torch._foreach_lerp_(list(self.mean.values()), [params[name] for name in self.mean], self.share())

    def predict(self, x: Tensor) -> Tensor:
        if not self.mean:
            return self.base.predict(x)
        with standing_at(self.net, self.mean):
            return self.base.predict(x)

    def measured(self, batch: Batch) -> Callable[[Tensor], Tensor]:
        return self.base.measured(batch)  # c is of the weights that are trained

    def on_load(self) -> None:
        """Move the network to the mean: whoever exports, measures or adapts it finds what predicts."""
        move_to(self.net, self.mean)
        self.mean = ParamVector()


class AverageWithStatistics(WeightAverage):
    """A weight average that predicts with running statistics of batch norm of its own, if they are not frozen.

    Those of the last step belong to other weights.
    """

    saved_attributes = (*WeightAverage.saved_attributes, "statistics")

    def __init__(self, base: Algorithm | None = None):
        super().__init__(base)
        self.statistics: Tensor | None = None  # as `copy_statistics` has them

    def predict(self, x: Tensor) -> Tensor:
        with standing_statistics(self.net, self.statistics):
            return super().predict(x)

    def on_load(self) -> None:
        super().on_load()
        if self.statistics is not None:
            set_statistics(self.net, self.statistics)
            self.statistics = None
