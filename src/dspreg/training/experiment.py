"""From settings to everything a training needs: images, splits, network, task. Nothing is trained here."""

from __future__ import annotations

import os
import platform
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from importlib.metadata import version
from typing import Any

import torch
from torch import nn

from dspreg import __version__
from dspreg.algorithms import Algorithm, Task
from dspreg.algorithms.registry import PUBLISHED, StackSpec
from dspreg.config.defaults import search_seed
from dspreg.config.options import MOST
from dspreg.config.train_config import CHANNELS_LAST, Execution, TrainConfig, resolve_config
from dspreg.data import DomainDataset
from dspreg.data.base import labels_of
from dspreg.data.cache_choice import open_chosen_cache
from dspreg.data.fingerprint import fingerprint
from dspreg.data.images import Images
from dspreg.data.loader import DomainSplit, MeasureSampler, TrainingSteps, reader_processes
from dspreg.data.readers import ReaderPool
from dspreg.data.registry import open_dataset
from dspreg.data.splits import split, split_stratified, steps_per_epoch
from dspreg.data.tasks import check_parts, check_samples, unchanged_inputs
from dspreg.data.transforms import Transform, Unchanged
from dspreg.data.verify import check_once
from dspreg.devices import lacks_float64, resolve_device
from dspreg.errors import ConfigError, DataError, Notice
from dspreg.kinds import CLASSES, require_kind
from dspreg.networks.own import is_own_network
from dspreg.networks.pretrained import Backbone, make_backbone
from dspreg.precision import LossScaler, autocast, check_precision
from dspreg.protocol.description import RunDescription
from dspreg.randomness import Key
from dspreg.training.compiling import compile_network, require_compilable, require_compiler
from dspreg.training.fastest import choose_folding, choose_layout, describe_computation, keep_begun

Shown = Transform | Unchanged
Progress = Callable[[int, int], None]
PACKAGES = ("torch", "torchvision", "timm", "numpy", "pillow")  # their versions may change results in the last bits

FUSED = ("cuda", "mps")  # devices with an Adam in one kernel


