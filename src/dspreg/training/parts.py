"""Which images of a data set are for what: training, validation and test, and what an evaluation covers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dspreg.config.train_config import TrainConfig
from dspreg.data.annotations import annotations_of
from dspreg.data.base import labels_of
from dspreg.data.splits import positions_of_test, split, split_grouped, split_stratified
from dspreg.randomness import Key


def split_domain(images: Sequence[Any], config: TrainConfig, position: int) -> tuple[list[int], list[int]]:
    """Positions of the "in" and "out" images of the `position`-th domain of a data set."""
    if config.split == "grouped":
        said = annotations_of(images)
        return split_grouped(labels_of(images), said, config.trial, position, config.holdout)
    if config.split == "stratified":
        return split_stratified(labels_of(images), config.trial, position, config.holdout)
    return split(len(images), config.trial, position, config.holdout)


def images_for_test(images: Sequence[Any], config: TrainConfig) -> list[int]:
    """Positions of the images of a domain that its table sets apart: never trained on, never validated with."""
    return positions_of_test(annotations_of(images), len(images)) if config.split == "grouped" else []


def evaluated_parts(domains: Sequence[str], config: TrainConfig, *, last: bool) -> list[tuple[str, str]]:
    """Domain and split of everything that one evaluation covers; see `Experiment.evaluation_parts`."""
    return [
        (name, which)
        for name in domains
        for which in (("in", "out") if config.holdout else ("in",))
        if config.evaluate == "all"
        or which == ("in" if name in config.targets else "out")
        or (name in config.targets and last)
    ]


def digests(images: Mapping[str, Sequence[Any]], config: TrainConfig) -> dict[str, str]:
    """Of every domain with groups, parts or weights that the training uses, their SHA-256."""
    used = {"splits": config.split == "grouped", "weights": config.image_weights}
    found = {name: annotations_of(each).digest(**used) for name, each in images.items()}
    return {name: digest for name, digest in found.items() if digest}


def randomness_key(data: str, config: TrainConfig) -> tuple[Key, ...]:
    """The key of all randomness of a training.

    Never the algorithm, a path or a fingerprint, so that all methods of one trial see the same batches.

    Args:
        data: Name of the data set.
        config: Targets in the data set's order.
    """
    return (data, config.targets, config.trial, config.draw)
