"""What the trained models say about images: of the sites that they never saw, of their own, and of a new one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dspreg.data import DomainDataset
from dspreg.data.images import Images
from dspreg.data.loader import DomainSplit, SequentialBatches
from dspreg.data.transforms import Transform
from dspreg.errors import DataError, IntegrityError
from dspreg.forecast.label_free import FeatureStatistics
from dspreg.inference.load import load, require_images
from dspreg.inference.seen_images import split_source
from dspreg.io.atomic_files import canonical_json, holds_file, read_regular_file, sha256, write
from dspreg.protocol.description import RunDescription
from dspreg.runs.folder import RunFolder
from dspreg.sites.check import NEW
from dspreg.training.evaluate import predictions
from dspreg.training.model import Model
from dspreg.training.serialization import pack, unpack

FORMAT = "dspreg.site-predictions/1"
WHICH = "last"  # the model that is judged: that of the last step, as of the final training, which validates on nothing
BATCH = 64


@dataclass(frozen=True)
class SitePredictions:
    """Of one model on the images of one site.

    Attributes:
        site: Its name.
        positions: Of the images in the site.
        labels: Their classes; of a new site nothing is known, and they are 0.
        logits: (N, C), float64.
        features: What the classifier saw of them.
    """

    site: str
    positions: NDArray[Any]
    labels: NDArray[Any]
    logits: NDArray[Any]
    features: FeatureStatistics

    @property
    def predicted(self) -> NDArray[Any]:
        return np.asarray(self.logits.argmax(1))

    @property
    def right(self) -> NDArray[Any]:
        return np.asarray(self.predicted == self.labels)

    @property
    def accuracy(self) -> float:
        return float(self.right.mean())


@dataclass(frozen=True)
class RunPredictions:
    """Of one run: on the sites it was not shown, whole; and on the images of its own sites that were held out."""

    unseen: Mapping[str, SitePredictions]
    sources: Mapping[str, SitePredictions]

    @property
    def source_features(self) -> FeatureStatistics:
        """Of all sources together, each image counting as much."""
        parts = [each.features for each in self.sources.values()]
        n = sum(each.images for each in parts)
        mean = sum((each.images / n * each.mean for each in parts), np.zeros_like(parts[0].mean))
        variance = sum(
            (each.images / n * (each.variance + (each.mean - mean) ** 2) for each in parts), np.zeros_like(mean)
        )
        return FeatureStatistics(n, mean, variance)

    def validation(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Logits and labels of the sources' held-out images."""
        parts = list(self.sources.values())
        return np.concatenate([each.logits for each in parts]), np.concatenate([each.labels for each in parts])


def score_run(
    folder: RunFolder,
    data: DomainDataset,
    kept: Path,
    *,
    device: str = "cpu",
    trust: Sequence[str] = (),
    pause: Callable[[], None] = lambda: None,
) -> RunPredictions:
    """What a finished run says about all its sites; computed once and kept in a file.

    Args:
        folder: The run.
        data: Its data set.
        kept: The file.
        device: Where the model runs.
        trust: Modules of methods of the user's own.
        pause: Called between batches; may raise.
    """
    trained, result = RunDescription.from_json(folder.description()), folder.result()
    assert result is not None
    made_of = sha256(canonical_json([result["files"][f"{WHICH}.safetensors"], WHICH]).encode())
    if (found := _read(kept, made_of)) is not None:
        return found
    model, loaded = load(folder.path, WHICH, device, trust=trust)
    transform = require_images(model, loaded, folder.path, "an estimate")
    data.read_as(transform.reading)
    targets = trained.config.targets
    parts = {}
    for site in data.domains:
        images = data.domain(site)
        held_out = list(range(len(images))) if site in targets else split_source(trained, images, site)[1]
        if held_out:
            parts[site] = DomainSplit(site, images, held_out, transform)
    scored = score_sites(model, list(parts.values()), device=device, pause=pause)
    made = RunPredictions(
        {site: each for site, each in zip(parts, scored, strict=True) if site in targets},
        {site: each for site, each in zip(parts, scored, strict=True) if site not in targets},
    )
    write(kept, _pack(made, made_of))
    return made


