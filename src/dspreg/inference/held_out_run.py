"""Whether c says anything about a held-out domain, from names: of a network or a run, on a data set.

What `dspreg measure --held-out` shows. Training sees none of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dspreg import __version__
from dspreg.algorithms.measure import metering
from dspreg.config.measure_config import MeasureConfig
from dspreg.data import DomainDataset
from dspreg.data.loader import DomainSplit, MeasureSampler, reader_processes
from dspreg.data.sampling import draw_batches
from dspreg.data.transforms import Transform
from dspreg.devices import resolve_device
from dspreg.errors import ConfigError, resource_errors
from dspreg.inference.evaluate_run import columns, data_of
from dspreg.inference.load import load, require_images, step_of
from dspreg.inference.profile_run import (
    QUIET,
    SMALLER,
    MeasureProgress,
    check_before,
    choose_domains,
    describe_input,
    open_images,
    require_colours,
)
from dspreg.inference.seen_images import source_of, split_source
from dspreg.networks.full_network import make_full_network
from dspreg.precision import full_precision
from dspreg.protocol.description import RunDescription
from dspreg.randomness import Key, generator
from dspreg.runs.folder import RunFolder
from dspreg.sensitivity.evaluation_mode import evaluation_mode
from dspreg.sensitivity.held_out import HeldOutComparison, equal_number, measure_held_out
from dspreg.sensitivity.measure import progress_bar
from dspreg.sensitivity.meter import Meter
from dspreg.sensitivity.samples import Samples, concatenate
from dspreg.training.parts import randomness_key


@dataclass(frozen=True)
class Halves:
    """Two disjoint parts of every domain: of a source to measure c on and to hold out, of the held-out domain both."""

    parts: Mapping[str, tuple[DomainSplit, DomainSplit]]
    kinds: Mapping[str, str]  # "all" images, divided at random, or "in" and "out" of a run's source

    def number(self, images: int) -> int:
        """Of images of each part."""
        there = {name: min(map(len, both)) for name, both in self.parts.items()}
        return equal_number(images, there, len(self.parts) - 1)

    def read(
        self,
        key: tuple[Key, ...],
        t: int,
        config: MeasureConfig,
        small: bool,
        progress: MeasureProgress,
        to_model: Tensor | None,
    ) -> dict[str, list[Samples]]:
        """Keyed samples of every part; those for c are the ones that a refresh at step t would begin with."""
        number = self.number(config.images)
        splits = [split for both in self.parts.values() for split in both]
        apart = [() if i % 2 == 0 else ("held out",) for i in range(len(splits))]
        order = [
            (i, chosen)
            for i, split in enumerate(splits)
            for chosen in draw_batches(len(split), number, config.batch, *key, t, split.domain, *apart[i])
        ]
        source = MeasureSampler(splits, key, config.device, reader_processes(config.workers, small))
        read: list[list[Samples]] = [[] for _ in splits]
        done, total = 0, number * len(splits)
        with closing(source.batches(order)) as batches:
            for batch in batches:
                read[batch.domain].append(Samples(batch.x, None if to_model is None else to_model[batch.y]))
                done += len(batch.y)
                progress.reading(done, total)
        joined = [concatenate(each) for each in read]
        return {name: joined[2 * i : 2 * i + 2] for i, name in enumerate(self.parts)}

    def describe(self) -> dict[str, Any]:
        return {name: {"part": self.kinds[name], "images": [*map(len, both)]} for name, both in self.parts.items()}


def compare_held_out_network(
    model: str,
    config: MeasureConfig,
    held_out: str,
    *,
    weights: str = "default",
    image_size: int | None = None,
    progress: MeasureProgress = QUIET,
) -> HeldOutComparison:
    """As `compare_held_out`, of a network of a name, as in `make_full_network`, on a data set."""
    config = replace(config, device=resolve_device(config.device, float64=True))
    if config.dataset is None:
        raise ConfigError("on which images? Add --dataset NAME, folder:PATH or index:FILE")
    data = open_images(config, config.dataset)
    require_colours(data)
    sources = choose_sources(data, config.domains, data.domains, held_out)
    size = image_size or data.image_size
    whole = make_full_network(
        model, weights=weights, image_size=size, classes=data.num_classes or None, labels=config.of == "loss",
        key=config.seed,
    )  # fmt: skip
    mean, std = tuple(config.mean or whole.mean), tuple(config.std or whole.std)
    transform = Transform(size, mean, std, reading=data.reading)
    net = whole.net.to(config.device)
    check_before(net, config, whole.outputs)
    key: tuple[Key, ...] = (data.name, config.seed)
    names = [*sources, held_out]
    halves = Halves({name: divide(data, name, transform, *key) for name in names}, dict.fromkeys(names, "all"))
    labels = torch.arange(len(data.classes)).to(config.device) if data.classes else None
    meter = Meter(net, key=("held out", *key), **config.meter_options())
    with (
        resource_errors(SMALLER),
        evaluation_mode(net),
        full_precision(torch.device(config.device).type),
        progress_bar(progress.bar) as walk,
    ):
        found = measure_held_out(
            meter, lambda _samples, _domain: net, halves.read(key, 0, config, data.small, progress, labels), held_out,
            images=config.images, batch=config.batch, eps=config.eps, null=config.null, walk=walk,
        )  # fmt: skip
    about = {"model": model, "weights": asdict(whole.weights), "head": whole.head, "outputs": whole.outputs}
    return _with(found, config, about | describe_input(transform), data, halves)


def compare_held_out_run(
    run: str | Path,
    config: MeasureConfig,
    held_out: str,
    *,
    which: str = "selected",
    progress: MeasureProgress = QUIET,
    trust: Sequence[str] = (),
) -> HeldOutComparison:
    """As `compare_held_out`, of what a finished run predicts with.

    c comes from images that the run was trained on, as in a refresh at that step; the held-out images of the sources
    are of the split that it was not trained on, as those of the held-out domain are. `trust` as in `dspreg.evaluate`.
    """
    folder, config = RunFolder(run), replace(config, device=resolve_device(config.device, float64=True))
    model, loaded = load(run, which, config.device, trust=trust)
    transform = require_images(model, loaded, run, "measure --held-out")
    check_before(model.algorithm.net, config, len(model.classes))
    trained, step = RunDescription.from_json(folder.description()), step_of(folder.result() or {}, which)
    if config.dataset is None:
        data = data_of(trained, None, config.root, config.name, trust)
    else:
        data = open_images(config, config.dataset)
    data.read_as(transform.reading)
    own = [name for name in data.domains if name in trained.sources] if config.dataset is None else list(data.domains)
    data.check_domain(held_out)
    if data.classes and source_of(trained, data.domain(held_out)) is not None:
        unseen = ", ".join(name for name in data.domains if name not in trained.sources) or "none"
        raise ConfigError(f"the run was trained on {held_out!r}, so it is not unseen; it did not see: {unseen}")
    sources = choose_sources(data, config.domains, own, held_out)
    s = trained.config
    key: tuple[Key, ...] = randomness_key(s.dataset, s)  # as in training
    if config.seed or config.dataset is not None:
        key = (*key, "measure", data.name, config.seed)
    parts, kinds = {}, {}
    for name in (*sources, held_out):
        images = data.domain(name)
        source = source_of(trained, images) if data.classes else None
        if source is None:
            parts[name] = divide(data, name, transform, *key)
        else:
            seen, other = split_source(trained, images, source)
            if not other:
                raise ConfigError(
                    f"{run} held no images of {name!r} out (holdout=0), with which those it was trained on are "
                    "compared. Take a run that held some out"
                )
            parts[name] = (
                DomainSplit(name, images, seen, transform),
                DomainSplit(name, images, other, transform),
            )
        kinds[name] = "all" if source is None else "in"
    halves = Halves(parts, kinds)
    halves.number(config.images)  # too few is said before any image is read
    matched = data.classes and config.of == "loss"  # others need no labels, and the classes may be other ones
    firsts = [both[0] for both in parts.values()]
    to_model = columns(data, firsts, model.classes).to(config.device) if matched else None
    with (
        resource_errors(SMALLER),
        metering(model.algorithm, (*key, step + 1), **config.meter_options()) as (meter, f),
        progress_bar(progress.bar) as walk,
    ):
        found = measure_held_out(
            meter, f, halves.read(key, step + 1, config, data.small, progress, to_model), held_out,
            images=config.images, batch=config.batch, eps=config.eps, null=config.null, walk=walk,
        )  # fmt: skip
    about = {"model": s.model, "run": trained.id, "which": which, "step": step, "algorithm": s.algorithm}
    return _with(found, config, about | describe_input(transform), data, halves)


def choose_sources(data: DomainDataset, asked: Sequence[str], otherwise: Sequence[str], held_out: str) -> list[str]:
    """The domains c is of: those asked for, or all others."""
    data.check_domain(held_out)
    if held_out in asked:
        raise ConfigError(
            f"--held-out {held_out} is among --domain, which names those that c is of; leave it out there"
        )
    return choose_domains(data, asked, [name for name in otherwise if name != held_out])


def divide(data: DomainDataset, name: str, transform: Transform, *key: Key) -> tuple[DomainSplit, DomainSplit]:
    """All images of a domain in two halves, at random."""
    images = data.domain(name)
    order = torch.randperm(len(images), generator=generator(*key, name, "halves")).tolist()
    cut = (len(order) + 1) // 2
    return DomainSplit(name, images, order[:cut], transform), DomainSplit(name, images, order[cut:], transform)


def _with(
    found: HeldOutComparison, config: MeasureConfig, about: dict[str, Any], data: DomainDataset, halves: Halves
) -> HeldOutComparison:
    """The comparison, and beside its settings what was measured: names and numbers, no paths."""
    about = about | {"data": data.name, "domains": halves.describe(), "batch": config.batch, "seed": config.seed}
    about |= {"asked": config.images, "dspreg": __version__, "torch": torch.__version__}
    return replace(found, settings={**found.settings, "about": about})
