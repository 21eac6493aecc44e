"""Penalties that count after some steps, with an optimiser that starts anew."""

from __future__ import annotations

from collections.abc import Sequence

from dspreg.algorithms.base import Algorithm, Direction, Log
from dspreg.batches import Batch
from dspreg.errors import ConfigError


class WarmUp(Algorithm):
    """A layer whose penalty has its `weight` from step `warmup` on; there the optimiser forgets its moments.

    The loss changes its size at that step, and Adam's second moments would answer with far too large or small steps.
    """

    step_options = ("warmup",)
    weight: float
    warmup: int
    before = 1.0  # the penalty's weight until then

    def check(self) -> None:
        if not 0 <= self.weight < float("inf"):
            raise ConfigError(f"{type(self).__name__}: weight={self.weight}; wanted a finite number ≥ 0")
        if self.warmup < 0:
            raise ConfigError(f"{type(self).__name__}: warmup={self.warmup}; wanted a number of steps ≥ 0")

    @property
    def weight_now(self) -> float:
        return self.weight if self.t >= self.warmup else self.before

    def update(self, direction: Direction, batches: Sequence[Batch]) -> Log:
        # once, also if a layer above updates several times
        if self.t == self.warmup and self.stack.first_time(self, "forget"):
            self.stack.optimizer.state.clear()
        return self.base.update(direction, batches)
