"""How the five arrows are joined."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from dspreg.algorithms.base import Algorithm, Log
from dspreg.batches import Batch
from dspreg.randomness import Noise
from dspreg.vectors import ParamVector


def train_step(algorithm: Algorithm, batches: Sequence[Batch], *, record: bool = False) -> Log:
    """Let `algorithm` take one step on one batch per source domain.

    Args:
        algorithm: A stack after `setup`.
        batches: One per source domain.
        record: Take the figures that cost something, such as the penalty's share of the gradient. The step itself
            is the same to the bit.

    Returns:
        The loss and what the layers noted, as scalars on the device.
    """
    if not batches or not all(isinstance(b, Batch) for b in batches):
        raise TypeError("train_step wants a list of dspreg.Batch(x, y, domain), one per source domain")
    noise = Noise(*algorithm.task.key, algorithm.t, "noise")  # the same random numbers at every evaluation

    def objective(batches: Sequence[Batch]) -> Tensor:
        with noise.replayed():
            return algorithm.loss(algorithm(batches))

    def direction(batches: Sequence[Batch]) -> tuple[Tensor, ParamVector]:
        return algorithm.gradient(objective, batches)

    with algorithm.stepping(record=record) as notes:
        log = algorithm.update(direction, batches)
    return log | notes