@dataclass(frozen=True)
class Experiment:
    """One training, ready to start. Created by `prepare_experiment`."""

    settings: TrainConfig  # every option filled in
    execution: Execution
    asked: StackSpec  # the method as the user wrote it
    stack: StackSpec  # with options from a random draw or scaled to a short run: `settings.algorithm`
    data: DomainDataset
    images: Mapping[str, Sequence[Any]]  # domain → (image, label) pairs
    splits: Mapping[str, tuple[list[int], list[int]]]  # domain → positions of "in" and "out"
    backbone: Backbone
    inputs: Unchanged | None = None  # shape and type, where they are tensors
    on_read: Callable[[], None] = lambda: None  # called while files are hashed; may raise
    parts: dict[tuple[str, str, Shown], DomainSplit] = field(default_factory=dict, init=False, compare=False)

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(name for name in self.data.domains if name not in self.settings.targets)

    @property
    def key(self) -> tuple[Key, ...]:
        """The key of all randomness; see `randomness_key`."""
        return randomness_key(self.data.name, self.settings)

    @property
    def workers(self) -> int:
        return reader_processes(self.execution.workers, self.data.small)

    @cached_property
    def fingerprints(self) -> dict[str, str]:
        """Fingerprint of every domain; computed once, because it reads all files."""
        return {name: fingerprint(images, self.on_read) for name, images in self.images.items()}

    def file_hashes(self) -> set[str]:
        """SHA-256 of every image file."""
        files = [each for each in self.images.values() if isinstance(each, Images) and self.fingerprints]
        return {sha for each in files for sha in each.hashes}

    @cached_property
    def epoch(self) -> int:
        sizes = [len(self.splits[name][0]) for name in self.sources]
        return steps_per_epoch(sizes, self.settings.batch_size * len(sizes))

    def part(self, domain: str, which: str, transform: Shown) -> DomainSplit:
        """A split of a domain: the same object whenever it is asked for, so that readers know it."""
        positions = self.splits[domain][("in", "out").index(which)]
        return self.parts.setdefault(
            (domain, which, transform),
            DomainSplit(domain, self.images[domain], positions, transform, self.data.kind, self.data.num_classes),
        )

    def reader_pool(self) -> ReaderPool:
        """Processes that read images for all of a training: steps, evaluations, and what c is measured on."""
        shown = [self.transform(augment) for augment in (False, True)]
        every = [self.part(name, which, each) for name in self.images for which in ("in", "out") for each in shown]
        return ReaderPool(self.workers, every)

    def transform(self, augment: bool) -> Shown:
        if self.inputs is not None:
            return self.inputs
        last = self.execution.layout == CHANNELS_LAST
        return Transform(self.settings.image_size, self.backbone.mean, self.backbone.std, augment, last)

    def algorithm(
        self,
        on_progress: Callable[[], None] = lambda: None,
        on_wait: Callable[[], None] = lambda: None,
        readers: ReaderPool | None = None,
    ) -> Algorithm:
        """The stack with its network and optimiser, at step 0.

        Args:
            on_progress: Called at every pass of a step.
            on_wait: Called while images to measure on are waited for; may raise.
            readers: Of the training. Without them, processes are started for each measurement.
        """
        parts = [self.part(name, "in", self.transform(False)) for name in self.sources]
        workers = self.workers if readers is None else readers
        samples = MeasureSampler(parts, self.key, self.execution.device, workers, on_wait)
        count, kind = self.data.num_classes, self.data.kind
        task = Task(count, self.sources, self.epoch, self._network, self.key, samples, on_progress, kind)
        s = self.settings

        def adam(params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
            return make_adam(params, s, self.execution.device)

        algorithm = self.stack.build().setup(task, adam, self.execution.device)
        algorithm.stack.folds_batch_norm = self.execution.fold_bn == "always"
        if self.execution.compile:
            compile_network(algorithm.net)
        if self.execution.precision == "fp16":
            algorithm.stack.scaler = LossScaler(self.execution.device)
        return algorithm

    def with_algorithm(self, spec: str) -> Experiment:
        """The same training with another method."""
        stack = StackSpec.parse(spec)
        return replace(self, settings=replace(self.settings, algorithm=spec), asked=stack, stack=stack)

    def _network(self) -> Any:
        return self.backbone.make()

    def steps(self) -> TrainingSteps:
        shown = self.transform(self.settings.augment)
        parts = [self.part(name, "in", shown) for name in self.sources]
        return TrainingSteps(parts, self.settings.batch_size, self.key)

    def evaluation_parts(self, last: bool) -> list[tuple[str, str, DomainSplit]]:
        """Domain, split and images of everything that one evaluation covers.

        Source validation selects. The target's "in" split is reported; its "out" split is for oracle selection, and
        evaluated at the last step only.
        """
        s, chosen = self.settings, []
        for name, which in evaluated_parts(self.data.domains, s, last=last):
            shown = self.transform(s.augment_validation and name not in s.targets)
            chosen.append((name, which, self.part(name, which, shown)))
        return chosen

    def autocast(self) -> AbstractContextManager[Any]:
        return autocast(self.execution.precision, self.execution.device)

    @property
    def weights(self) -> dict[str, Any]:
        """The weights, for every record. A file is identified by its SHA-256, since its name may change."""
        found = asdict(self.backbone.weights)
        return found | {"tag": "file"} if found["source"] == "file" else found

    def description(self, plan: Mapping[str, Any] | None = None) -> RunDescription:
        """Everything that decides the result, without paths; and separately the location of files and the execution.

        Args:
            plan: The run of a sweep, as JSON.
        """
        s, data = self.settings, self.data
        where = {"dataset": s.dataset, "weights": s.weights, **asdict(self.execution)}
        where["precision"] = self.execution.recorded_precision
        where |= {"plan": dict(plan)} if plan else {}
        where["algorithm"] = str(self.asked.shorten())  # tables put all draws of a method into one row
        return RunDescription(
            settings=s.to_record()
            | {
                "algorithm": self.stack.for_file(),
                "dataset": data.name,
                "targets": list(s.targets),
                "weights": self.weights["tag"],
            },
            domains=tuple(data.domains),
            classes=tuple(data.classes),
            kind=data.kind,
            sizes={name: {"in": len(inside), "out": len(out)} for name, (inside, out) in self.splits.items()},
            fingerprints=self.fingerprints,
            weights=self.weights,
            environment=environment(self.execution),
            where=where,
        )


def prepare_experiment(
    settings: Mapping[str, Any] | TrainConfig,
    execution: Execution,
    progress: Callable[[int, int], None] | None = None,
    *,
    data: DomainDataset | None = None,
    on_read: Callable[[], None] = lambda: None,
    begun: Mapping[str, Any] | None = None,
    begun_in: Mapping[str, Any] | None = None,
) -> Experiment:
    """Read the folders, split the domains, find the weights; every mistake is reported here, before any training.

    Args:
        settings: What is trained; defaults are filled in.
        execution: How it is run.
        progress: Called while every image is decoded once, with the number done and the total.
        data: The data set of `settings`, if it is already open.
        on_read: Called while files are hashed for their fingerprints; may raise.
        begun: The settings in run.json of a training that is resumed. What was begun when another default held, of the
            method or of an option that is left open, goes on with it.
        begun_in: The environment in run.json. What is `auto` in `execution` goes on as it was begun.
    """
    config = TrainConfig.of(settings)
    if execution.domainbed_records:
        config = replace(config, evaluate="all")  # DomainBed's scripts need every split
    if data is None:
        data = open_dataset(config.dataset, execution.root, execution.name)
    config = resolve_config(config, data, begun)
    for name in config.targets:
        data.check_domain(name)
    asked = StackSpec.parse(config.algorithm)
    stack, scaled = resolve_stack(asked, config)
    if begun is not None and stack.for_file() != (method := begun.get("algorithm")):
        then, scaled_then = resolve_stack(StackSpec.parse(config.algorithm, of_file=True), config)
        if then.for_file() == method:
            stack, scaled = then, scaled_then
    for change in scaled:
        text = f"{change}, for {config.steps:,} of {PUBLISHED:,} steps; set it in the spec to override this"
        warnings.warn(text, Notice, stacklevel=2)
    require_kind(data.kind)
    if data.kind != CLASSES and config.split == "stratified":
        raise ConfigError(
            f"a split is stratified by classes, and {data.name} is of the kind {data.kind!r}; --split domainbed"
        )
    if data.kind != CLASSES and execution.domainbed_records:
        raise ConfigError(f"DomainBed's records are of accuracies, and {data.name} is of the kind {data.kind!r}")
    if is_own_network(config.model) and config.weights == "none":
        raise ConfigError(f"--weights none is for networks with pretrained weights; {config.model} is as you create it")
    targets = tuple(name for name in data.domains if name in config.targets)  # in the data set's own order
    config = replace(config, algorithm=str(stack), targets=targets)
    if len(targets) == len(data.domains):
        raise ConfigError(f"every domain of {data.name} is a target ({', '.join(targets)}); leave some to train on")
    execution = resolve_execution(execution, config.algorithm)
    chosen, cache = open_chosen_cache(execution.cache, data, config.image_size)
    execution = replace(execution, cache=chosen.kind)
    images = {name: data.domain(name) for name in data.domains}
    splits = {name: split_domain(each, config, position) for position, (name, each) in enumerate(images.items())}
    check_splits(data, splits, config)
    if data.tensors or data.kind != CLASSES:
        labels = {name: check_samples(data, name, each, on_read) for name, each in images.items()}
        if data.kind != CLASSES:
            check_parts(data, labels, splits)
    backbone = make_backbone(
        config.model,
        weights=config.weights,
        image_size=config.image_size,
        dropout=config.dropout,
        frozen_bn=config.frozen_bn,
    )
    if begun_in is not None:
        execution = keep_begun(execution, begun_in)
    else:
        execution = choose_layout(choose_folding(execution, config, backbone), config, threads(execution))
    inputs = unchanged_inputs(data) if data.tensors else None
    experiment = Experiment(config, execution, asked, stack, data, images, splits, backbone, inputs, on_read)
    files = [each for each in images.values() if isinstance(each, Images)]
    if cache is not None and chosen.needed:
        cache.make_room(chosen.needed, experiment.file_hashes())
    if execution.check_images == "once" and len(files) == len(images):  # others are in memory, or classes of the user
        check_once(data, experiment.fingerprints.values(), progress, cache)
    for each in files:
        each.cache = cache
    return experiment


def resolve_stack(asked: StackSpec, config: TrainConfig) -> tuple[StackSpec, list[str]]:
    """The method with its options drawn and scaled for the run, and a sentence about each scaled option."""
    seed = search_seed(config.draw, config.trial, config.same_draws) if config.draw else None
    return asked.resolve(seed=seed, steps=config.steps, settings=asdict(config))


def make_adam(params: Iterable[nn.Parameter], settings: TrainConfig, device: str) -> torch.optim.Adam:
    """The optimiser, in one kernel on a GPU. It rounds otherwise: on the CPU results stay what they have been."""
    fused = True if torch.device(device).type in FUSED else None
    return torch.optim.Adam(params, lr=settings.lr, weight_decay=settings.weight_decay, fused=fused)


def resolve_execution(execution: Execution, *algorithms: str) -> Execution:
    """With the device that `auto` is here, one for trainings of all these methods.

    Raises:
        ConfigError: There is no such device, or it can't do what is asked for.
    """
    lacks = lacks_float64(execution.device)  # looked at first: where nothing is lacking, no spec needs to be read
    needs = lacks and any(measures_c(StackSpec.parse(spec), execution) for spec in dict.fromkeys(algorithms))
    device = resolve_device(execution.device, float64=needs)
    check_precision(execution.precision, device)
    if execution.compile:
        for spec in dict.fromkeys(algorithms):
            require_compilable(layers_of(StackSpec.parse(spec)), execution.precision)
        require_compiler(device)
    return execution if device == execution.device else replace(execution, device=device)


def measures_c(stack: StackSpec, execution: Execution) -> bool:
    """Whether c is measured in the training, by the method or for profiles: in double precision."""
    layers = layers_of(stack)
    return execution.profile == "always" or any(getattr(layer, "uses_c", False) for layer in layers)


def layers_of(stack: StackSpec) -> list[Algorithm]:
    """The layers of a method, to look at: without a network, and without the notices given when it is trained."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        return list(stack.build().layers())


def check_splits(data: DomainDataset, splits: Mapping[str, tuple[list[int], list[int]]], config: TrainConfig) -> None:
    """Refuse a domain without training or validation images, and warn of a source smaller than a batch."""
    for name, (inside, out) in splits.items():
        if not inside or not out:
            raise DataError(
                f"the domain {name!r} of {data.name} has {len(inside) + len(out)} images; holding out {config.holdout} "
                f"of them leaves {len(inside)} to train on and {len(out)} to validate with. Add images, or change "
                "holdout"
            )
        if name not in config.targets and len(inside) < config.batch_size:
            warnings.warn(
                f"the domain {name!r} has {len(inside)} images to train on, fewer than the batch of "
                f"{config.batch_size}: images repeat within a batch",
                Notice,
                stacklevel=3,
            )


def evaluated_parts(domains: Sequence[str], config: TrainConfig, *, last: bool) -> list[tuple[str, str]]:
    """Domain and split of everything that one evaluation covers; see `Experiment.evaluation_parts`."""
    return [
        (name, which)
        for name in domains
        for which in ("in", "out")
        if config.evaluate == "all"
        or which == ("in" if name in config.targets else "out")
        or (name in config.targets and last)
    ]


def randomness_key(data: str, config: TrainConfig) -> tuple[Key, ...]:
    """The key of all randomness of a training.

    Never the algorithm, a path or a fingerprint, so that all methods of one trial see the same batches.

    Args:
        data: Name of the data set.
        config: Targets in the data set's order.
    """
    return (data, config.targets, config.trial, config.draw)


def split_domain(images: Sequence[Any], config: TrainConfig, position: int) -> tuple[list[int], list[int]]:
    """Positions of the "in" and "out" images of the `position`-th domain of a data set."""
    if config.split == "stratified":
        return split_stratified(labels_of(images), config.trial, position, config.holdout)
    return split(len(images), config.trial, position, config.holdout)


def environment(execution: Execution) -> dict[str, Any]:
    """What else results depend on, to the last bit."""
    return {
        **{name: version(name) for name in PACKAGES},
        **describe_computation(execution),
        "dspreg": __version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": threads(execution),
        "device": torch.device(execution.device).type,
        "gpu": torch.cuda.get_device_name(execution.device) if execution.device.startswith("cuda") else None,
        "precision": execution.recorded_precision,
    }


def threads(execution: Execution) -> int:
    """As requested, or as OMP_NUM_THREADS says, or all cores that this process may use."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return execution.threads or threads_of_environment() or usable or 1


def threads_of_environment() -> int | None:
    """OMP_NUM_THREADS, which schedulers set to a job's share of the machine; of a list, "4,2", the first counts."""
    given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    number = int(given) if given.isdecimal() and len(given) < 10 else 0
    return number if 0 < number <= MOST["threads"][0] else None
