"""Batches of images, read by any number of processes: each batch is a function of its key alone."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import time
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from dspreg.batches import Batch
from dspreg.data.decode import BadImage
from dspreg.data.sampling import draw_measure_batches, draw_training_batch
from dspreg.data.transforms import Transform
from dspreg.errors import DataError, ResourceError
from dspreg.randomness import Key, seeded

if TYPE_CHECKING:
    from PIL.Image import Image

XY = tuple[Tensor, Tensor]
WORKERS: weakref.WeakSet[Any] = weakref.WeakSet()  # processes


@dataclass(frozen=True)
class DomainSplit:
    """Some images of one domain, such as its training or validation split, in order, as a transform shows them."""

    domain: str
    images: Sequence[tuple[Image, int]]
    positions: Sequence[int]
    transform: Transform

    def __len__(self) -> int:
        return len(self.positions)

    def batch(self, chosen: Sequence[int], *key: Key) -> XY:
        """Pixels (B, 3, H, W), uint8, and labels of the chosen ones: small, for they travel between processes.

        The random numbers of each image are keyed by its position in the batch.
        """
        pairs = [self.images[self.positions[i]] for i in chosen]
        pixels = [self._pixels(image, *key, self.domain, place) for place, (image, _) in enumerate(pairs)]
        return torch.stack(pixels), torch.tensor([label for _, label in pairs])

    def _pixels(self, image: Image, *key: Key) -> Tensor:
        if not self.transform.augment:
            return self.transform.pixels(image)
        with seeded(*key, "augment"):
            return self.transform.pixels(image)


@dataclass(frozen=True)
class TrainingSteps:
    """Step t → one batch per source domain, drawn with replacement."""

    parts: Sequence[DomainSplit]
    size: int
    key: tuple[Key, ...]

    def __getitem__(self, t: int) -> list[XY]:
        chosen = [draw_training_batch(len(p), self.size, *self.key, t, p.domain) for p in self.parts]
        return [p.batch(which, *self.key, t) for p, which in zip(self.parts, chosen, strict=True)]


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
class MeasureSampler:
    """Draws the images that c is measured on: `samples(t, batches)` of a `Task`."""

    parts: Sequence[DomainSplit]
    key: tuple[Key, ...]
    device: str = "cpu"
    workers: int = 0

    def __call__(self, t: int, batches: int) -> Mapping[str, Sequence[Batch]]:
        every = [draw_measure_batches(len(p), batches, *self.key, t, p.domain) for p in self.parts]
        result: dict[str, list[Batch]] = {part.domain: [] for part in self.parts}
        for batch in self.batches([(d, chosen) for d, each in enumerate(every) for chosen in each]):
            result[self.parts[batch.domain].domain].append(batch)
        return result

    def batches(self, order: Iterable[tuple[int, Sequence[int]]]) -> Iterator[Batch]:
        """For each (part, positions), made when asked for."""
        which = [(d, tuple(chosen)) for d, chosen in order]
        for (d, _), (x, y) in zip(which, iterate_batches(self, which, self.workers), strict=True):
            yield Batch(self.parts[d].transform.normalise(x.to(self.device)), y.to(self.device), d)

    def __getitem__(self, which: tuple[int, tuple[int, ...]]) -> XY:
        return self.parts[which[0]].batch(which[1])


def reader_processes(asked: int | None, small: bool) -> int:
    """How many processes read images: as many as asked for, or none for small images and up to four for others."""
    if asked is not None:
        return asked
    return 0 if small else min(4, os.cpu_count() or 1)


def iterate_batches(source: Any, order: Iterable[Any], workers: int) -> Iterator[Any]:
    """Yield source[i] for every i in `order`, in that order, made by `workers` processes (0: here)."""
    if workers == 0:
        return (source[i] for i in order)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")  # more workers than cores: so be it
        loader: DataLoader[Any] = DataLoader(
            source,
            sampler=list(order),
            batch_size=None,
            num_workers=workers,
            worker_init_fn=_leave_signals_to_the_trainer,
            generator=torch.Generator(),  # otherwise every loader would move the global generator
        )
        before = set(multiprocessing.active_children())
        made = iter(loader)
    WORKERS.update(set(multiprocessing.active_children()) - before)
    return made


DIED = (
    "a process that reads images died, perhaps for want of memory (in a container, of shared memory). Run the "
    "same command again to resume from the last checkpoint; fewer --workers need less memory"
)


@contextmanager
def reader_errors() -> Iterator[None]:
    """Errors of the processes that read images, as ours: torch adds tracebacks, or raises anywhere."""
    try:
        yield
    except BadImage as error:
        raise DataError(str(error).rpartition("BadImage: ")[2].strip()) from None
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise ResourceError(DIED) from error
    except (ConnectionError, EOFError) as error:  # the pipe broke before torch noticed
        if not _one_died():
            raise
        raise ResourceError(DIED) from error


def _one_died() -> bool:
    """Whether a reader process has died. Torch reports that by a signal, which may raise anywhere, even in here."""
    try:
        time.sleep(1)
    except RuntimeError as error:
        return "DataLoader worker" in str(error)
    return not all(worker.is_alive() for worker in WORKERS)


def _leave_signals_to_the_trainer(worker: int) -> None:  # noqa: ARG001
    # a terminal or a scheduler signals the whole group; the trainer finishes its step first and needs the next batch
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


@atexit.register
def _end_workers() -> None:
    # readers with unused batches: Python sends them SIGTERM at exit, and would wait for ever
    if not WORKERS:
        return
    if hasattr(signal, "SIGCHLD"):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch would raise for each that ends
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C in between would leave some of them
    for worker in WORKERS:
        if worker.is_alive():
            worker.kill()
    signal.signal(signal.SIGINT, before)
