"""Batches of images, read by any number of processes: each batch is a function of its key alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from dspreg.batches import Batch
from dspreg.data.balance import positions_by_class
from dspreg.data.base import labels_of, split_pair
from dspreg.data.images import Images
from dspreg.data.readers import ReaderPool, iterate_batches
from dspreg.data.sampling import draw_balanced_batch, draw_measure_batches, draw_training_batch
from dspreg.data.tasks import label_of
from dspreg.data.transforms import Transform, Unchanged
from dspreg.devices import send
from dspreg.kinds import CLASSES
from dspreg.randomness import Key, seeded

XY = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class DomainSplit:
    """Some images of one domain, such as its training or validation split, in order, as a transform shows them."""

    domain: str
    images: Sequence[tuple[Any, Any]]
    positions: Sequence[int]
    transform: Transform | Unchanged
    # domain → features and labels of all its images, in the order of `images`; where there are any, they are read
    kept: Mapping[str, XY] = field(default_factory=dict, compare=False)
    kind: str = CLASSES
    num_classes: int = 0  # of another kind than classes: how many numbers a label has

    def __len__(self) -> int:
        return len(self.positions)

    @cached_property
    def labels(self) -> list[int]:
        """Of its images."""
        every = labels_of(self.images)
        return [every[i] for i in self.positions]

    @cached_property
    def by_class(self) -> list[list[int]]:
        """Where in `positions` the images of each class are."""
        return positions_by_class(self.labels)

    def batch(self, chosen: Sequence[int], *key: Key) -> XY:
        """Pixels (B, channels, H, W), uint8, and labels of the chosen ones: small, for they travel between processes.

        Where features are kept, it is those (B, width), which `Transform.normalise` hands on as they are. The random
        numbers of each image are keyed by its position in the batch. Of a data set of tensors, the inputs themselves.
        """
        if self.domain in self.kept:
            rows = [self.positions[i] for i in chosen]
            features, classes = self.kept[self.domain]
            return features[rows], classes[rows]
        if isinstance(self.transform, Unchanged):
            pairs = [split_pair(self.images[self.positions[place]]) for place in chosen]
            inputs = [self.transform(x) for x, _ in pairs]
            return torch.stack(inputs), self.join_labels([y for _, y in pairs])
        shown, labels = self.transform, []
        changed = shown.augment != "none"
        pixels = torch.empty((len(chosen), shown.channels, shown.size, shown.size), dtype=torch.uint8)
        for place, i in enumerate(chosen):
            at, out = self.positions[i], pixels[place]
            if isinstance(self.images, Images) and not changed:
                self.images.put_resized(at, out.numpy(), shown.resize)
                labels.append(self.images.labels[at])
                continue
            image, label = self.images[at]
            labels.append(label)
            with seeded(*key, self.domain, place, "augment") if changed else nullcontext():
                shown.put_pixels(image, out)
        return pixels, self.join_labels(labels)

    def join_labels(self, labels: Sequence[Any]) -> Tensor:
        """(B,) classes, or (B, C) numbers."""
        if self.kind == CLASSES:
            return torch.tensor([int(y) for y in labels])
        return torch.stack([label_of(y, self.kind, self.num_classes) for y in labels])


@dataclass(frozen=True)
class TrainingSteps:
    """Step t → one batch per source domain, drawn with replacement; `balanced`: every class as likely."""

    parts: Sequence[DomainSplit]
    size: int
    key: tuple[Key, ...]
    balanced: bool = False

    def __getitem__(self, t: int) -> list[XY]:
        return [p.batch(which, *self.key, t) for p, which in zip(self.parts, self.chosen(t), strict=True)]

    def chosen(self, t: int) -> list[list[int]]:
        """Which images of each part step t sees."""
        if self.balanced:
            return [draw_balanced_batch(p.by_class, self.size, *self.key, t, p.domain) for p in self.parts]
        return [draw_training_batch(len(p), self.size, *self.key, t, p.domain) for p in self.parts]


@dataclass(frozen=True)
class SequentialBatches:
    """(part, n) → its n-th batch. `key` is for parts whose transform is random."""

    parts: Sequence[DomainSplit]
    size: int
    key: tuple[Key, ...] = ()

    def order(self) -> list[tuple[int, int]]:
        return [(p, n) for p, part in enumerate(self.parts) for n in range(-(-len(part) // self.size))]

    def __getitem__(self, which: tuple[int, int]) -> XY:
        p, n = which
        part = self.parts[p]
        chosen = range(n * self.size, min(len(part), (n + 1) * self.size))
        return part.batch(chosen, *self.key, n)


@dataclass(frozen=True)
class Positions:
    """(part, positions) → the images there."""

    parts: Sequence[DomainSplit]

    def __getitem__(self, which: tuple[int, tuple[int, ...]]) -> XY:
        return self.parts[which[0]].batch(which[1])


@dataclass(frozen=True)
class MeasureSampler:
    """Draws the images that c is measured on: `samples(t, batches)` of a `Task`."""

    parts: Sequence[DomainSplit]
    key: tuple[Key, ...]
    device: str = "cpu"
    workers: int | ReaderPool = 0
    on_wait: Callable[[], None] = lambda: None  # as in `iterate_batches`

    def __call__(self, t: int, batches: int) -> Mapping[str, Sequence[Batch]]:
        every = [draw_measure_batches(len(p), batches, *self.key, t, p.domain) for p in self.parts]
        result: dict[str, list[Batch]] = {part.domain: [] for part in self.parts}
        for batch in self.batches([(d, chosen) for d, each in enumerate(every) for chosen in each]):
            result[self.parts[batch.domain].domain].append(batch)
        return result

    def batches(self, order: Iterable[tuple[int, Sequence[int]]]) -> Generator[Batch, None, None]:
        """For each (part, positions), made when asked for."""
        which = [(d, tuple(chosen)) for d, chosen in order]
        with closing(iterate_batches(Positions(self.parts), which, self.workers, self.on_wait)) as made:
            for (d, _), (x, y) in zip(which, made, strict=True):
                yield Batch(self.parts[d].transform.normalise(send(x, self.device)), send(y, self.device), d)


def send_ahead(batches: Generator[list[XY], None, None], device: str) -> Generator[list[XY], None, None]:
    """Batches of steps, on the device. On a GPU, the next one is on its way before this one is handed over.

    On the CPU there is no way to go, and none is made before it is asked for. Closing this closes `batches`.
    """
    with closing(batches):
        if torch.device(device).type == "cpu":
            yield from batches
            return
        before: list[XY] | None = None
        for each in batches:
            sent = [(send(x, device), send(y, device)) for x, y in each]
            if before is not None:
                yield before
            before = sent
        if before is not None:
            yield before


def reader_processes(asked: int | None, small: bool) -> int:
    """How many processes read images: as many as asked for, or none for small images and up to four for others."""
    if asked is not None:
        return asked
    return 0 if small else min(4, os.cpu_count() or 1)
