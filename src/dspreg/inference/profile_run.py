"""A profile from names: of a network or a run, on a data set. What `dspreg measure` shows."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dspreg import __version__
from dspreg.algorithms.measure import metering
from dspreg.batches import Batch
from dspreg.data import DomainDataset
from dspreg.data.fingerprint import fingerprint
from dspreg.data.loading import Measured, Part, told
from dspreg.data.named import dataset_named
from dspreg.data.sampling import some
from dspreg.data.transforms import Transform
from dspreg.data.unlabelled import Unlabelled, without_classes
from dspreg.errors import ConfigError, DataError, Notice, ResourceError
from dspreg.inference.evaluate_run import Trained, columns, data_of
from dspreg.inference.load import load, step_of
from dspreg.networks.full_network import make_full_network
from dspreg.randomness import Key
from dspreg.runs.folder import RunFolder
from dspreg.sensitivity.measure import build_profile, measure, progress_bar
from dspreg.sensitivity.profile import Profile, tensors_of
from dspreg.sensitivity.samples import Samples
from dspreg.vectors import matching_names, trainable

IMAGES = 512  # per domain: from there on c is reliable to 0.8 on real images (docs/understand/engines.md)
MANY = 100  # outputs
Reading = Callable[[int, int], None]  # told how many images were read, of how many


@dataclass(frozen=True, kw_only=True)
class Plan:
    """On which images, and how. Options of `measure` that are left out are its defaults."""

    dataset: str | None = None  # as in `--dataset`; None for a run's own
    root: str | None = None
    name: str | None = None
    domains: Sequence[str] = ()  # all, of a run its sources, if there are none
    images: int = IMAGES  # per domain at most, drawn without replacement
    batch: int = 32
    of: str = "loss"
    estimator: str = "persample"
    draws: int | None = None
    eps: float = 0.0
    only: Sequence[str] = ()
    exclude: Sequence[str] = ()
    null: bool = True
    layer: str | None = None  # that must be among the measured ones, said before anything is measured
    mean: Sequence[float] | None = None  # of the images a network wants, per channel; None: what is known of it
    std: Sequence[float] | None = None
    seed: int = 0  # of images, signs, drawn labels, pseudo-domains, and of what is new in a network
    device: str = "cpu"
    workers: int | None = None
    progress: bool = False  # a bar while measuring
    reading: Reading = lambda _done, _total: None

    @property
    def meter(self) -> dict[str, Any]:
        """The options of a `Meter`."""
        chosen = {"only": list(self.only) or None, "exclude": list(self.exclude) or None}
        return {"of": self.of, "estimator": self.estimator, "draws": self.draws, **chosen}


def profile_network(model: str, plan: Plan, *, weights: str = "default", image_size: int | None = None) -> Profile:
    """Measure a network of a name, as in `make_full_network`, on a data set.

    The profile's settings say, under "about", what was measured on which images.
    """
    if plan.dataset is None:
        raise ConfigError("on which images? Add --dataset NAME, folder:PATH or index:FILE")
    data = dataset_for(plan, plan.dataset)
    chosen = _domains(data, plan.domains, data.domains)
    size = image_size or data.image_size
    whole = make_full_network(
        model, weights=weights, image_size=size, classes=data.num_classes or None, labels=plan.of == "loss",
        key=plan.seed,
    )  # fmt: skip
    shown = Transform(size, tuple(plan.mean or whole.mean), tuple(plan.std or whole.std))
    parts = [Part(name, images := data.domain(name), range(len(images)), shown) for name in chosen]
    net = whole.net.to(plan.device)
    _look(net, plan, whole.outputs)
    with _guarded(), _read(parts, (data.name, plan.seed), 0, plan, data.small) as batches:
        loaders = {name: _pairs(each, labels=bool(data.classes)) for name, each in batches.items()}
        profile = measure(
            net, loaders, **plan.meter, eps=plan.eps, null=plan.null, key=plan.seed, progress=plan.progress
        )
    about = {"model": model, "weights": asdict(whole.weights), "head": whole.head, "outputs": whole.outputs}
    return _with(profile, plan, about | _shown(shown), data, {part.domain: "all" for part in parts}, parts)


def profile_run(run: str | Path, plan: Plan, *, which: str = "selected") -> Profile:
    """Measure what a finished run predicts with, by the names that its own profiles have.

    On its own data set: on the images it was trained on, as a refresh in training would at that step. On another data
    set, or a domain it was not trained on: on all images; classes are matched by name.
    """
    folder = RunFolder(run)
    model, transform = load(run, which, plan.device)
    _look(model.algorithm.net, plan, len(model.classes))
    described, step = folder.description(), step_of(folder.result() or {}, which)
    trained = Trained(described)
    data = data_of(described, None, plan.root, plan.name) if plan.dataset is None else dataset_for(plan, plan.dataset)
    own = [name for name in data.domains if name in trained.sources] if plan.dataset is None else list(data.domains)
    chosen = _domains(data, plan.domains, own)
    parts, kinds = [], {}
    for name in chosen:
        images = data.domain(name)
        source = trained.source_like(fingerprint(images)) if data.classes else None
        positions = range(len(images)) if source is None else trained.split(images, source)[0]
        parts.append(Part(name, images, positions, transform))
        kinds[name] = "all" if source is None else "in"
    s = trained.settings
    key: tuple[Key, ...] = (s.dataset, s.targets, s.trial, s.draw)  # as in training
    if plan.seed or plan.dataset is not None:
        key = (*key, "measure", data.name, plan.seed)
    matched = data.classes and plan.of == "loss"  # others need no labels, and classes may be anybody's
    to_model = columns(data, parts, model.classes).to(plan.device) if matched else None
    with (
        _guarded(),
        _read(parts, key, step + 1, plan, data.small) as batches,
        metering(model.algorithm, (*key, step + 1), **plan.meter) as (meter, f),
        progress_bar(plan.progress) as walk,
    ):
        domains = {
            name: (Samples(b.x, None if to_model is None else to_model[b.y]) for b in each)
            for name, each in batches.items()
        }
        profile = build_profile(meter, f, domains, eps=plan.eps, null=plan.null, walk=walk)
    about = {"model": s.model, "run": described["id"], "which": which, "step": step, "algorithm": s.algorithm}
    return _with(profile, plan, about | _shown(transform), data, kinds, parts)


def dataset_for(plan: Plan, text: str) -> DomainDataset:
    """The data set; folders without classes are one, too, where no labels are needed."""
    kind, _, path = text.partition(":")
    loose = without_classes(path) if kind == "folder" and path else None
    if loose is None:
        return dataset_named(text, plan.root, plan.name)
    if plan.of == "loss":
        raise DataError(
            f"{path} has no folders of classes: {loose} lies directly in its domain. The loss needs labels. Use "
            "--of output or --of fisher, which need none, or arrange the images as ROOT/domain/class/image.jpg"
        )
    return Unlabelled(path, plan.name)


def _domains(data: DomainDataset, asked: Sequence[str], otherwise: Iterable[str]) -> list[str]:
    """The domains to compare, in the data set's own order."""
    for name in asked:
        data.check_domain(name)
    chosen = [name for name in data.domains if name in (asked or otherwise)]
    if len(chosen) < 2:
        found = ", ".join(chosen) or "none"
        there = f"{data.name} has {', '.join(data.domains)}"
        if len(data.domains) < 2:
            raise DataError(f"c compares domains, and {there} alone. Give images of at least two")
        raise ConfigError(
            f"c compares domains, so two or more are wanted; chosen: {found}. {there}: name them --domain"
        )
    return chosen


