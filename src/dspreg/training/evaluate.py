"""Evaluation during training: correct predictions of each part, or figures of another kind of task."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dspreg.algorithms.base import Algorithm
from dspreg.batches import sample_losses
from dspreg.data.loader import DomainSplit, SequentialBatches
from dspreg.data.readers import ReaderPool, iterate_batches
from dspreg.devices import read_numbers, send, widest_float
from dspreg.kinds import CLASSES, compute_figures
from dspreg.precision import full_precision
from dspreg.randomness import Key
from dspreg.sensitivity.evaluation_mode import evaluation_mode


@dataclass(frozen=True)
class Tally:
    """Counts, not fractions: integers add up to the same sum in any order.

    Training selects models by them. `inference.metrics.Scores`, of `dspreg evaluate`, also counts classes and
    confidences, and refuses outputs that are not finite. Here such outputs are wrong predictions: a target that
    diverges must not end a training.

    Attributes:
        correct: Images. While they are counted this and what follows are scalars on the device, for nobody to wait for.
        total: Images.
        finite: Whether every logit was finite.
        cross_entropy: Summed over images, if requested.
    """

    correct: int | Tensor = 0
    total: int = 0
    finite: bool | Tensor = True
    cross_entropy: float | Tensor = 0.0

    @property
    def accuracy(self) -> float:
        return int(self.correct) / self.total

    @property
    def loss(self) -> float:
        return float(self.cross_entropy) / self.total

    @property
    def figures(self) -> dict[str, float]:
        """What a record has of it, by name; the first selects."""
        return {"accuracy": self.accuracy}

    def counting(self, logits: Tensor, y: Tensor, *, losses: bool = False) -> Tally:
        finite = logits.isfinite().all(dim=1)
        hits = ((logits.argmax(1) == y) & finite).sum()  # NaN is not a correct prediction
        wide = logits.to(widest_float(logits.device))
        loss = F.cross_entropy(wide, y, reduction="sum") if losses else 0.0
        return Tally(self.correct + hits, self.total + len(y), finite.all() & self.finite, self.cross_entropy + loss)

    @staticmethod
    def read(tallies: Sequence[Tally]) -> list[Tally]:
        """With numbers instead of scalars. The device is waited for once, however many batches were counted."""
        scalars = [v for each in tallies for v in (each.correct, each.finite, each.cross_entropy)]
        places = [place for place, value in enumerate(scalars) if isinstance(value, Tensor)]
        numbers = dict(zip(places, read_numbers([t for t in scalars if isinstance(t, Tensor)]), strict=True))
        found = [numbers.get(place, value) for place, value in enumerate(scalars)]
        rows = zip(tallies, found[::3], found[1::3], found[2::3], strict=True)
        return [Tally(int(hits), each.total, bool(finite), float(loss)) for each, hits, finite, loss in rows]


@dataclass(frozen=True)
class Predicted:
    """In place of a `Tally` where the task is of another kind: figures are of all predictions of a part at once."""

    kind: str
    logits: tuple[Tensor, ...] = ()  # on the device, of every batch
    labels: tuple[Tensor, ...] = ()
    losses: bool = False

    def counting(self, logits: Tensor, y: Tensor, *, losses: bool = False) -> Predicted:
        return Predicted(self.kind, (*self.logits, logits), (*self.labels, y), losses)

    @cached_property
    def read(self) -> tuple[Tensor, Tensor]:
        """All outputs (N, C) and labels (N, C), on the CPU in float64."""
        return torch.cat(self.logits).cpu().double(), torch.cat(self.labels).cpu().double()

    @property
    def total(self) -> int:
        return sum(map(len, self.labels))

    @property
    def finite(self) -> bool:
        return bool(self.read[0].isfinite().all())

    @property
    def loss(self) -> float:
        return float(sample_losses(self.kind, *self.read).mean()) if self.losses else 0.0

    @cached_property
    def figures(self) -> dict[str, float]:
        """As of a `Tally`."""
        return compute_figures(self.kind, *([each.numpy()] for each in self.read))

    @property
    def accuracy(self) -> float:
        """The figure that selects."""
        return next(iter(self.figures.values()))


def tallies(
    algorithm: Algorithm,
    parts: Sequence[DomainSplit],
    *,
    size: int,
    key: tuple[Key, ...] = (),
    device: str = "cpu",
    workers: int | ReaderPool = 0,
    losses: bool = False,
    observe: Callable[[int, Tensor, Tensor], None] = lambda *_: None,
    pause: Callable[[], None] = lambda: None,
    on_wait: Callable[[], None] = lambda: None,
) -> Sequence[Tally | Predicted]:
    """One tally per part. Changes neither the algorithm nor any random state.

    Args:
        algorithm: A stack after `setup`.
        parts: Images to evaluate on.
        size: Images per batch; another size rounds logits differently.
        key: Random key of the augmentation, for parts that have one.
        device: Device of the algorithm.
        workers: Processes that read images, or the pool of them.
        losses: Also compute the cross-entropy.
        observe: Called with the part, the logits and the labels of every batch.
        pause: Called between batches; may raise to stop early.
        on_wait: Called while a batch is waited for; may raise as well.
    """
    batches, kind = SequentialBatches(parts, size, key), algorithm.task.kind
    result: list[Any] = [Tally() if kind == CLASSES else Predicted(kind) for _ in parts]
    with closing(predictions(algorithm, batches, device=device, workers=workers, on_wait=on_wait)) as predicted:
        for p, logits, y in predicted:
            result[p] = result[p].counting(logits, y, losses=losses)
            observe(p, logits, y)
            pause()
    return Tally.read(result) if kind == CLASSES else result


def as_arrays(answers: Sequence[tuple[Tensor, Tensor]]) -> tuple[np.ndarray, np.ndarray]:
    """Labels (N,) and log-probabilities (N, C) of a part, in double precision."""
    logits = torch.cat([each.detach() for each, _ in answers]).cpu().double()
    return torch.cat([y for _, y in answers]).cpu().numpy(), logits.log_softmax(1).numpy()


def count_classes(classes: Sequence[Tensor], num_classes: int) -> list[int]:
    """How many images are of each class; of several batches."""
    if not classes:
        return [0] * num_classes
    found: list[int] = np.bincount(torch.cat(list(classes)).cpu().numpy(), minlength=num_classes).tolist()
    return found


def predictions(
    algorithm: Algorithm,
    batches: SequentialBatches,
    *,
    device: str = "cpu",
    workers: int | ReaderPool = 0,
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
            with algorithm.stack.folding():
                logits = algorithm.predict(shown)
            yield p, logits, send(y, device)
