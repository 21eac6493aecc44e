"""How the five arrows are joined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TypeVar

import torch
from torch import Tensor

from dspreg.algorithms.base import Algorithm, Log
from dspreg.batches import Batch, OutputObjective, Outputs
from dspreg.networks.batch_norm import scratch_buffers
from dspreg.precision import losses_scaled
from dspreg.randomness import Noise
from dspreg.vectors import ParamVector

Result = TypeVar("Result")


def train_step(algorithm: Algorithm, batches: Sequence[Batch], *, record: bool = False) -> Log:
    """Let `algorithm` take one step on one batch per source domain.

    Args:
        algorithm: A stack after `setup`.
        batches: One per source domain.
        record: Also compute expensive figures, such as the penalty's share of the gradient. The step itself is bitwise
            identical.

    Returns:
        The loss and what the layers noted, as scalars on the device.
    """
    if not batches or not all(isinstance(b, Batch) for b in batches):
        raise TypeError("train_step wants a list of dspreg.Batch(x, y, domain), one per source domain")
    noise = Noise(*algorithm.task.key, algorithm.t, "noise")  # the same random numbers at every evaluation

    seen: set[int] = set()  # domains

    def evaluate(loss: Callable[[Outputs], Result], batches: Sequence[Batch]) -> Result:
        algorithm.task.on_progress()
        # batch norm takes a batch into its statistics once, however often the batch is evaluated
        domains = {batch.domain for batch in batches}
        buffers = scratch_buffers(algorithm.net) if domains <= seen else nullcontext()
        seen.update(domains)
        with noise.replayed(), buffers, algorithm.stack.folding():
            return loss(algorithm(batches))

    objective = OutputObjective(evaluate, algorithm.loss)

    def direction(batches: Sequence[Batch]) -> tuple[Tensor, ParamVector]:
        return algorithm.gradient(objective, batches)

    stack = algorithm.stack
    stack.evaluate = evaluate
    with losses_scaled(stack.scaler.scale if stack.scaler else 1.0), stack.stepping(record=record) as notes:
        log = algorithm.update(direction, batches)
    if stack.scaler:
        notes |= {"loss_scale": torch.tensor(stack.scaler.scale), "skipped": torch.tensor(float(stack.skipped))}
    return log | notes
