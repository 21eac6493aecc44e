"""Whether the images of several sites can say how well a model does on another one. Told before anything is trained."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dspreg.config.dataset_ref import DatasetRef
from dspreg.config.reading import OWN_READING
from dspreg.data import DomainDataset
from dspreg.data.base import labels_of
from dspreg.data.fingerprint import fingerprint
from dspreg.data.folders import check_name, images_below
from dspreg.data.images import Images
from dspreg.data.registry import open_dataset
from dspreg.data.verify import check_once
from dspreg.errors import ConfigError, DataError, Notice
from dspreg.io.text import join_few, path_name, plural
from dspreg.kinds import CLASSES

NEW = "new"  # what the files of `--new` call its only site


def open_sites(dataset: str, root: str | None = None, name: str | None = None) -> DomainDataset:
    """The data set, once it can answer: at least two sites, none of them with a single class.

    Raises:
        DataError: It can't.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)  # what follows says more about sites
        data = open_dataset(dataset, root, name)
    if data.tensors or data.kind != CLASSES:
        raise DataError(f"{data.name} is not of images of classes, which an estimate is for")
    if len(data.domains) < 2:
        raise DataError(
            f"{data.name} has one site, {data.domains[0]!r}. What a model does on a site that it has not seen can "
            f"only be found out by holding sites out: put the images of at least two, better four, into folders "
            f"site/class/image.jpg. For a model without an estimate: dspreg train --dataset {dataset} --target none"
        )
    if data.num_classes < 2:
        raise DataError(f"{data.name} has one class, {data.classes[0]!r}; there is nothing to tell apart")
    for site in data.domains:
        there = sorted(set(labels_of(data.domain(site))))
        if len(there) == 1:
            raise DataError(
                f"all images of the site {site!r} of {data.name} are of one class, {data.classes[there[0]]!r}: held "
                f"out it would say how often that class is guessed, and not how well the site is recognised. Add "
                f"images of other classes to it, or move the site elsewhere"
            )
    return data


def remarks(data: DomainDataset) -> list[str]:
    """What makes the answer worse, in sentences."""
    counts = {site: Counter(labels_of(data.domain(site))) for site in data.domains}
    found = []
    for label, name in enumerate(data.classes):
        places = [site for site, count in counts.items() if count[label]]
        if len(places) == 1:
            found.append(
                f"class {name!r} is at one site alone, {places[0]!r}: where that is held out nobody can know it, and "
                f"its {plural(counts[places[0]][label], 'image')} count as mistakes"
            )
    if shared := _at_several(data):
        many = f"{plural(len(shared), 'image')} {'is' if len(shared) == 1 else 'are'}"
        found.append(
            f"{many} at several sites, byte for byte, e.g. {shared[0]}: what was trained on is not unseen, and the "
            "estimate is too good"
        )
    few = [f"{site!r} ({plural(count.total(), 'image')})" for site, count in counts.items() if count.total() < 20]
    if few:
        found.append(f"sites with few images, where one more or less is five points or more: {join_few(few)}")
    return found


def _at_several(data: DomainDataset) -> list[str]:
    """Images that are at more than one site: of each its names."""
    places: dict[str, dict[str, str]] = {}
    for site in data.domains:
        images = data.domain(site)
        if isinstance(images, Images):
            for name, sha in zip(images.names, images.hashes, strict=True):
                places.setdefault(sha, {}).setdefault(site, name)
    return [" = ".join(by_site.values()) for by_site in places.values() if len(by_site) > 1]


def fingerprints(data: DomainDataset, on_read: Callable[[], None] = lambda: None) -> dict[str, str]:
    """Of every site; reads all files."""
    return {site: fingerprint(data.domain(site), on_read) for site in data.domains}


def check_images(data: DomainDataset, prints: dict[str, str], progress: Callable[[int, int], None] | None) -> None:
    """Decode every file once.

    Raises:
        DataError: Some can't be decoded.
    """
    if all(isinstance(data.domain(site), Images) for site in data.domains):
        check_once(data, prints.values(), progress)


def typical_side(data: DomainDataset, looked_at: int = 40) -> int:
    """Median of the shorter sides of a few images, from all sites."""
    sides = []
    each = max(1, looked_at // len(data.domains))
    for site in data.domains:
        images = data.domain(site)
        sides += [min(images[i][0].size) for i in spaced(len(images), each)]
    return int(sorted(sides)[len(sides) // 2])


def spaced(length: int, most: int) -> list[int]:
    """Positions of so many, evenly through a sequence."""
    most = min(length, most)
    return [round(i * (length - 1) / max(1, most - 1)) for i in range(most)]


def new_site(given: str) -> Images:
    """The images of `--new folder:PATH`, at any depth; labels are not looked for."""
    ref = DatasetRef.parse(given)
    if ref.kind != "folder":
        hint = f" Write folder:{given}" if Path(given).is_dir() else ""
        raise ConfigError(f"--new {given!r}: wanted folder:PATH, a folder with the images of one new site.{hint}")
    folder = Path(ref.target)
    if not folder.is_dir():
        raise DataError(f"--new {given}: {folder} {'is not a folder' if folder.exists() else 'does not exist'}")
    found = images_below(folder, OWN_READING.kinds)
    if not found.images:
        raise DataError(f"--new {given}: there is no image below {folder}")
    names = [path.relative_to(folder).as_posix() for path in found.images]
    for each in names:
        check_name(each)
    return Images(found.images, names, [0] * len(names), ("",), reading=OWN_READING)


def new_site_name(given: str) -> str:
    """What `--new` is called in the answer: the last part of its path, and not where it lies."""
    return path_name(DatasetRef.parse(given).target)


def refuse_the_same(new: Images, data: DomainDataset) -> list[str]:
    """Images of the new site that are at a known one, too, byte for byte; nothing said about them is of a new site."""
    known: set[str] = set()
    for site in data.domains:
        images: Sequence[Any] = data.domain(site)
        if isinstance(images, Images):
            known |= set(images.hashes)
    return [name for name, sha in zip(new.names, new.hashes, strict=True) if sha in known]
