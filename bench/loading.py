"""What it costs to bring one image from its file to the network, against DomainBed's loaders.

    DSPREG_ROOT=data python bench/loading.py --domainbed DIR

CPU time of one process on one core, everything from the file to normalised floats in a batch; sides alternate, medians
of rounds. The peer is DomainBed's own data set and loaders, of the checkout DIR; without --domainbed, torchvision's
transforms as DomainBed has them, in torch's DataLoader. PACS, or made JPEGs of 227 × 227 pixels without DSPREG_ROOT.

Ours, three times: decoded each time, and from a cache on disk and in memory, which hold originals for training and
resized images for evaluation, and nothing random. "before" is torchvision's augmentation within our loader.

--photos N: instead, training images from N photographs of 12 megapixels, decoded whole, decoded shrunk, shrunk from a
cache, and from files that were shrunk beforehand.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from clock import Timing, alternate
from PIL import Image
from rich.console import Console
from rich.table import Table
from torchvision import transforms
from torchvision.datasets import ImageFolder

import dspreg
from dspreg.config.reading import KEPT, OWN_READING, Reading
from dspreg.data import Cache, Folder, Images
from dspreg.data.loader import DomainSplit, SequentialBatches, TrainingSteps
from dspreg.data.transforms import Transform

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIZE, BATCH, EVALUATION_BATCH = 224, 32, 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--domainbed", type=Path, metavar="DIR", help="a checkout of DomainBed")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--images", type=int, default=192, help="a round and side (default: 192)")
    parser.add_argument("--photos", type=int, default=0, metavar="N", help="photographs of 12 megapixels instead")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", dspreg.Notice)
    console = Console(width=110)
    with tempfile.TemporaryDirectory() as scratch, shared_memory() as memory:
        if options.photos:
            found = alternate(photo_sides(Path(scratch), options.photos), options.rounds)
            table = Table("photographs of 12 megapixels", "ms per image", "of whole", "95 %", "rounds", "faster")
            for name, timing in found.items():
                milliseconds = f"{1e3 * float(np.median(timing.seconds)) / options.photos:.1f}"
                table.add_row(name, milliseconds, *cells(timing, options.photos)[1:])
            console.print(table)
            return
        root = find_images(Path(scratch))
        caches = {
            "decoded each time": None,
            "cache on disk": Cache(Path(scratch, "cache"), 10**10),
            "cache in memory": Cache(memory, 10**10) if memory else None,
        }
        if memory is None:
            del caches["cache in memory"]
        peer = "DomainBed" if options.domainbed else "torchvision"
        for title, sides in (
            ("training, augmented", training_sides(root, caches, options)),
            ("evaluation, plain", evaluation_sides(root, caches, options)),
        ):
            table = Table("loader", "µs per image", "of the peer", "95 %", "rounds", "faster", title=title)
            found = alternate({peer: sides.pop("peer"), **sides}, options.rounds)
            for name, timing in found.items():
                table.add_row(name, *cells(timing, options.images))
            console.print(table)


def cells(timing: Timing, images: int) -> list[str]:
    _, *others = timing.cells
    return [f"{1e6 * float(np.median(timing.seconds)) / images:.0f}", *others, f"{1 / np.median(timing.ratios):.2f}×"]


def find_images(scratch: Path) -> Path:
    """The folder of PACS, or one like it with made images."""
    if found := os.environ.get("DSPREG_ROOT"):
        return Path(found, "PACS")
    rng = np.random.default_rng(0)
    for domain in ("a", "b", "c", "d"):
        for label in ("x", "y"):
            folder = scratch / "made" / domain / label
            folder.mkdir(parents=True)
            for n in range(48):
                coarse = Image.fromarray(rng.integers(0, 256, (20, 20, 3), np.uint8))
                picture = np.asarray(coarse.resize((227, 227), Image.Resampling.BICUBIC)).astype(int)
                noisy = (picture + rng.normal(0, 8, picture.shape)).clip(0, 255).astype(np.uint8)
                Image.fromarray(noisy).save(folder / f"{n}.jpg", quality=90)
    return scratch / "made"


@contextmanager
def shared_memory() -> Iterator[Path | None]:
    """A folder in memory, if there is one."""
    if not os.access("/dev/shm", os.W_OK):
        yield None
        return
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def chosen_positions(count: int, wanted: int) -> list[int]:
    """The same images for all sides, spread over the domain."""
    return np.linspace(0, count - 1, wanted).astype(int).tolist()


Side = Callable[[], object]


def photo_sides(scratch: Path, count: int) -> dict[str, Side]:
    """Each photograph once, augmented, as a training reads it."""
    rng = np.random.default_rng(0)
    for n in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (60, 80, 3), np.uint8))
        photo = np.asarray(coarse.resize((4000, 3000), Image.Resampling.BICUBIC)).astype(np.int16)
        photo += rng.integers(-12, 13, photo.shape, np.int16)
        for kind in ("large", "small"):
            (scratch / kind).mkdir(exist_ok=True)
        picture = Image.fromarray(photo.clip(0, 255).astype(np.uint8))
        picture.save(scratch / "large" / f"{n}.jpg", quality=90)
        picture.resize((341, 256), Image.Resampling.BOX).save(scratch / "small" / f"{n}.jpg", quality=90)

    def ours(kind: str, reading: Reading, cache: Cache | None = None) -> Side:
        files = sorted((scratch / kind).iterdir())
        images = Images(files, [f.name for f in files], [0] * count, ("c",), cache, reading)
        images.take_hashes()
        shown = Transform(SIZE, MEAN, STD, "domainbed", reading=reading)
        part = DomainSplit("d", images, range(count), shown)
        if cache is not None:
            [images.image(i) for i in range(count)]
        return lambda: shown.normalise(part.batch(range(count), "bench")[0])

    whole, shrunk = OWN_READING, replace(OWN_READING, shrink=KEPT * SIZE)
    return {
        "decoded whole": ours("large", whole),
        "decoded shrunk (--shrink)": ours("large", shrunk),
        "shrunk, from the cache": ours("large", shrunk, Cache(scratch / "cache", 10**10)),
        "files of 256 pixels": ours("small", whole),
    }


def training_sides(root: Path, caches: dict[str, Cache | None], options: Any) -> dict[str, Side]:
    data, per_domain = Folder(root), options.images // 3
    steps = per_domain // BATCH
    sources = data.domains[:3]

    def ours(cache: Cache | None) -> Side:
        shown, parts = Transform(SIZE, MEAN, STD, augment="domainbed"), []
        for name in sources:
            images = data.domain(name).select(chosen_positions(len(data.domain(name)), per_domain))
            images.cache = cache
            images.take_hashes()
            parts.append(DomainSplit(name, images, range(per_domain), shown))
            if cache is not None:
                [images.image(i) for i in range(per_domain)]
        batches = TrainingSteps(parts, BATCH, ("bench",))

        def load() -> None:
            for t in range(steps):
                for x, _ in batches[t]:
                    shown.normalise(x)

        return load

    def before() -> None:
        with mock.patch("dspreg.data.augmentation.agrees_with_pillow", return_value=False):
            plain()

    plain = ours(None)
    loaders = peer_loaders(root, options, per_domain, augment=True)

    def peer() -> None:
        iterators = [iter(each) for each in loaders]
        for _ in range(steps):
            [next(each) for each in iterators]

    return {"peer": peer, "ours before": before, **{f"ours, {name}": ours(cache) for name, cache in caches.items()}}


def evaluation_sides(root: Path, caches: dict[str, Cache | None], options: Any) -> dict[str, Side]:
    data = Folder(root)
    name = data.domains[-1]

    def ours(cache: Cache | None) -> Side:
        shown = Transform(SIZE, MEAN, STD)
        images = data.domain(name).select(chosen_positions(len(data.domain(name)), options.images))
        images.cache = cache
        images.take_hashes()
        batches = SequentialBatches([DomainSplit(name, images, range(options.images), shown)], EVALUATION_BATCH)

        def load() -> None:
            for which in batches.order():
                shown.normalise(batches[which][0])

        return load

    (loader,) = peer_loaders(root, options, options.images, augment=False)

    def peer() -> None:
        for _ in loader:
            pass

    return {"peer": peer, **{f"ours, {name}": ours(cache) for name, cache in caches.items()}}


def peer_loaders(root: Path, options: Any, count: int, *, augment: bool) -> list[Any]:
    """Of three sources, with replacement and without end; or of the last domain, once through."""
    if options.domainbed is None:
        datasets, infinite, fast = by_torchvision(root, augment), torch_infinite, torch_once
    else:
        datasets, infinite, fast = by_domainbed(options.domainbed, root, augment)
    parts = [torch.utils.data.Subset(each, chosen_positions(len(each), count)) for each in datasets]
    return [infinite(part) for part in parts[:3]] if augment else [fast(parts[-1])]


def by_torchvision(root: Path, augment: bool) -> list[Any]:
    last = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    plain = transforms.Compose([transforms.Resize((SIZE, SIZE)), *last])
    changed = transforms.Compose(
        [
            transforms.RandomResizedCrop(SIZE, scale=(0.7, 1.0)),
            transforms.RandomHorizontalFlip(),
            transforms.ColorJitter(0.3, 0.3, 0.3, 0.3),
            transforms.RandomGrayscale(),
            *last,
        ]
    )
    return [ImageFolder(folder, changed if augment else plain) for folder in sorted(root.iterdir()) if folder.is_dir()]


def torch_infinite(dataset: Any) -> Any:
    chosen = torch.utils.data.RandomSampler(dataset, replacement=True)
    return torch.utils.data.DataLoader(dataset, BATCH, sampler=chosen, drop_last=True)


def torch_once(dataset: Any) -> Any:
    return torch.utils.data.DataLoader(dataset, EVALUATION_BATCH)


def by_domainbed(checkout: Path, root: Path, augment: bool) -> tuple[list[Any], Any, Any]:
    """DomainBed's data sets and loaders, in this process: CPU time of theirs is then the CPU time of all of it."""
    sys.path.insert(0, str(checkout))
    for name in ("wilds", "wilds.datasets", "wilds.datasets.camelyon17_dataset", "wilds.datasets.fmow_dataset"):
        sys.modules.setdefault(name, types.ModuleType(name))  # of data sets that are not loaded here
    sys.modules["wilds.datasets.camelyon17_dataset"].Camelyon17Dataset = None  # type: ignore[attr-defined]
    sys.modules["wilds.datasets.fmow_dataset"].FMoWDataset = None  # type: ignore[attr-defined]
    from domainbed.datasets import MultipleEnvironmentImageFolder
    from domainbed.lib.fast_data_loader import FastDataLoader, InfiniteDataLoader

    found = MultipleEnvironmentImageFolder(str(root), [] if augment else [len(Folder(root).domains) - 1], augment, {})
    return (
        found.datasets,
        lambda part: InfiniteDataLoader(part, None, BATCH, 0),
        lambda part: FastDataLoader(part, EVALUATION_BATCH, 0),
    )


if __name__ == "__main__":
    main()
