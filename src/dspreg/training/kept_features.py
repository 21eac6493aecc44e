"""Features of a frozen backbone, computed once per image: for a linear probe, whose steps then take no time.

They are computed domain by domain in the order of its files, in batches of the evaluation's size and in float32, so
that they depend on no split, trial or method. They are those of the network up to rounding, as batches of other sizes
round otherwise; a run that is resumed computes the same bits again, or finds them in the user's cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from dspreg.algorithms.base import Algorithm
from dspreg.algorithms.compatibility import reads_images
from dspreg.config.train_config import Execution, TrainConfig
from dspreg.data.loader import XY, DomainSplit, SequentialBatches
from dspreg.data.readers import ReaderPool, iterate_batches
from dspreg.devices import send
from dspreg.errors import IntegrityError, ResourceError
from dspreg.io.atomic_files import canonical_json, make_folder, read_regular_file, remove, sha256, write
from dspreg.io.user_cache import user_cache
from dspreg.networks.network import Featurizer
from dspreg.networks.pretrained import Backbone
from dspreg.precision import full_precision
from dspreg.sensitivity.evaluation_mode import evaluation_mode
from dspreg.training.serialization import pack, unpack

FORMAT = "dspreg.features/1"
LARGEST = 5_000_000_000  # bytes of the user's cache; what was written first goes


def why_not_kept(config: TrainConfig, execution: Execution, layers: list[Algorithm]) -> str | None:
    """Why images pass through a frozen backbone at every step; None if their features are computed once, or it is not
    frozen.
    """
    if config.train != "head":
        return None
    if config.augment != "none" or config.augment_validation:
        return "images are augmented, and so have other features each time; --augment no is the default"
    if execution.compile:
        return "--compile is on"
    reading = [type(layer).__name__ for layer in layers if reads_images(layer)]
    return f"{reading[0]} works on images or within the backbone" if reading else None


def compute_features(
    part: DomainSplit,
    featurizer: Featurizer,
    size: int,
    device: str,
    workers: int | ReaderPool,
    pause: Callable[[], None] = lambda: None,
    on_wait: Callable[[], None] = lambda: None,
) -> XY:
    """Features (N, width) and labels (N,) of all images of a part, on the CPU.

    Args:
        part: Not augmented.
        featurizer: On the device.
        size: Images per batch.
        device: Of the featurizer.
        workers: Processes that read images, or the pool of them.
        pause: Called between batches; may raise to stop early.
        on_wait: Called while images are waited for; may raise as well.
    """
    batches = SequentialBatches([part], size)
    rows, labels = [], []
    with (
        evaluation_mode(featurizer),
        torch.no_grad(),
        full_precision(torch.device(device).type),
        closing(iterate_batches(batches, batches.order(), workers, on_wait)) as read,
    ):
        for x, y in read:
            rows.append(featurizer.undropped(part.transform.normalise(send(x, device))).cpu())
            labels.append(y)
            pause()
    return torch.cat(rows), torch.cat(labels)


class FeatureCache:
    """Features on the disk, in the user's cache: for the next run with the same backbone, images and environment.

    Args:
        backbone: With weights of a file or of the hub; those from scratch are of one run alone.
        about: What else their bits depend on.
    """

    def __init__(self, backbone: Backbone, **about: Any) -> None:
        self.about = {"weights": asdict(backbone.weights), "mean": backbone.mean, "std": backbone.std, **about}
        self.folder = user_cache("features")

    def _start(self, fingerprint: str) -> str:
        return sha256(canonical_json({"images": fingerprint, **self.about}).encode())

    def find(self, fingerprint: str) -> XY | None:
        """Of a domain; None if they are not there, or damaged."""
        for path in self.folder.glob(f"{self._start(fingerprint)}-*.safetensors"):
            with suppress(OSError, IntegrityError, KeyError, TypeError):
                data = read_regular_file(path)
                if path.stem.endswith(sha256(data)):
                    saved, about = unpack(data, str(path))
                    if about.get("format") == FORMAT:
                        return saved["x"], saved["y"]
        return None

    def keep(self, fingerprint: str, made: XY) -> None:
        """Write them, where the disk has room."""
        data = pack({"x": made[0], "y": made[1]}, format=FORMAT)
        with suppress(OSError, IntegrityError, ResourceError):
            make_folder(self.folder)
            write(self.folder / f"{self._start(fingerprint)}-{sha256(data)}.safetensors", data)
            for path in self._too_many():
                remove(path)

    def _too_many(self) -> Iterator[Path]:
        found = sorted((path.stat().st_mtime, path.stat().st_size, path) for path in self.folder.glob("*.safetensors"))
        total = sum(size for _, size, _ in found)
        for _, size, path in found[:-1]:
            if total > LARGEST:
                total -= size
                yield path
