"""LP-FT: a linear probe first, then fine-tuning."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dspreg.algorithms.base import Algorithm, Direction, Log
from dspreg.algorithms.classifier_first import ClassifierFirst
from dspreg.algorithms.compatibility import Compatibility
from dspreg.batches import Batch
from dspreg.distributions import LogUniform
from dspreg.errors import ConfigError


class LPFT(Algorithm):
    """LP-FT: trains the classifier alone, then everything from where that ended.

        steps 0 … probe_steps − 1:   the classifier moves, with the learning rate `probe_lr`
        after that:                  everything moves, with the learning rate of the run and a new optimiser

    A random classifier pulls pretrained features apart in the first steps; one that fits them does not. `probe_lr` is
    larger than the run's, since the classifier starts from nothing. With a schedule, the probe's steps have this rate
    as it is. What of the network is not its `classifier` stands still in the probe; parts that other layers train
    beside it do not.

    Kumar et al., ICLR 2022, who train the probe to its end and choose both rates by validation. Changes `update`.
    """

    compatibility = Compatibility(trains_featurizer=True)
    step_options = ("probe_steps",)
    space = {"probe_lr": LogUniform(-4, -2, key="LPFT.probe_lr")}

    def __init__(self, base: Algorithm | None = None, *, probe_steps: int = 1_000, probe_lr: float = 1e-3):
        super().__init__(base)
        if probe_steps < 0:
            raise ConfigError(f"LPFT: probe_steps={probe_steps}; wanted a number of steps ≥ 0")
        if not 0 < probe_lr < float("inf"):
            raise ConfigError(f"LPFT: probe_lr={probe_lr}; wanted a number above 0")
        self.probe_steps, self.probe_lr = probe_steps, probe_lr

    def configure_optimizer(self, optimizer: torch.optim.Optimizer) -> None:  # noqa: ARG002
        self._first.configure_optimizer()

    def update(self, direction: Direction, batches: Sequence[Batch]) -> Log:
        return self._first.update(direction, batches)

    @property
    def _first(self) -> ClassifierFirst:
        return ClassifierFirst(self, self.probe_steps - 1, self.probe_lr)
