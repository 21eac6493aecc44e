"""From settings to everything a training needs: images, splits, network, task. Nothing is trained here."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from dspreg.algorithms import Algorithm, Task
from dspreg.algorithms.compatibility import require_weightable
from dspreg.algorithms.registry import PUBLISHED, StackSpec
from dspreg.config.defaults import search_seed
from dspreg.config.reading import READ
from dspreg.config.train_config import CHANNELS_LAST, TRAIN_OPTIONS, Execution, TrainConfig, resolve_config
from dspreg.config.trained_part import files_of, named_by_contents, with_files
from dspreg.data import DomainDataset
from dspreg.data.annotations import annotations_of
from dspreg.data.augmentation import require_augmentation
from dspreg.data.balance import image_weights
from dspreg.data.cache_choice import open_chosen_cache
from dspreg.data.channel_statistics import channel_statistics
from dspreg.data.fingerprint import content_hashes, fingerprint
from dspreg.data.images import Images
from dspreg.data.loader import XY, DomainSplit, MeasureSampler, SequentialBatches, TrainingSteps, reader_processes
from dspreg.data.readers import ReaderPool, iterate_batches
from dspreg.data.registry import open_dataset
from dspreg.data.splits import steps_per_epoch
from dspreg.data.tasks import check_parts, check_samples, unchanged_inputs
from dspreg.data.transforms import Transform, Unchanged
from dspreg.data.verify import check_once
from dspreg.devices import send
from dspreg.errors import ConfigError, Notice
from dspreg.kinds import CLASSES, require_kind
from dspreg.networks.network import Network
from dspreg.networks.pretrained import Backbone, make_backbone
from dspreg.networks.text_head import TextHead, read_text_head
from dspreg.precision import LossScaler, autocast
from dspreg.protocol.description import RunDescription
from dspreg.randomness import Key, seeded
from dspreg.runs.trained_images import Hashed, TrainedImages
from dspreg.sensitivity.profile import Profile
from dspreg.training.compiling import compile_network
from dspreg.training.execution import environment, layers_of, resolve_execution, threads
from dspreg.training.fastest import choose_folding, choose_layout, keep_begun
from dspreg.training.initial_weights import InitialWeights, read_initial_weights
from dspreg.training.kept_features import FeatureCache, compute_features, why_not_kept
from dspreg.training.optimizers import learning_rates, make_optimizer
from dspreg.training.parts import digests, evaluated_parts, images_for_test, randomness_key, split_domain
from dspreg.training.preconditions import (
    check_metric,
    check_splits,
    require_held_out,
    require_plain_selection,
    require_plain_training,
)
from dspreg.training.trained_part import entry_masks, freeze, read_profile, require_trainable

Shown = Transform | Unchanged
Progress = Callable[[int, int], None]


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
    on_read: Callable[[], None] = lambda: None  # called while files are hashed; may raise
    head: TextHead | None = None  # that the classifier starts as
    profile: Profile | None = None  # of which the entries that are trained are chosen
    profile_sha256: str = ""
    start: InitialWeights | None = None  # instead of the backbone's own
    inputs: Unchanged | None = None  # shape and type, where they are tensors
    kept: dict[str, XY] = field(default_factory=dict, init=False, compare=False)  # features by domain
    parts: dict[tuple[str, str, Shown], DomainSplit] = field(default_factory=dict, init=False, compare=False)
    # domain → SHA-256 of each image, known with the fingerprints
    hashes: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list), init=False, compare=False)

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(name for name in self.data.domains if name not in self.settings.targets)

    @property
    def key(self) -> tuple[Key, ...]:
        """The key of all randomness; see `randomness_key`."""
        return randomness_key(self.data.name, self.settings)

    @property
    def workers(self) -> int:
        """Processes that read images; none where features are read from memory."""
        return 0 if self.keeps_features else self._image_workers

    @property
    def _image_workers(self) -> int:
        return reader_processes(self.execution.workers, self.data.small)

    @cached_property
    def fingerprints(self) -> dict[str, str]:
        """Fingerprint of every domain; computed once, because it reads all files."""
        return {name: fingerprint(images, self.on_read, self.hashes[name]) for name, images in self.images.items()}

    def trained_images(self) -> TrainedImages:
        """The training splits of the sources, by the contents of their images."""
        hashed: Hashed = "files" if all(isinstance(self.images[name], Images) for name in self.sources) else "pixels"
        _ = self.fingerprints  # which fill `hashes`
        sums: list[str] = []
        for name in self.sources:
            images, inside = self.images[name], self.splits[name][0]
            if hashed == "pixels" and isinstance(images, Images):  # a data set of one's own may mix them
                sums += content_hashes(images, inside, pixels=True)
            else:
                sums += [self.hashes[name][i] for i in inside]
        return TrainedImages.of(hashed, sums)

    def file_hashes(self) -> set[str]:
        """SHA-256 of every image file."""
        files = [each for each in self.images.values() if isinstance(each, Images) and self.fingerprints]
        return {sha for each in files for sha in each.hashes}

    @cached_property
    def epoch(self) -> int:
        sizes = [len(self.splits[name][0]) for name in self.sources]
        return steps_per_epoch(sizes, self.settings.batch_size * len(sizes))

    @cached_property
    def tests(self) -> dict[str, list[int]]:
        """Domain → positions of the images that its table sets apart for testing; no domain without any."""
        found = {name: images_for_test(images, self.settings) for name, images in self.images.items()}
        return {name: positions for name, positions in found.items() if positions}

    @cached_property
    def loss_weights(self) -> list[Tensor] | None:
        """Of the training splits of the sources, the weight of each image in the loss; None: all count the same."""
        said = self.settings.image_weights
        given = {name: annotations_of(self.images[name]).weights if said else None for name in self.sources}
        balance = self.settings.balance == "loss"
        if not balance and all(each is None for each in given.values()):
            return None
        parts = {name: self.part(name, "in", self.transform(self.settings.augment)) for name in self.sources}
        labels = {name: part.labels if balance else [0] * len(part) for name, part in parts.items()}
        weights = {n: None if each is None else [each[i] for i in parts[n].positions] for n, each in given.items()}
        return image_weights(labels, weights, balance=balance)

    def batch_weights(self, t: int) -> Sequence[Tensor | None]:
        """Of each source, the weights of the images of step t, on the device."""
        if self.loss_weights is None:
            return [None] * len(self.sources)
        chosen = self.steps().chosen(t)
        return [send(w[at], self.execution.device) for w, at in zip(self.loss_weights, chosen, strict=True)]

    def part(self, domain: str, which: str, transform: Shown) -> DomainSplit:
        """A split of a domain: the same object whenever it is asked for, so that readers know it."""
        positions = self.tests[domain] if which == "test" else self.splits[domain][("in", "out").index(which)]
        return self.parts.setdefault(
            (domain, which, transform),
            DomainSplit(
                domain, self.images[domain], positions, transform, self.kept, self.data.kind, self.data.num_classes
            ),
        )

    @cached_property
    def keeps_features(self) -> bool:
        """Whether the backbone is frozen and its features are computed once, by `keep_features`."""
        return (
            self.settings.train == "head" and why_not_kept(self.settings, self.execution, layers_of(self.stack)) is None
        )

    def keep_features(
        self, pause: Callable[[], None] = lambda: None, on_wait: Callable[[], None] = lambda: None
    ) -> None:
        """Compute the features of all images, or find them in the user's cache; from then on, parts consist of them."""
        with seeded(*self.key, "backbone"):
            made = self.backbone.make()  # of the user's own, no features are kept
            featurizer = (made.featurizer if isinstance(made, Network) else made).to(self.execution.device)
        s, transform = self.settings, self.transform("none")
        stored = None
        if self.start is not None:
            self.start.load_features_into(featurizer)
        elif self.backbone.weights.sha256 and self.execution.cache != "none":
            about = {"model": s.model, "features": s.features, "image_size": s.image_size, "batch": s.evaluation_batch}
            about |= {name: v for name in READ if (v := getattr(s, name)) != TRAIN_OPTIONS[name].before}
            stored = FeatureCache(self.backbone, **about, environment=environment(self.execution))
        kind, count = self.data.kind, self.data.num_classes
        parts = [
            DomainSplit(name, each, range(len(each)), transform, kind=kind, num_classes=count)
            for name, each in self.images.items()
        ]
        with ReaderPool(self._image_workers, parts) as readers:
            for part in parts:
                found = stored.find(self.fingerprints[part.domain]) if stored else None
                if found is None:
                    options = (s.evaluation_batch, self.execution.device, readers, pause, on_wait)
                    found = compute_features(part, featurizer, *options)
                    if stored:
                        stored.keep(self.fingerprints[part.domain], found)
                self.kept[part.domain] = found

    def reader_pool(self) -> ReaderPool:
        """Processes that read images for all of a training: steps, evaluations, and what c is measured on."""
        s = self.settings
        shown = [self.transform(augment) for augment in dict.fromkeys(("none", s.augment, s.validation_augment))]
        every = [self.part(name, which, each) for name in self.images for which in ("in", "out") for each in shown]
        every += [self.part(name, "test", shown[0]) for name in self.tests]
        if self.settings.balance == "sampling":
            for part in every:
                _ = part.by_class  # before there are processes, which then have it
        return ReaderPool(self.workers, every)

    def transform(self, augment: str) -> Shown:
        if self.inputs is not None:
            return self.inputs
        s, last = self.settings, self.execution.layout == CHANNELS_LAST
        return Transform(s.image_size, self.backbone.mean, self.backbone.std, augment, last, s.resize, s.reading)

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
        parts = [self.part(name, "in", self.transform("none")) for name in self.sources]
        workers = self.workers if readers is None else readers
        samples = MeasureSampler(parts, self.key, self.execution.device, workers, on_wait)
        adapted: list[Network] = []

        def adapt(net: Network) -> None:
            self.adapt(net)
            adapted.append(net)

        task = Task(
            self.data.num_classes, self.sources, self.epoch, self._network, self.key, samples, on_progress, adapt,
            self.data.kind,
        )  # fmt: skip
        s, algorithm = self.settings, self.stack.build()

        def optimizer(params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
            return make_optimizer(params, algorithm.net, s, self.execution.device)

        algorithm.setup(task, optimizer, self.execution.device)
        if self.start is not None and not adapted:
            raise ConfigError(f"{s.algorithm} builds a network of its own, which can't start from --init; leave it out")
        if (rates := learning_rates(s)) is not None:
            algorithm.stack.follow(rates)
        if self.profile is not None:
            algorithm.stack.train_entries(entry_masks(self.profile, s.part, algorithm.net, self.key))
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

    def adapt(self, net: Network) -> None:
        """Make of a new network what is trained: the weights it starts from, frozen parts, adapters, the classifier."""
        if self.start is not None:
            self.start.load_into(net, self.data.classes)
        freeze(net, self.settings.part, self.settings.model)
        if self.head is not None:
            self.head.start(net, self.data.classes)

    def steps(self) -> TrainingSteps:
        shown = self.transform(self.settings.augment)
        parts = [self.part(name, "in", shown) for name in self.sources]
        return TrainingSteps(parts, self.settings.batch_size, self.key, self.settings.balance == "sampling")

    def evaluation_parts(self, last: bool) -> list[tuple[str, str, DomainSplit]]:
        """Domain, split and images of everything that one evaluation covers.

        Source validation selects. The target's "in" split is reported; its "out" split is for oracle selection, and
        evaluated at the last step only. What a table sets apart as "test" is always reported.
        """
        s, chosen = self.settings, []
        for name, which in evaluated_parts(self.data.domains, s, last=last):
            shown = self.transform("none" if name in s.targets else s.validation_augment)
            chosen.append((name, which, self.part(name, which, shown)))
        return chosen + [(name, "test", self.part(name, "test", self.transform("none"))) for name in self.tests]

    def autocast(self) -> AbstractContextManager[Any]:
        return autocast(self.execution.precision, self.execution.device)

    @property
    def weights(self) -> dict[str, Any]:
        """The weights, for every record. A file is identified by its SHA-256, since its name may change."""
        found = asdict(self.backbone.weights)
        return found | {"tag": "file"} if found["source"] == "file" else found

    def _name_by_contents(self, file: str) -> str:
        """What records have for the file of a head or a profile; weights have an entry of their own."""
        hashes = {self.settings.head: self.head.sha256} if self.head is not None else {}
        if self.start is not None:
            hashes[self.settings.init] = self.start.sha256
        if self.profile is not None:
            hashes[self.settings.part.file] = self.profile_sha256
        return named_by_contents(hashes[file]) if file in hashes else file

    def description(self, plan: Mapping[str, Any] | None = None) -> RunDescription:
        """Everything that decides the result, without paths; and separately the location of files and the execution.

        Args:
            plan: The run of a sweep, as JSON.
        """
        s, data = self.settings, self.data
        by_name = s.to_record()
        where = {"dataset": s.dataset, "weights": s.weights, **files_of(by_name), **asdict(self.execution)}
        where["precision"] = self.execution.recorded_precision
        where |= {"plan": dict(plan)} if plan else {}
        where["algorithm"] = str(self.asked.shorten())  # tables put all draws of a method into one row
        return RunDescription(
            settings=with_files(by_name, self._name_by_contents)
            | {
                "algorithm": self.stack.for_file(),
                "dataset": data.name,
                "targets": list(s.targets),
                "weights": self.weights["tag"],
            },
            domains=tuple(data.domains),
            classes=tuple(data.classes),
            kind=data.kind,
            sizes={name: {"in": len(inside), "out": len(out)} | self._test_size(name)
                   for name, (inside, out) in self.splits.items()},
            fingerprints=self.fingerprints,
            annotations=digests(self.images, s),
            weights=self.weights,
            environment=environment(self.execution),
            where=where,
        )  # fmt: skip

    def _test_size(self, name: str) -> dict[str, int]:
        return {"test": len(self.tests[name])} if name in self.tests else {}


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
    data.read_as(config.reading)
    require_augmentation(config.augment)
    for name in config.targets:
        data.check_domain(name)
    head = read_text_head(config.head) if config.head != "random" else None
    profile, profile_sha256 = read_profile(config)
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
    require_plain_selection(config, execution, data)
    require_plain_training(config)
    targets = tuple(name for name in data.domains if name in config.targets)  # in the data set's own order
    config = replace(config, algorithm=str(stack), targets=targets)
    if len(targets) == len(data.domains):
        raise ConfigError(f"every domain of {data.name} is a target ({', '.join(targets)}); leave some to train on")
    layers = layers_of(stack)
    require_trainable(config, layers)
    execution = resolve_execution(execution, config.algorithm)
    if why := why_not_kept(config, execution, layers):
        warnings.warn(f"features of the frozen backbone are computed anew at every step: {why}", Notice, stacklevel=2)
    chosen, cache = open_chosen_cache(execution.cache, data, config.image_size)
    execution = replace(execution, cache=chosen.kind)
    images = {name: data.domain(name) for name in data.domains}
    splits = {name: split_domain(each, config, position) for position, (name, each) in enumerate(images.items())}
    check_splits(data, images, splits, config)
    check_metric(images, splits, config)
    require_held_out(stack, config, execution)
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
        channels=config.channels,
        features=config.features,
    )
    if begun_in is not None:
        execution = keep_begun(execution, begun_in)
    else:
        execution = choose_layout(choose_folding(execution, config, backbone), config, threads(execution))
    start = read_initial_weights(config, backbone)
    inputs = unchanged_inputs(data) if data.tensors else None
    experiment = Experiment(
        config, execution, asked, stack, data, images, splits, backbone, on_read, head, profile, profile_sha256, start,
        inputs=inputs,
    )  # fmt: skip
    if experiment.loss_weights is not None:
        require_weightable(layers_of(stack))
    if start is not None:
        start.require_unseen({name: experiment.fingerprints[name] for name in targets})
    files = [each for each in images.values() if isinstance(each, Images)]
    if cache is not None and chosen.needed:
        cache.make_room(chosen.needed, experiment.file_hashes())
    if execution.check_images == "once" and len(files) == len(images):  # others are in memory, or classes of the user
        check_once(data, experiment.fingerprints.values(), progress, cache, begun=begun is not None)
    for each in files:
        each.cache = cache
    return experiment if config.channels == 3 else normalised_by_sources(experiment)


def normalised_by_sources(experiment: Experiment) -> Experiment:
    """With mean and standard deviation of each channel over the sources' training images, as the network sees them.

    Exact sums of whole numbers: no order, number of processes or device changes a bit.
    """
    parts = [experiment.part(name, "in", experiment.transform("none")) for name in experiment.sources]
    batches = SequentialBatches(parts, experiment.settings.evaluation_batch)
    with closing(iterate_batches(batches, batches.order(), experiment.workers, experiment.on_read)) as read:
        mean, std = channel_statistics(x for x, _ in read)
    made = replace(experiment, backbone=replace(experiment.backbone, mean=mean, std=std))
    vars(made)["fingerprints"] = experiment.fingerprints  # for which all files were read
    made.hashes.update(experiment.hashes)
    return made


def resolve_stack(asked: StackSpec, config: TrainConfig) -> tuple[StackSpec, list[str]]:
    """The method with its options drawn and scaled for the run, and a sentence about each scaled option."""
    seed = search_seed(config.draw, config.trial, config.same_draws) if config.draw else None
    return asked.resolve(seed=seed, steps=config.steps, settings=asdict(config))
