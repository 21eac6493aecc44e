"""Measuring a stack: what its whole prediction is sensitive to, on samples of the source domains."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dspreg.batches import Batch
from dspreg.errors import ConfigError
from dspreg.randomness import Key
from dspreg.sensitivity import Meter
from dspreg.sensitivity.evaluation_mode import evaluation_mode
from dspreg.sensitivity.samples import Samples

if TYPE_CHECKING:
    from dspreg.algorithms.base import Algorithm

BATCHES = 16  # of 32 images per domain: from there on c is reliable to 0.8 on real images (bench/noise.py)

Function = Callable[[Samples, int], Callable[[Tensor], Tensor]]


@contextmanager
def measuring(
    algorithm: Algorithm, batches: int = BATCHES, **options: Any
) -> Iterator[tuple[Meter, Function, dict[str, list[Samples]]]]:
    """A meter, what it measures and on which samples; keyed by the step, so that it moves no other randomness."""
    task, steps = algorithm.task, algorithm.stack.steps
    domains = task.samples(steps, batches)
    if len(domains) < 2:
        raise ConfigError(
            f"c compares source domains and there is {len(domains)}: {', '.join(domains)}. Give at least two"
        )
    with metering(algorithm, (*task.key, steps), **options) as (meter, f):
        yield meter, f, {name: [Samples(b.x, b.y) for b in each] for name, each in domains.items()}


@contextmanager
def metering(algorithm: Algorithm, key: tuple[Key, ...], **options: Any) -> Iterator[tuple[Meter, Function]]:
    """A meter of a stack's network, and what it measures: the stack's whole prediction, in evaluation mode."""
    stack = algorithm.stack

    def f(samples: Samples, domain: int) -> Callable[[Tensor], Tensor]:
        assert isinstance(samples.inputs, Tensor)
        y = samples.y if samples.y is not None else torch.zeros(len(samples), dtype=torch.long)
        return stack.top.measured(Batch(samples.inputs, y, domain))

    device = next(algorithm.net.parameters()).device.type
    with evaluation_mode(stack.top), torch.autocast(device, enabled=False):  # c of a step is that of the profiles
        yield Meter(algorithm.net, key=(*key, "measure"), on_pass=stack.task.on_progress, **options), f
