"""From settings to all that a training needs: images, splits, network, task. Nothing is trained here."""

from __future__ import annotations

import os
import platform
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from importlib.metadata import version
from typing import Any, cast

import torch
from torch import nn

from dspreg import __version__
from dspreg.algorithms import Algorithm, Task, parse
from dspreg.algorithms.spec import PUBLISHED, filled
from dspreg.data import DomainDataset
from dspreg.data.base import labels_of
from dspreg.data.cache import Kind, open_cache
from dspreg.data.checked import check_once
from dspreg.data.fingerprint import fingerprint
from dspreg.data.images import Images
from dspreg.data.loading import Measured, Part, TrainingSteps
from dspreg.data.named import dataset_named
from dspreg.data.splits import split, steps_per_epoch, stratified
from dspreg.data.transforms import Transform
from dspreg.errors import ConfigError, DataError, Notice
from dspreg.networks.pretrained import Backbone, make_backbone
from dspreg.protocol.settings import CHANNELS_LAST, Execution, Settings, resolved, search_seed
from dspreg.randomness import Key

Progress = Callable[[int, int], None]
PACKAGES = ("torch", "torchvision", "timm", "numpy", "pillow")  # another version of these may give other bits


@dataclass(frozen=True)
class Experiment:
    """One training, ready to start. Made by `prepared`."""

    settings: Settings  # every option filled in
    execution: Execution
    data: DomainDataset
    images: Mapping[str, Sequence[Any]]  # domain → (image, label) pairs
    splits: Mapping[str, tuple[list[int], list[int]]]  # domain → positions of "in" and "out"
    backbone: Backbone

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(name for name in self.data.domains if name not in self.settings.targets)

    @property
    def key(self) -> tuple[Key, ...]:
        """Of all randomness: never the algorithm, a path or a fingerprint, so that all arms of a trial see the same."""
        s = self.settings
        return (self.data.name, s.targets, s.trial, s.draw)

    @property
    def workers(self) -> int:
        asked = self.execution.workers
        return asked if asked is not None else (0 if self.data.small else min(4, os.cpu_count() or 1))

    @cached_property
    def epoch(self) -> int:
        sizes = [len(self.splits[name][0]) for name in self.sources]
        return steps_per_epoch(sizes, self.settings.batch_size * len(sizes))

    def part(self, domain: str, which: str, transform: Transform) -> Part:
        return Part(domain, self.images[domain], self.splits[domain][("in", "out").index(which)], transform)

    def shown(self, augment: bool) -> Transform:
        last = self.execution.layout == CHANNELS_LAST
        return Transform(self.settings.image_size, self.backbone.mean, self.backbone.std, augment, last)

    def algorithm(self, on_progress: Callable[[], None] = lambda: None) -> Algorithm:
        """The stack with its network and optimiser, at step 0; `on_progress` is called at every pass of a step."""
        parts = [self.part(name, "in", self.shown(False)) for name in self.sources]
        samples = Measured(parts, self.key, self.execution.device, self.workers)
        task = Task(self.data.num_classes, self.sources, self.epoch, self._network, self.key, samples, on_progress)
        s = self.settings

        def adam(params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
            return torch.optim.Adam(params, lr=s.lr, weight_decay=s.weight_decay)

        return parse(s.algorithm).setup(task, adam, self.execution.device)

    def _network(self) -> Any:
        return self.backbone.make()

    def steps(self) -> TrainingSteps:
        shown = self.shown(self.settings.augment)
        parts = [self.part(name, "in", shown) for name in self.sources]
        return TrainingSteps(parts, self.settings.batch_size, self.key)

    def evaluated(self, last: bool) -> list[tuple[str, str, Part]]:
        """Domain, split and part of all that is evaluated at one step.

        Source validation selects, the target's "in" split is what is reported for it, and its "out" split is what the
        oracle looks at, at the last step alone.
        """
        s = self.settings
        chosen = []
        for name in self.data.domains:
            target = name in s.targets
            for which in ("in", "out"):
                if s.evaluate == "all" or which == ("in" if target else "out") or (target and last):
                    shown = self.shown(s.augment_validation and not target)
                    chosen.append((name, which, self.part(name, which, shown)))
        return chosen

    def autocast(self) -> AbstractContextManager[Any]:
        if self.execution.precision == "float32":
            return nullcontext()
        return torch.autocast(torch.device(self.execution.device).type, torch.bfloat16)

    @property
    def weights(self) -> dict[str, Any]:
        """For every record. Of a file the SHA-256 says which it is, for its name may change."""
        found = asdict(self.backbone.weights)
        return found | {"tag": "file"} if found["source"] == "file" else found

    def description(self) -> dict[str, Any]:
        """All that decides the result, as JSON; paths are left out, for moving a folder changes nothing."""
        settings = asdict(self.settings) | {"dataset": self.data.name, "targets": list(self.settings.targets)}
        settings["weights"] = self.weights["tag"]
        sizes = {name: {"in": len(inside), "out": len(out)} for name, (inside, out) in self.splits.items()}
        prints = {name: fingerprint(images) for name, images in self.images.items()}
        names = {"domains": list(self.data.domains), "classes": list(self.data.classes)}
        return {
            "settings": settings,
            "data": names | {"sizes": sizes, "fingerprints": prints},
            "weights": self.weights,
            "environment": environment(self.execution),
        }


def prepared(
    given: Mapping[str, Any], execution: Execution, progress: Callable[[int, int], None] | None = None
) -> Experiment:
    """Read the folders, split the domains, find the weights; whatever is wrong is said here, before any training.

    Args:
        given: What is trained; options left open are filled in.
        execution: How.
        progress: Of looking at every image, with the number done and of all.
    """
    if execution.domainbed_records:
        given = {**given, "evaluate": "all"}  # its readers want every split
    data = dataset_named(given["dataset"], execution.root, execution.name)
    settings = resolved(given, data)
    for name in settings.targets:
        data.check_domain(name)
    spec, scaled = filled_in(settings)
    for change in scaled:
        text = f"{change}, for {settings.steps:,} of {PUBLISHED:,} steps; set it in the spec to have it as you like"
        warnings.warn(text, Notice, stacklevel=2)
    targets = tuple(name for name in data.domains if name in settings.targets)  # in the data set's own order
    settings = replace(settings, algorithm=spec, targets=targets)
    if len(targets) == len(data.domains):
        raise ConfigError(f"every domain of {data.name} is a target ({', '.join(targets)}); leave some to train on")
    check_device(execution.device)
    cache = open_cache(cast(Kind, execution.cache))
    images = {name: data.domain(name) for name in data.domains}
    if execution.check_images == "once":
        check_once(data, images, progress)
    for each in images.values():
        if isinstance(each, Images):
            each.cache = cache
    splits = {}
    for position, (name, each) in enumerate(images.items()):
        splits[name] = cut(each, settings, position)
        sizes = [len(part) for part in splits[name]]
        if not all(sizes):
            raise DataError(
                f"the domain {name!r} of {data.name} has {len(each)} images; holding out {settings.holdout} of them "
                f"leaves {sizes[0]} to train on and {sizes[1]} to validate with. Add images, or change holdout"
            )
        if name not in targets and sizes[0] < settings.batch_size:
            warnings.warn(
                f"the domain {name!r} has {sizes[0]} images to train on, fewer than the batch of "
                f"{settings.batch_size}: images repeat within a batch",
                Notice,
                stacklevel=2,
            )
    backbone = make_backbone(
        settings.model,
        weights=settings.weights,
        image_size=settings.image_size,
        dropout=settings.dropout,
        frozen_bn=settings.frozen_bn,
    )
    return Experiment(settings, execution, data, images, splits, backbone)


def filled_in(settings: Settings) -> tuple[str, list[str]]:
    """The algorithm's spec with its own options drawn and scaled as the run wants it, and what was scaled."""
    s = settings
    seed = search_seed(s.draw, s.trial, s.same_draws) if s.draw else None
    return filled(settings.algorithm, seed=seed, steps=settings.steps)


def cut(images: Sequence[Any], settings: Settings, position: int) -> tuple[list[int], list[int]]:
    """ "in" and "out" of one domain."""
    holdout = settings.holdout
    if settings.split == "stratified":
        return stratified(labels_of(images), settings.trial, position, holdout)
    return split(len(images), settings.trial, position, holdout)


def check_device(device: str) -> None:
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise ConfigError(f"device={device!r}; wanted cpu, cuda, cuda:1 or mps") from None
    there: dict[str, Callable[[], bool]] = {
        "cuda": torch.cuda.is_available,
        "mps": torch.backends.mps.is_available,
        "cpu": lambda: True,
    }
    if kind not in there or not there[kind]():
        raise ConfigError(f"device={device!r} is not there: torch {torch.__version__} finds none. Use --device cpu")


def environment(execution: Execution) -> dict[str, Any]:
    """What else the bits depend on."""
    found: dict[str, Any] = {name: version(name) for name in PACKAGES}
    if execution.layout == CHANNELS_LAST:  # the other one is not named: runs were trained before there was a choice
        found["layout"] = CHANNELS_LAST
    return found | {
        "dspreg": __version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": threads(execution),
        "device": torch.device(execution.device).type,
        "gpu": torch.cuda.get_device_name(execution.device) if execution.device.startswith("cuda") else None,
        "precision": execution.precision,
    }


def threads(execution: Execution) -> int:
    """As asked, or all cores this process may use."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return execution.threads or usable or 1
