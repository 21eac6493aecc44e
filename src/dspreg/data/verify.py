"""Look at every image of a data set before hours are spent on it."""

from __future__ import annotations

import hashlib
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from dspreg.data.base import DomainDataset
from dspreg.data.decoding import BadImage, contents, decoded_bytes
from dspreg.data.folders import ImageFolders
from dspreg.data.images import THREADS, Images
from dspreg.data.report import Bad, Cell, Report

if TYPE_CHECKING:
    from PIL.Image import Image

Domain = Sequence[tuple["Image", int]]
TOGETHER = 256  # images handed to the threads at a time, so that a large data set makes no long queue


class Look(NamedTuple):
    label: int | None
    sha: str | None  # None where there are no bytes to be compared
    fault: str | None


def verify(dataset: DomainDataset, progress: Callable[[int, int], None] | None = None) -> Report:
    """Decode everything, count it, and compare it with what is published and with itself.

    A bad image is named and the next one looked at.

    Args:
        dataset: Of image files, or any other.
        progress: Is called with the number of images done and of all.
    """
    started = time.monotonic()
    domains = {name: dataset.domain(name) for name in dataset.domains}
    total, done = sum(len(domain) for domain in domains.values()), 0
    counts: dict[str, Counter[int]] = {name: Counter() for name in domains}
    bad: list[Bad] = []
    equal: dict[str, list[tuple[str, str]]] = defaultdict(list)
    with ThreadPoolExecutor(THREADS) as pool:
        for name, domain in domains.items():
            for i, look in _looks(pool, domain):
                done += 1
                image = domain.names[i] if isinstance(domain, Images) else f"{name}[{i}]"
                fault = look.fault or _wrong_label(look, len(dataset.classes))
                if fault:
                    bad.append(Bad(name, image, fault))
                if look.label is not None:
                    counts[name][look.label] += 1
                if look.sha is not None and not look.fault:  # two empty files are two bad files, not twins
                    equal[look.sha].append((name, image))
                if progress is not None and (done % TOGETHER == 0 or done == total):
                    progress(done, total)
    table = {name: tuple(counted[label] for label in range(len(dataset.classes))) for name, counted in counts.items()}
    groups = [group for group in equal.values() if len(group) > 1]
    known = dataset if isinstance(dataset, ImageFolders) else None
    return Report(
        dataset=dataset.name,
        classes=tuple(dataset.classes),
        counts=table,
        bad=tuple(bad),
        mismatches=tuple(known.mismatches()) if known else (),
        variant=known.variant() if known else "",
        missing=tuple(_cells(table, dataset.classes, 0)),
        single=tuple(_cells(table, dataset.classes, 1)),
        across=tuple(tuple(image for _, image in g) for g in groups if len({name for name, _ in g}) > 1),
        within=tuple(tuple(image for _, image in g) for g in groups if len({name for name, _ in g}) == 1),
        notices=dataset.notices,
        seconds=time.monotonic() - started,
    )


def _looks(pool: ThreadPoolExecutor, domain: Domain) -> Iterator[tuple[int, Look]]:
    def look(i: int) -> Look:
        return _look_at_file(domain, i) if isinstance(domain, Images) else _look_at_item(domain, i)

    for start in range(0, len(domain), TOGETHER):
        at = range(start, min(start + TOGETHER, len(domain)))
        yield from zip(at, pool.map(look, at), strict=True)


def _look_at_file(images: Images, i: int) -> Look:
    """From the file itself, never from a cache: a cached image says nothing about its file."""
    sha = None
    try:
        content = contents(images.files[i])
        sha = hashlib.sha256(content).hexdigest()
        decoded_bytes(content, images.files[i])
    except BadImage as error:
        return Look(images.labels[i], sha, error.reason)
    return Look(images.labels[i], sha, None)


def _look_at_item(domain: Domain, i: int) -> Look:
    try:
        image, label = domain[i]
        pixels = image.convert("RGB")
        sha = hashlib.sha256(repr(pixels.size).encode() + pixels.tobytes()).hexdigest()
        return Look(int(label), sha, None)
    except Exception as error:  # the user's own code, which may raise anything
        return Look(None, None, f"{type(error).__name__}: {error}")


def _wrong_label(look: Look, classes: int) -> str | None:
    if look.label is None or 0 <= look.label < classes:
        return None
    return f"its label is {look.label}, outside 0 … {classes - 1}"


def _cells(counts: dict[str, tuple[int, ...]], classes: Sequence[str], wanted: int) -> Iterator[Cell]:
    for domain, numbers in counts.items():
        yield from (Cell(domain, name) for name, n in zip(classes, numbers, strict=True) if n == wanted)
