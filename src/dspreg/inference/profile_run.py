"""A profile from names: of a network or a run, on a data set. What `dspreg measure` shows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dspreg import __version__
from dspreg.algorithms.measure import metering
from dspreg.algorithms.weight_average import WeightAverage
from dspreg.batches import Batch
from dspreg.config.dataset_ref import DatasetRef
from dspreg.config.measure_config import MeasureConfig
from dspreg.config.reading import Reading
from dspreg.data import DomainDataset
from dspreg.data.loader import DomainSplit, MeasureSampler, reader_processes
from dspreg.data.registry import open_dataset
from dspreg.data.sampling import draw_batches
from dspreg.data.transforms import Transform, Unchanged
from dspreg.data.unlabelled import Unlabelled, without_classes
from dspreg.devices import resolve_device
from dspreg.errors import ConfigError, DataError, Notice, resource_errors
from dspreg.inference.evaluate_run import columns, data_of
from dspreg.inference.load import load, step_of
from dspreg.inference.seen_images import source_of, split_source
from dspreg.kinds import CLASSES
from dspreg.networks.full_network import make_full_network
from dspreg.protocol.description import RunDescription
from dspreg.randomness import Key
from dspreg.runs.folder import RunFolder
from dspreg.sensitivity.measure import build_profile, measure, progress_bar
from dspreg.sensitivity.profile import Profile, tensors_of
from dspreg.sensitivity.samples import Samples
from dspreg.sensitivity.variance import RunningVariance, Variance
from dspreg.training.parts import randomness_key
from dspreg.vectors import ParamVector, matching_names, trainable

MANY = 100  # outputs
SMALLER = "fewer --images, a smaller --batch or --image-size, or --no-null need less"


@dataclass(frozen=True)
class MeasureProgress:
    """What is shown while it takes time."""

    bar: bool = False  # while measuring, on stderr
    reading: Callable[[int, int], None] = lambda _done, _total: None  # called with the images read, and of how many


QUIET = MeasureProgress()


def profile_network(
    model: str,
    config: MeasureConfig,
    *,
    weights: str = "default",
    image_size: int | None = None,
    progress: MeasureProgress = QUIET,
) -> Profile:
    """Measure a network of a name, as in `make_full_network`, on a data set.

    The profile's settings say, under "about", what was measured on which images.
    """
    config = replace(config, device=resolve_device(config.device, float64=True))
    if config.dataset is None:
        raise ConfigError("on which images? Add --dataset NAME, folder:PATH or index:FILE")
    if config.variance != "one":
        raise ConfigError(f"--variance {config.variance} is of a run, and {model} is a network: give a run's folder")
    data = open_images(config, config.dataset)
    require_colours(data)
    chosen = choose_domains(data, config.domains, data.domains)
    size = image_size or data.image_size
    whole = make_full_network(
        model, weights=weights, image_size=size, classes=data.num_classes or None, labels=config.of == "loss",
        key=config.seed,
    )  # fmt: skip
    mean, std = tuple(config.mean or whole.mean), tuple(config.std or whole.std)
    transform = Transform(size, mean, std, reading=data.reading)
    parts = [DomainSplit(name, images := data.domain(name), range(len(images)), transform) for name in chosen]
    net = whole.net.to(config.device)
    check_before(net, config, whole.outputs)
    with resource_errors(SMALLER), _read(parts, (data.name, config.seed), 0, config, data.small, progress) as batches:
        loaders = {name: _pairs(each, labels=bool(data.classes)) for name, each in batches.items()}
        options = config.meter_options()
        profile = measure(
            net, loaders, **options, eps=config.eps, null=config.null, key=config.seed, progress=progress.bar
        )
    about = {"model": model, "weights": asdict(whole.weights), "head": whole.head, "outputs": whole.outputs}
    kinds = {part.domain: "all" for part in parts}
    return _with(profile, config, about | describe_input(transform), data, kinds, parts)


def profile_run(
    run: str | Path,
    config: MeasureConfig,
    *,
    which: str = "selected",
    progress: MeasureProgress = QUIET,
    trust: Sequence[str] = (),
) -> Profile:
    """Measure what a finished run predicts with, averaged weights too, by the names that its own profiles have.

    On its own data set: on the images it was trained on, as a refresh in training would at that step. On another data
    set, or a domain it was not trained on: on all images; classes are matched by name. `trust` as in `dspreg.evaluate`.
    """
    folder, config = RunFolder(run), replace(config, device=resolve_device(config.device, float64=True))
    model, transform = load(run, which, config.device, trust=trust)
    check_before(model.algorithm.net, config, len(model.classes))
    trained, step = RunDescription.from_json(folder.description()), step_of(folder.result() or {}, which)
    variance: Variance = 1.0
    about: dict[str, Any] = {}
    if config.variance == "checkpoints":
        about["checkpoints"] = steps = kept_steps(folder)
        variance = variance_of_checkpoints(run, steps, trust)
    if config.dataset is None:
        data = data_of(trained, None, config.root, config.name, trust)
    else:
        data = open_images(config, config.dataset)
    data.read_as(transform.reading)
    own = [name for name in data.domains if name in trained.sources] if config.dataset is None else list(data.domains)
    chosen = choose_domains(data, config.domains, own)
    parts, kinds = [], {}
    for name in chosen:
        images = data.domain(name)
        source = source_of(trained, images) if data.classes else None
        positions = range(len(images)) if source is None else split_source(trained, images, source)[0]
        parts.append(DomainSplit(name, images, positions, transform, kind=data.kind, num_classes=data.num_classes))
        kinds[name] = "all" if source is None else "in"
    s = trained.config
    key: tuple[Key, ...] = randomness_key(s.dataset, s)  # as in training
    if config.seed or config.dataset is not None:
        key = (*key, "measure", data.name, config.seed)
    if data.classes and data.kind != model.kind:
        raise ConfigError(f"{run} is of the kind {model.kind!r}, and {data.name} of the kind {data.kind!r}")
    matched = (
        data.classes and config.of == "loss" and data.kind == CLASSES
    )  # others need no labels, and the classes may be other ones
    to_model = columns(data, parts, model.classes).to(config.device) if matched else None
    with (
        resource_errors(SMALLER),
        _read(parts, key, step + 1, config, data.small, progress) as batches,
        metering(model.algorithm, (*key, step + 1), **config.meter_options()) as (meter, f),
        progress_bar(progress.bar) as walk,
    ):
        domains = {
            name: (
                Samples(b.x, to_model[b.y] if to_model is not None else b.y if model.kind != CLASSES else None)
                for b in each
            )
            for name, each in batches.items()
        }
        profile = build_profile(meter, f, domains, variance=variance, eps=config.eps, null=config.null, walk=walk)
    about |= {"model": s.model, "run": trained.id, "which": which, "step": step, "algorithm": s.algorithm}
    for layer in model.algorithm.layers():
        if isinstance(layer, WeightAverage) and layer.count:  # which a loaded network stands at
            about["averaged_steps"] = layer.count
    return _with(profile, config, about | describe_input(transform), data, kinds, parts)


def kept_steps(folder: RunFolder) -> list[int]:
    """The steps whose models a finished run kept."""
    result = folder.result() or {}
    names = [Path(name) for name in result.get("files", ()) if name.startswith("models/")]
    return sorted(int(name.stem.removeprefix("step-")) for name in names)


def variance_of_checkpoints(run: str | Path, steps: Sequence[int], trust: Sequence[str] = ()) -> ParamVector:
    """1/n Σ_t (θ_t − θ̄)² over the models of a run after these steps, every one counting the same."""
    if len(steps) < 2:
        raise ConfigError(
            f"--variance checkpoints wants two kept models or more, and {run} has {len(steps)}; train with --keep all"
        )
    net = load(run, str(steps[0]), trust=trust)[0].algorithm.net
    running = RunningVariance(net)
    for step in steps:
        net.load_state_dict(load(run, str(step), trust=trust)[0].algorithm.net.state_dict())
        running.update()
    return running.vector()


def open_images(config: MeasureConfig, dataset: str) -> DomainDataset:
    """The data set; folders without classes are one, too, where no labels are needed."""
    ref = DatasetRef.parse(dataset)
    loose = without_classes(ref.target) if ref.kind == "folder" else None
    if loose is None:
        return open_dataset(dataset, config.root, config.name)
    if config.of == "loss":
        raise DataError(
            f"{ref.target} has no folders of classes: {loose} lies directly in its domain. The loss needs labels. Use "
            "--of output or --of fisher, which need none, or arrange the images as ROOT/domain/class/image.jpg"
        )
    return Unlabelled(ref.target, config.name)


def require_colours(data: DomainDataset) -> None:
    """Refuse images of other channels for a network by name, which is one for RGB."""
    if data.channels != 3:
        raise ConfigError(
            f"images of {data.name} have {data.channels} channels, and networks by name are measured on RGB. Train "
            "one, and give the run's folder"
        )


def choose_domains(data: DomainDataset, asked: Sequence[str], otherwise: Iterable[str]) -> list[str]:
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


def check_before(net: nn.Module, config: MeasureConfig, outputs: int | None) -> None:
    """What is wrong, or slow, is said before images are read."""
    names = matching_names(trainable(net), list(config.only) or None, list(config.exclude) or None)
    if config.layer is not None:
        tensors_of(config.layer, names)
    if config.of == "output" and config.estimator == "persample" and (outputs or 0) > MANY:
        warnings.warn(
            f"--of output takes a backward pass for each of {outputs:,} outputs; --of fisher takes one, and needs no "
            "labels either",
            Notice,
            stacklevel=3,
        )


@contextmanager
def _read(
    parts: Sequence[DomainSplit],
    key: tuple[Key, ...],
    t: int,
    config: MeasureConfig,
    small: bool,
    progress: MeasureProgress,
) -> Iterator[Mapping[str, Iterable[Batch]]]:
    """Keyed batches of every domain: read at once where null needs them all, while they are measured otherwise."""
    source = MeasureSampler(parts, key, config.device, reader_processes(config.workers, small))
    order = [
        [(d, each) for each in draw_batches(len(part), config.images, config.batch, *key, t, part.domain)]
        for d, part in enumerate(parts)
    ]
    if not config.null:
        with ExitStack() as readers:
            yield {
                part.domain: readers.enter_context(closing(source.batches(each)))
                for part, each in zip(parts, order, strict=True)
            }
        return
    total, done = sum(len(chosen) for each in order for _, chosen in each), 0
    kept: dict[str, list[Batch]] = {part.domain: [] for part in parts}
    for batch in source.batches([one for each in order for one in each]):
        kept[parts[batch.domain].domain].append(batch)
        done += len(batch.y)
        progress.reading(done, total)
    yield kept


def _pairs(batches: Iterable[Batch], *, labels: bool) -> Iterator[Any]:
    return ((batch.x, batch.y) if labels else batch.x for batch in batches)


def describe_input(transform: Transform | Unchanged) -> dict[str, Any]:
    if isinstance(transform, Unchanged):
        return {"inputs": list(transform.shape)}
    seen = {"image_size": transform.size, "mean": list(transform.mean), "std": list(transform.std)}
    how = {"resize": transform.resize, **asdict(transform.reading)}
    always = {"resize": "squash", **asdict(Reading())}  # what was said of no profile before
    return seen | {name: value for name, value in how.items() if value != always[name]}


def _with(
    profile: Profile,
    config: MeasureConfig,
    about: dict[str, Any],
    data: DomainDataset,
    kinds: Mapping[str, str],
    parts: Sequence[DomainSplit],
) -> Profile:
    """The profile, and beside its settings what was measured: names and numbers, no paths."""
    domains = {part.domain: {"part": kinds[part.domain], "images": len(part)} for part in parts}
    about = about | {"data": data.name, "domains": domains, "batch": config.batch, "seed": config.seed}
    about |= {"dspreg": __version__, "torch": torch.__version__}
    return replace(profile, settings={**profile.settings, "about": about})
