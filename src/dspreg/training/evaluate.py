"""Evaluation during training: correct predictions of each part."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dspreg.algorithms.base import Algorithm
from dspreg.data.loader import DomainSplit, SequentialBatches
from dspreg.data.readers import iterate_batches
from dspreg.devices import send
from dspreg.precision import full_precision
from dspreg.randomness import Key
from dspreg.sensitivity.evaluation_mode import evaluation_mode


@dataclass(frozen=True)
class Tally:
    """Counts, not fractions: integers add up to the same sum in any order.

    Training selects models by them. `inference.metrics.Scores`, of `dspreg evaluate`, also counts classes and
    confidences, and refuses outputs that are not finite. Here such outputs are wrong predictions: a target that
    diverges must not end a training.
    """

    correct: int = 0
    total: int = 0
    finite: bool = True  # whether every logit was finite
    cross_entropy: float = 0.0  # summed over images, if requested

    @property
    def accuracy(self) -> float:
        return self.correct / self.total

    @property
    def loss(self) -> float:
        return self.cross_entropy / self.total

    def counting(self, logits: Tensor, y: Tensor, *, losses: bool = False) -> Tally:
        finite = logits.isfinite().all(dim=1)
        hits = int(((logits.argmax(1) == y) & finite).sum())  # NaN is not a correct prediction
        loss = float(F.cross_entropy(logits.cpu().double(), y.cpu(), reduction="sum")) if losses else 0.0
        return Tally(
            self.correct + hits, self.total + len(y), self.finite and bool(finite.all()), self.cross_entropy + loss
        )


def tallies(
    algorithm: Algorithm,
    parts: Sequence[DomainSplit],
    *,
    size: int,
    key: tuple[Key, ...] = (),
    device: str = "cpu",
    workers: int = 0,
    losses: bool = False,
    pause: Callable[[], None] = lambda: None,
    on_wait: Callable[[], None] = lambda: None,
) -> list[Tally]:
    """One tally per part. Changes neither the algorithm nor any random state.

    Args:
        algorithm: A stack after `setup`.
        parts: Images to evaluate on.
        size: Images per batch; another size rounds logits differently.
        key: Random key of the augmentation, for parts that have one.
        device: Device of the algorithm.
        workers: Processes that read images.
        losses: Also compute the cross-entropy.
        pause: Called between batches; may raise to stop early.
        on_wait: Called while a batch is waited for; may raise as well.
    """
    result, batches = [Tally() for _ in parts], SequentialBatches(parts, size, key)
    with closing(predictions(algorithm, batches, device=device, workers=workers, on_wait=on_wait)) as predicted:
        for p, logits, y in predicted:
            result[p] = result[p].counting(logits, y, losses=losses)
            pause()
    return result


def predictions(
    algorithm: Algorithm,
    batches: SequentialBatches,
    *,
    device: str = "cpu",
    workers: int = 0,
    on_wait: Callable[[], None] = lambda: None,
) -> Generator[tuple[int, Tensor, Tensor], None, None]:
    """Part, logits (B, C) and labels (B,) of every batch, on the device."""
    order = batches.order()
    with (
        evaluation_mode(algorithm),
        torch.no_grad(),
        full_precision(torch.device(device).type),
        closing(iterate_batches(batches, order, workers, on_wait)) as read,
    ):
        for (p, _), (x, y) in zip(order, read, strict=True):
            shown = batches.parts[p].transform.normalise(send(x, device))
            yield p, algorithm.predict(shown), send(y, device)
