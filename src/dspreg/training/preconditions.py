"""What is refused, or warned of, before a training: options that do not go together, and data too few for it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from dspreg.algorithms.compatibility import overrides
from dspreg.algorithms.registry import StackSpec
from dspreg.config.train_config import TRAIN_OPTIONS, Execution, TrainConfig
from dspreg.data import DomainDataset
from dspreg.data.annotations import TRAIN, annotations_of
from dspreg.data.base import labels_of
from dspreg.data.splits import parts_of
from dspreg.errors import ConfigError, DataError, Notice
from dspreg.io.text import join_few
from dspreg.kinds import CLASSES
from dspreg.metrics import ACCURACY
from dspreg.networks.own import is_own_network
from dspreg.training.execution import layers_of


def require_plain_training(config: TrainConfig) -> None:
    """Refuse options that know the insides of timm's networks, or their weights, for one of the user's own."""
    if not is_own_network(config.model):
        return
    if config.weights == "none":
        raise ConfigError(f"--weights none is for networks with pretrained weights; {config.model} is as you create it")
    for name in ("train", "head", "features", "layer_decay", "init"):
        if getattr(config, name) != TRAIN_OPTIONS[name].before:
            flag = name.replace("_", "-")
            raise ConfigError(f"--{flag} is for timm's networks, and {config.model} is your own; leave it out")


def require_plain_selection(config: TrainConfig, execution: Execution, data: DomainDataset) -> None:
    """Refuse options that are about classes, for another kind of task."""
    if data.kind == CLASSES:
        return
    asked = {f"--split {config.split}": config.split != "domainbed", "--select-by": config.select_by != ACCURACY}
    asked |= {"--balance": config.balance != "none", "--head": config.head != "random"}
    asked["--domainbed-records"] = execution.domainbed_records
    for flag, given in asked.items():
        if given:
            raise ConfigError(f"{flag} is about classes, and {data.name} is of the kind {data.kind!r}; leave it out")


def check_splits(
    data: DomainDataset,
    images: Mapping[str, Sequence[Any]],
    splits: Mapping[str, tuple[list[int], list[int]]],
    config: TrainConfig,
) -> None:
    """Refuse a domain without training or validation images, and warn of a source smaller than a batch."""
    for name, (inside, out) in splits.items():
        if not inside or not (out or config.holdout == 0):
            raise DataError(
                f"the domain {name!r} of {data.name} has {len(inside) + len(out)} images; holding out {config.holdout} "
                f"of them leaves {len(inside)} to train on and {len(out)} to validate with. Add images, or change "
                "holdout"
            )
        said = annotations_of(images[name])
        if name not in config.targets and len(inside) < config.batch_size:
            warnings.warn(
                f"the domain {name!r} has {len(inside)} images to train on, fewer than the batch of "
                f"{config.batch_size}: images repeat within a batch",
                Notice,
                stacklevel=3,
            )
        if config.split != "grouped":
            if said.splits:
                text = f"the domain {name!r}: groups and parts that its images have are not used with --split "
                warnings.warn(f"{text}{config.split}; --split grouped uses them", Notice, stacklevel=3)
            continue
        if name in config.targets:
            continue
        if not any(part in (TRAIN, "") for part in parts_of(said, len(images[name]))):
            raise DataError(
                f"the domain {name!r} of {data.name} has no image to train on: its table has all of them for "
                "validation or test. It can be a target alone: --target"
            )
        if said.groups is not None:
            groups = said.groups
            torn = {groups[i] for i in inside} & {groups[i] for i in out} - {""}
            if torn:
                raise DataError(
                    f"the images of the domain {name!r} of {data.name} that are there to train on are of one group, "
                    f"{min(torn)!r}, so that none can be held out for validation without it. Add images of another "
                    "group, leave the domain out, or make it the target"
                )


def check_metric(
    images: Mapping[str, Sequence[Any]], splits: Mapping[str, tuple[list[int], list[int]]], config: TrainConfig
) -> None:
    """Refuse to select by a metric that no source's held-out images have."""
    if config.select_by != "auroc":
        return
    sources = [name for name in images if name not in config.targets]
    labels = {name: labels_of(images[name]) for name in sources}
    if all(len({labels[name][i] for i in splits[name][1]}) < 2 for name in sources):
        raise DataError(
            f"select_by=auroc needs held-out images of two classes, and those of {join_few(sources)} have one each. "
            "Hold out more of them, split them by class (--split stratified), or select by another metric"
        )


def require_held_out(stack: StackSpec, config: TrainConfig, execution: Execution) -> None:
    """Refuse layers and records that look at held-out images where none are held out."""
    if config.holdout:
        return
    if execution.domainbed_records:
        raise ConfigError("--domainbed-records has the accuracy on held-out images, and --holdout 0 holds none out")
    for layer in layers_of(stack):
        if overrides(type(layer), "on_evaluation") or overrides(type(layer), "before_evaluation"):
            raise ConfigError(
                f"{type(layer).__name__} decides by held-out images of the sources, and holdout=0 holds none out. Use "
                "another method for the final model, such as SWA, or hold some out"
            )
