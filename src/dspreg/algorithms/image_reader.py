"""What enters the network in a step, for layers that have to be there: domains of samples, or images to change."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from dspreg.algorithms.base import ERM, Algorithm
from dspreg.batches import Batch
from dspreg.devices import send


def image_reader(layer: Algorithm) -> Algorithm:
    """The layer below that hands the images to the network: ERM, or one above it with a forward of its own."""
    return next(
        each for each in layer.base.layers() if isinstance(each, ERM) or "forward" in each.compatibility.replaces
    )


@contextmanager
def intercepted(layer: Algorithm, change: Callable[[Sequence[Batch]], Sequence[Batch]]) -> Iterator[None]:
    """Inside, batches go through `change` last of all, after a layer in between, such as Mixup, has made new ones."""
    handle = image_reader(layer).register_forward_pre_hook(lambda _, given: (change(given[0]),))
    try:
        yield
    finally:
        handle.remove()


def domains_of(batches: Sequence[Batch]) -> Tensor:
    """The domain of every sample, on the device of the images. (N,)"""
    return send(torch.cat([torch.full((len(b),), b.domain) for b in batches]), batches[0].x.device)


def repeat(batches: Sequence[Batch], times: int) -> list[Batch]:
    """Every sample so many times in a row: who crops batches to one length leaves no sample without its copies."""

    def times_of(rows: Tensor) -> Tensor:
        return rows.repeat_interleave(times, 0)

    return [
        replace(b, x=times_of(b.x), y=times_of(b.y), weights=None if b.weights is None else times_of(b.weights))
        for b in batches
    ]
