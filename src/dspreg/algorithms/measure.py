"""Measuring a stack: what its whole prediction is sensitive to, on samples of the source domains."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from dspreg.algorithms.base import ERM, Algorithm
from dspreg.algorithms.compatibility import overrides
from dspreg.batches import Batch, sample_losses
from dspreg.errors import ConfigError
from dspreg.kinds import CLASSES
from dspreg.precision import full_precision
from dspreg.randomness import Key
from dspreg.sensitivity import Meter, Profile
from dspreg.sensitivity.evaluation_mode import evaluation_mode
from dspreg.sensitivity.measure import build_profile
from dspreg.sensitivity.samples import Samples
from dspreg.vectors import depends_on

BATCHES = 16  # of 32 images per domain: from there on c is reliable to 0.8 on real images (bench/noise.py)

Function = Callable[[Samples, int], Callable[[Tensor], Tensor]]


def refresh_due(t: int, epochs: int, steps: int | None, steps_per_epoch: int) -> bool:
    """Whether c is measured before step t: before steps S, 2S, …, or at the start of every T-th epoch.

    Epochs count from 1, as in the paper's Algorithm 1: before steps (mT − 1)·E, m = 1, 2, …
    """
    if steps is not None:
        return t > 0 and t % steps == 0
    return (t + steps_per_epoch) % (epochs * steps_per_epoch) == 0


def refresh_steps(layers: Iterable[Algorithm], steps: int, steps_per_epoch: int) -> list[int]:
    """The steps of a training before which c is measured, one entry for each layer that does so; before `setup`, too.

    A layer that measures c says so by `uses_c` and `due(t, steps_per_epoch)`.
    """
    measuring = [layer for layer in layers if getattr(layer, "uses_c", False)]
    dues = [due for layer in measuring if (due := getattr(layer, "due", None)) is not None]
    return [t for t in range(steps) for due in dues if due(t, steps_per_epoch)]


def profile_stack(algorithm: Algorithm) -> Profile:
    """The full profile of a stack at this step, with null and reliability, as from `dspreg.measure`.

    By the options of the outermost layer that measures c in training, which has a method `profile`; else by defaults.
    """
    for layer in algorithm.layers():
        own: Callable[[], Profile] | None = getattr(layer, "profile", None)
        if own is not None:
            return own()
    with measuring(algorithm) as (meter, f, domains):
        return build_profile(meter, f, domains, eps=0.0)


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
    top = algorithm.stack.top
    # the layers with a `measured` of their own; whether it depends on the network is looked at once
    unchecked = [layer for layer in top.layers() if overrides(type(layer), "measured") and not isinstance(layer, ERM)]

    def f(samples: Samples, domain: int) -> Callable[[Tensor], Tensor]:
        assert isinstance(samples.inputs, Tensor)
        y = samples.y if samples.y is not None else torch.zeros(len(samples), dtype=torch.long)
        found = top.measured(Batch(samples.inputs, y, domain))
        if unchecked:
            require_dependence(found, samples.inputs, unchecked[0])
            unchecked.clear()
        return found

    device = next(algorithm.net.parameters()).device.type
    with evaluation_mode(top), full_precision(device):  # c of a step is that of the profiles
        options = loss_option(algorithm.task.kind, options.get("of", "loss")) | options
        yield Meter(algorithm.net, key=(*key, "measure"), on_pass=algorithm.task.on_progress, **options), f


def loss_option(kind: str, of: str) -> dict[str, Any]:
    """The `loss` that a meter is given, by name; none where it is its own, the cross-entropy, or is not asked for.

    Raises:
        ConfigError: Labels would be drawn from a softmax, and the task is of another kind.
    """
    if of == "fisher" and kind != CLASSES:
        raise ConfigError(f"of='fisher' draws classes from the softmax, and this task is of the kind {kind!r}")
    if of != "loss" or kind == CLASSES:
        return {}

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return sample_losses(kind, out, y)

    loss.__name__ = kind
    return {"loss": loss}


def require_dependence(f: Callable[[Tensor], Tensor], x: Tensor, layer: Algorithm) -> None:
    """Refuse a function that is constant in the parameters: c would be 0 everywhere, and DSP-Reg do nothing."""
    if not depends_on(f(x[:2]), layer.net):
        name = type(layer).__name__
        raise ConfigError(
            f"what {name}.measured returns is no differentiable function of the parameters of self.net, so that c "
            f"would be 0 everywhere; return self.base.measured(batch) in it to measure the network that is trained"
        )
