"""Whether decoded images are kept where nobody said so: `--cache auto`."""

from __future__ import annotations

import os
import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from dspreg.config.reading import Reading
from dspreg.data.base import DomainDataset
from dspreg.data.cache import DISK_LIMIT, GIGABYTE, Cache, Kind, cache_directory, kept_bytes, open_cache
from dspreg.data.decode import BadImage, image_size
from dspreg.data.images import Images
from dspreg.errors import DataError, Notice

IN_MEMORY = "images are small, or in memory"
SAMPLE = 64  # images whose size is looked at, spread over all


@dataclass(frozen=True)
class CacheChoice:
    """Attributes:
    kind: One of `none`, `disk` and `ram`.
    reason: In a few words, where it was chosen here.
    needed: Bytes of all images, where they were estimated.
    """

    kind: Kind
    reason: str = ""
    needed: int = 0


def choose_cache(kind: str, dataset: DomainDataset, size: int) -> CacheChoice:
    """What `auto` is for a data set here; any other kind is what it says.

    `disk` for image files that are not small, if all of them, decoded and resized, take no more than 20 GB and half of
    what is free on the cache's disk, and it can be written; `none` otherwise. Their size is estimated from 64 of them.

    Args:
        kind: `auto`, or another.
        dataset: All its domains count: each of them may be a source or a target.
        size: Height and width that images are resized to.
    """
    if kind != "auto":
        return CacheChoice(cast(Kind, kind))
    if dataset.small:  # asked first: it may make its images when a domain is opened
        return CacheChoice("none", IN_MEMORY)
    domains = [dataset.domain(name) for name in dataset.domains]
    files = [file for images in domains if isinstance(images, Images) for file in images.files]
    if not all(isinstance(images, Images) for images in domains):
        return CacheChoice("none", IN_MEMORY)
    needed = round(len(files) * (mean_decoded_bytes(files, dataset.reading) + dataset.reading.channels * size * size))
    directory = cache_directory()
    there = next(path for path in (directory.absolute(), *directory.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        return CacheChoice("none", f"{directory} can't be written")
    room = min(DISK_LIMIT, (shutil.disk_usage(there).free + kept_bytes(directory)) // 2)
    amount = f"about {needed / GIGABYTE:.1f} of at most {room / GIGABYTE:.1f} GB"
    return CacheChoice("disk" if needed <= room else "none", f"{amount} in {directory}", needed)


def open_chosen_cache(kind: str, dataset: DomainDataset, size: int) -> tuple[CacheChoice, Cache | None]:
    """What `choose_cache` chose, and opened. Where `auto` chose one that can't be used after all, there is none."""
    chosen = choose_cache(kind, dataset, size)
    try:
        return chosen, open_cache(chosen.kind)
    except DataError as error:
        if kind != "auto":
            raise
        warnings.warn(f"--cache auto is none here: {error}", Notice, stacklevel=3)
        return CacheChoice("none", str(error)), None


def mean_decoded_bytes(files: list[Path], reading: Reading) -> float:
    """Bytes of a decoded image, on average over some. What is no image does not count: reading it will say so."""
    sizes = []
    for file in files[:: max(1, len(files) // SAMPLE)]:
        try:
            width, height = image_size(file, reading)
        except BadImage:
            continue
        factor = max(1, min(width, height) // reading.shrink) if reading.shrink else 1
        sizes.append(reading.channels * (width // factor) * (height // factor))
    return sum(sizes) / len(sizes) if sizes else 0.0
