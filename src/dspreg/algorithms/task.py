"""What an algorithm knows about the experiment: never a data set, a file or the target."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dspreg.batches import Batch
from dspreg.kinds import CLASSES, require_kind
from dspreg.networks import Featurizer, Network
from dspreg.randomness import Key


def _no_samples(t: int, batches: int) -> Mapping[str, Sequence[Batch]]:
    raise RuntimeError(f"step {t} wants {batches} batches per domain to measure on; give the Task a `samples` function")


def _as_it_is(net: Network) -> None:
    """Train all of it."""


@dataclass(frozen=True)
class Task:
    """All an algorithm learns about the experiment."""

    num_classes: int  # outputs of the network: classes, labels or numbers
    domains: tuple[str, ...]  # the source domains, in the order of `Batch.domain`
    steps_per_epoch: int  # counted over the sources alone
    backbone: Callable[[], Featurizer | Network]  # a network is a featurizer with a classifier of its own
    key: tuple[Key, ...] = ()  # of all randomness: data set, targets, trial, draw
    # samples(t, n): n batches of 32 images per source domain, evaluation transform, keyed by (key, t, "measure")
    samples: Callable[[int, int], Mapping[str, Sequence[Batch]]] = _no_samples
    # called at every pass of the network in a step: one that measures c, or searches, takes minutes and is not hung
    on_progress: Callable[[], None] = lambda: None
    # called of the network of ERM when it is new: loads the weights to start from, freezes parts, adds adapters, sets
    # the start of the classifier
    adapt: Callable[[Network], None] = _as_it_is
    kind: str = CLASSES  # "classes", "multilabel" or "regression": see `dspreg.kinds`

    def __post_init__(self) -> None:
        require_kind(self.kind)

    @property
    def can_measure(self) -> bool:
        return self.samples is not _no_samples

    @property
    def num_domains(self) -> int:
        return len(self.domains)


@dataclass(frozen=True)
class SourceValidation:
    """How the stack predicts held-out images ("out") of every source domain; `on_evaluation` is handed it.

    `before_evaluation` is handed that of the layers below. The target is not in it.
    """

    step: int  # the last one taken, counted from 0
    accuracy: Mapping[str, float]  # by domain; of several labels the mean average precision, of numbers R²
    loss: Mapping[str, float]  # mean over samples, by domain: for classes the cross-entropy
