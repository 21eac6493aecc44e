"""Batch-norm statistics of the images at hand instead of those of training (AdaBN, Li et al. 2017)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from dspreg.data.loader import XY, DomainSplit
from dspreg.data.readers import iterate_batches
from dspreg.devices import send
from dspreg.errors import ConfigError, DataError
from dspreg.networks.batch_norm import estimating_statistics, norms_with_statistics
from dspreg.randomness import generator
from dspreg.sensitivity.evaluation_mode import evaluation_mode
from dspreg.training.model import Model


@contextmanager
def adapted(model: Model, part: DomainSplit, *, size: int, device: str = "cpu", workers: int = 0) -> Iterator[None]:
    """Inside, every batch norm has the mean and variance of `part`; afterwards the model is as before, to the bit.

    One pass over the images, without their labels. Each batch is normalised by itself on the way, and the statistics
    are the plain averages over batches: unlike a running average they do not depend on which batch came last.

    Args:
        model: As `dspreg.load` returns it; other layers, such as dropout, stay in evaluation mode.
        part: The images.
        size: At most so many in a batch.
        device: Where the model is.
        workers: Processes that read images.
    """
    batch_norms(model)
    batches = Shuffled(part, size)
    with evaluation_mode(model):  # gives every buffer back
        try:
            with (
                estimating_statistics(model),
                torch.no_grad(),
                closing(iterate_batches(batches, range(len(batches)), workers)) as read,
            ):
                for x, _ in read:
                    model(part.transform.normalise(send(x, device)))
        except ValueError as error:  # torch's, of batch norm
            raise DataError(f"{len(part)} images are too few to adapt on ({error}); do without --adapt bn") from error
        yield


def batch_norms(model: nn.Module) -> list[_BatchNorm]:
    """Those that keep statistics, or a ConfigError."""
    found = norms_with_statistics(model)
    if not found:
        raise ConfigError("the model has no batch norm, so that there is nothing for --adapt bn to adapt; leave it out")
    return found


@dataclass(frozen=True)
class Shuffled:
    """The n-th batch of a part, in an order that is always the same, in sizes that differ by one at most.

    Shuffled, because images of a folder stand class by class, and a batch of one class has not the statistics of the
    domain. Of equal size, because every batch counts as much: five images left over would weigh like sixty-four.
    """

    part: DomainSplit
    size: int

    def __len__(self) -> int:
        return -(-len(self.part) // self.size)

    def __getitem__(self, n: int) -> XY:
        order = torch.randperm(len(self.part), generator=generator(self.part.domain, "adapt"))
        return self.part.batch(order.tensor_split(len(self))[n].tolist())