def score_new_site(
    folder: RunFolder, images: Images, *, device: str = "cpu", trust: Sequence[str] = (),
    pause: Callable[[], None] = lambda: None,
) -> SitePredictions:  # fmt: skip
    """What the model of a run says about images without labels."""
    model, loaded = load(folder.path, WHICH, device, trust=trust)
    transform = require_images(model, loaded, folder.path, "an estimate")
    images.reading = transform.reading
    (found,) = score_sites(model, [new_part(images, transform)], device=device, pause=pause)
    return found


def new_part(images: Images, transform: Transform) -> DomainSplit:
    return DomainSplit(NEW, images, list(range(len(images))), transform)


def score_sites(
    model: Model, parts: Sequence[DomainSplit], *, device: str, pause: Callable[[], None] = lambda: None
) -> list[SitePredictions]:
    """Logits of all images of these parts, and the statistics of their features."""
    logits: list[list[Tensor]] = [[] for _ in parts]
    labels: list[list[Tensor]] = [[] for _ in parts]
    features = [_Moments() for _ in parts]
    batches = SequentialBatches(parts, BATCH)
    with features_of(model) as seen, closing(predictions(model.algorithm, batches, device=device)) as predicted:
        for p, found, y in predicted:
            if not bool(found.isfinite().all()):
                raise DataError(f"the model's outputs for images of {parts[p].domain!r} are not finite")
            logits[p].append(found.cpu().double())
            labels[p].append(y.cpu())
            features[p].add(seen[-1] if seen else found)
            seen.clear()
            pause()
    return [
        SitePredictions(
            part.domain, np.asarray(part.positions), torch.cat(y).numpy(), torch.cat(x).numpy(), f.statistics()
        )
        for part, x, y, f in zip(parts, logits, labels, features, strict=True)
    ]


@contextmanager
def features_of(model: Model) -> Iterator[list[Tensor]]:
    """What the featurizer gives, appended at every pass; nothing for a network without one, whose logits then count."""
    seen: list[Tensor] = []
    featurizer = getattr(model.algorithm.net, "featurizer", None)
    if not isinstance(featurizer, nn.Module):
        yield seen
        return

    def keep(_module: nn.Module, _inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            seen.append(output.detach().flatten(1))

    handle = featurizer.register_forward_hook(keep)
    try:
        yield seen
    finally:
        handle.remove()


class _Moments:
    """Sums over images, in double precision, about the mean of the first batch."""

    def __init__(self) -> None:
        self.images = 0
        self.start = self.total = self.squares = np.zeros(0)

    def add(self, features: Tensor) -> None:
        x = features.detach().cpu().double().numpy()
        if not self.images:
            self.start = x.mean(0)
            self.total = self.squares = np.zeros_like(self.start)
        off = x - self.start
        self.images += len(x)
        self.total = self.total + off.sum(0)
        self.squares = self.squares + (off**2).sum(0)

    def statistics(self) -> FeatureStatistics:
        mean = self.total / self.images
        return FeatureStatistics(self.images, self.start + mean, np.maximum(0.0, self.squares / self.images - mean**2))


# The file.


def _pack(made: RunPredictions, made_of: str) -> bytes:
    state = {
        kind: [
            {
                "site": each.site,
                **{
                    name: torch.from_numpy(np.ascontiguousarray(getattr(each, name)))
                    for name in ("positions", "labels")
                },
                "logits": torch.from_numpy(np.ascontiguousarray(each.logits)),
                "mean": torch.from_numpy(np.ascontiguousarray(each.features.mean)),
                "variance": torch.from_numpy(np.ascontiguousarray(each.features.variance)),
            }
            for each in getattr(made, kind).values()
        ]
        for kind in ("unseen", "sources")
    }
    return pack(state, format=FORMAT, made_of=made_of)


def _read(path: Path, made_of: str) -> RunPredictions | None:
    """None where there is no such file, or one of another run: it is made again."""
    if not holds_file(path):
        return None
    try:
        state, about = unpack(read_regular_file(path), str(path))
        if about.get("format") != FORMAT or about.get("made_of") != made_of:
            return None
        return RunPredictions(*({each["site"]: _site(each) for each in state[kind]} for kind in ("unseen", "sources")))
    except (IntegrityError, KeyError, TypeError, AttributeError):
        return None


def _site(each: Mapping[str, Any]) -> SitePredictions:
    logits = each["logits"].numpy()
    features = FeatureStatistics(len(logits), each["mean"].numpy(), each["variance"].numpy())
    return SitePredictions(each["site"], each["positions"].numpy(), each["labels"].numpy(), logits, features)
