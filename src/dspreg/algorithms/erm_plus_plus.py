"""ERM++: the classifier first, then everything, and a prediction with averaged weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dspreg.algorithms.base import Algorithm, Direction, Log
from dspreg.algorithms.classifier_first import ClassifierFirst
from dspreg.algorithms.weight_average import AverageWithStatistics
from dspreg.batches import Batch
from dspreg.distributions import LogUniform
from dspreg.errors import ConfigError
from dspreg.networks.batch_norm import copy_statistics, moves_statistics, scratch_buffers, set_statistics
from dspreg.vectors import standing_at


class ERMPlusPlus(AverageWithStatistics):
    """ERM++: warms up the classifier alone, then trains all, and predicts with the mean of the weights from then on.

        steps 0 … linear_steps:   the classifier moves, with the learning rate `linear_lr`
        after that:               everything moves, with the learning rate of the run and a new optimiser
        prediction:               θ̄ = mean_{t ≥ start} θ_t; before `start` with θ

    What of the network is not its `classifier` stands still in the warm-up; parts that other layers train beside it do
    not. Where batch norm is not frozen its running statistics are averaged as the weights are, and then take in the
    step's batch at the averaged weights: one forward pass more.

    Teterwak et al., WACV 2025, as in DomainBed's `ERMPlusPlus`, which counts from 1 and averages from its 600th update
    on, with the weights before it: that is start=598. Its ResNet-50 has other weights and trains batch norm: --model
    resnet50.ram_in1k --frozen-bn no. Not here: LARS, which fails there, and the script `train_autolr.py`, which
    lowers the learning rate where the validation loss stays, and then trains once more on all images. On small images
    DomainBed has the same linear_lr, though its lr is twenty times as large. Changes `update` and the prediction.
    """

    step_options = ("linear_steps", "start")
    space = {"linear_lr": LogUniform(-5, -3.5, key="linear_lr")}

    def __init__(
        self,
        base: Algorithm | None = None,
        *,
        linear_steps: int = 500,
        linear_lr: float = 5e-5,
        start: int = 598,
    ):
        super().__init__(base)
        for name, value in (("linear_steps", linear_steps), ("start", start)):
            if value < 0:
                raise ConfigError(f"ERMPlusPlus: {name}={value}; wanted a number of steps ≥ 0")
        if not 0 < linear_lr < float("inf"):
            raise ConfigError(f"ERMPlusPlus: linear_lr={linear_lr}; wanted a number above 0")
        self.linear_steps, self.linear_lr, self.start = linear_steps, linear_lr, start
        self._shown: dict[int, Tensor] = {}  # images of the current step, by domain

    def configure_optimizer(self, optimizer: torch.optim.Optimizer) -> None:  # noqa: ARG002
        self._first.configure_optimizer()

    def update(self, direction: Direction, batches: Sequence[Batch]) -> Log:
        self._shown |= {batch.domain: batch.x for batch in batches}
        return self._first.update(direction, batches)

    @property
    def _first(self) -> ClassifierFirst:
        return ClassifierFirst(self, self.linear_steps, self.linear_lr)

    def share(self) -> float:
        return 1 / self.count

    @torch.no_grad()
    def on_step_end(self) -> None:
        averaging = self.t >= self.start
        if averaging:
            super().on_step_end()
        shown, self._shown = self._shown, {}
        if moves_statistics(self.net):
            new = copy_statistics(self.net)
            if averaging and self.count > 1 and self.statistics is not None:
                new = torch.lerp(self.statistics, new, self.share())
            self.statistics = self._refresh(new, torch.cat([shown[domain] for domain in sorted(shown)]))

    def _refresh(self, statistics: Tensor, x: Tensor) -> Tensor:
        """Running statistics after one more batch, seen with the weights that predict."""
        with scratch_buffers(self.net), standing_at(self.net, self.mean):
            set_statistics(self.net, statistics)
            self.base.predict(x)
            return copy_statistics(self.net)