def _look(net: nn.Module, plan: Plan, outputs: int | None) -> None:
    """What is wrong, or slow, is said before images are read."""
    names = matching_names(trainable(net), list(plan.only) or None, list(plan.exclude) or None)
    if plan.layer is not None:
        tensors_of(plan.layer, names)
    if plan.of == "output" and plan.estimator == "persample" and (outputs or 0) > MANY:
        warnings.warn(
            f"--of output takes a backward pass for each of {outputs:,} outputs; --of fisher takes one, and needs no "
            "labels either",
            Notice,
            stacklevel=3,
        )


@contextmanager
def _read(
    parts: Sequence[Part], key: tuple[Key, ...], t: int, plan: Plan, small: bool
) -> Iterator[Mapping[str, Iterable[Batch]]]:
    """Keyed batches of every domain: read at once where a floor needs them all, while they are measured otherwise."""
    workers = plan.workers if plan.workers is not None else (0 if small else min(4, os.cpu_count() or 1))
    source = Measured(parts, key, plan.device, workers)
    order = [
        [(d, each) for each in some(len(p), plan.images, plan.batch, *key, t, p.domain)] for d, p in enumerate(parts)
    ]
    if not plan.null:
        yield {part.domain: source.batches(each) for part, each in zip(parts, order, strict=True)}
        return
    total, done = sum(len(chosen) for each in order for _, chosen in each), 0
    kept: dict[str, list[Batch]] = {part.domain: [] for part in parts}
    for batch in source.batches([one for each in order for one in each]):
        kept[parts[batch.domain].domain].append(batch)
        done += len(batch.y)
        plan.reading(done, total)
    yield kept


def _pairs(batches: Iterable[Batch], *, labels: bool) -> Iterator[Any]:
    return ((batch.x, batch.y) if labels else batch.x for batch in batches)


def _shown(transform: Transform) -> dict[str, Any]:
    return {"image_size": transform.size, "mean": list(transform.mean), "std": list(transform.std)}


def _with(
    profile: Profile,
    plan: Plan,
    about: dict[str, Any],
    data: DomainDataset,
    kinds: Mapping[str, str],
    parts: Sequence[Part],
) -> Profile:
    """The profile, and beside its settings what was measured: names and numbers, no paths."""
    domains = {part.domain: {"part": kinds[part.domain], "images": len(part)} for part in parts}
    about = about | {"data": data.name, "domains": domains, "batch": plan.batch, "seed": plan.seed}
    about |= {"dspreg": __version__, "torch": torch.__version__}
    return replace(profile, settings={**profile.settings, "about": about})


@contextmanager
def _guarded() -> Iterator[None]:
    """What goes wrong in reading and for want of memory, in our words."""
    try:
        with told():
            yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise ResourceError(_SMALLER) from error
    except RuntimeError as error:
        if "can't allocate memory" not in str(error):
            raise
        raise ResourceError(_SMALLER) from error


_SMALLER = "not enough memory; fewer --images, a smaller --batch or --image-size, or --no-null need less"
