"""What a model says about every image of a domain, beside what is known of the image."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dspreg.data.loader import DomainSplit


@dataclass(frozen=True)
class Answers:
    """N images in the order in which they were shown.

    Attributes:
        labels: (N,) the true classes, as columns of the model.
        log_p: (N, C) logarithms of the probabilities.
        names: Of the files, or their positions in the domain.
        groups: Which images belong together, if the data set says it.
        metadata: Column → a value for each image, if the data set says it.
    """

    labels: np.ndarray
    log_p: np.ndarray
    names: tuple[str, ...]
    groups: tuple[Any, ...] | None = None
    metadata: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def independent(self) -> int:
        """Images, or groups of them where images belong together."""
        return len(self) if self.groups is None else len(set(self.groups))

    def select(self, chosen: np.ndarray) -> Answers:
        """Some of the images, by True and False."""
        at = np.flatnonzero(chosen)
        return dataclasses.replace(
            self,
            labels=self.labels[at],
            log_p=self.log_p[at],
            names=tuple(self.names[i] for i in at),
            groups=None if self.groups is None else tuple(self.groups[i] for i in at),
            metadata={name: tuple(values[i] for i in at) for name, values in self.metadata.items()},
        )


def answers_of(part: DomainSplit, labels: np.ndarray, log_p: np.ndarray) -> Answers:
    """With what the data set says of the images: `names`, `groups` and `metadata`, where its sequence has them."""
    images, at = part.images, list(part.positions)
    names = _aligned(getattr(images, "names", None), len(images))
    groups = _aligned(getattr(images, "groups", None), len(images))
    metadata: Mapping[str, Sequence[Any]] = getattr(images, "metadata", None) or {}
    return Answers(
        labels,
        log_p,
        tuple(str(i if names is None else names[i]) for i in at),
        None if groups is None else tuple(groups[i] for i in at),
        {name: tuple(values[i] for i in at) for name, values in metadata.items() if len(values) == len(images)},
    )


def _aligned(values: Any, images: int) -> Sequence[Any] | None:
    return values if values is not None and len(values) == images else None
