"""An algorithm of DomainBed, or of a fork of it, as the bottom of a stack."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from dspreg.algorithms.base import ERM, Direction, Log
from dspreg.algorithms.compatibility import ONLY_CLASSES, Compatibility
from dspreg.algorithms.foreign_state import restore_attributes, saved_attributes_of
from dspreg.algorithms.task import Task
from dspreg.batches import Batch
from dspreg.errors import ConfigError
from dspreg.io.domainbed_code import SMALL_IMAGES, DomainBedCode, named_code
from dspreg.io.text import did_you_mean
from dspreg.networks import Featurizer, Network
from dspreg.randomness import Key, seed_for, seeded, untouched

# Options of a training that DomainBed has among its hyper-parameters, by the names there.
SHARED = {
    "lr": "lr",
    "weight_decay": "weight_decay",
    "batch_size": "batch_size",
    "resnet_dropout": "dropout",
    "freeze_bn": "frozen_bn",
    "data_augmentation": "augment",
}


class DomainBed(ERM):
    """A class of DomainBed's algorithms.py, or of a fork's: `domainbed:PATH:Class` on the command line.

    The class has its own loss, update and optimisers. Only layers that do not change a step can stand above it, such
    as EMA and SWA. Images, batches, splits, the backbone and its weights, evaluation, selection, checkpoints and
    records are those of every other method; the linear classifier starts where ERM's does.

    Its hyper-parameters are those of its own registry, drawn with DomainBed's own seeds for a random draw. Learning
    rate, weight decay, batch size, dropout, augmentation and frozen batch norm are those of the training. `hparams`
    overrides single ones. The random numbers of torch, numpy and Python in a step are keyed by the step.

    Args:
        name: Of the class.
        path: Folder of the checkout. It is no part of a run's identity.
        code: SHA-256 of the package's Python files; filled in.
        image_size: Of the images; filled in.
        hparams: Hyper-parameters by DomainBed's names; those left out are filled in.
    """

    compatibility = Compatibility(owns_step=True, kinds=ONLY_CLASSES)
    _code: DomainBedCode

    def __init__(
        self,
        *,
        name: str = "",
        path: str = "",
        code: str = "",
        image_size: int = 0,
        hparams: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if not name:
            raise ConfigError("DomainBed needs the name of a class: 'domainbed:PATH:CORAL'")
        self.name, self.path, self.code, self.image_size, self.hparams = name, path, code, image_size, hparams

    @classmethod
    def fill_options(cls, options: Mapping[str, Any], seed: int | None, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The code's SHA-256 and all hyper-parameters.

        Args:
            options: As the user gave them.
            seed: Of a random draw; None for the defaults.
            settings: All options of the training.
        """
        if "path" not in options:
            return dict(options)
        if settings["channels"] != 3:
            raise ConfigError(f"DomainBed's classes are made for RGB, and channels={settings['channels']}")
        code, name, given = DomainBedCode.open(options["path"]), options["name"], options.get("hparams") or {}
        code.algorithm_class(name)
        dataset = SMALL_IMAGES if settings["model"] == "small-cnn" else settings["dataset"]
        hparams = code.hparams(name, dataset, seed)
        shared = {**settings, "augment": settings["augment"] != "none"}  # yes or no there
        hparams |= {theirs: shared[ours] for theirs, ours in SHARED.items() if theirs in hparams}
        for each in given:
            if each not in hparams:
                known = ", ".join(hparams)
                raise ConfigError(
                    f"{name} of DomainBed has no hyper-parameter {each!r}.{did_you_mean(each, hparams)} It has: {known}"
                )
        return {**options, "code": code.sha256, "image_size": settings["image_size"], "hparams": hparams | dict(given)}

    def build(self, task: Task) -> Network:
        code = DomainBedCode.open(self.path) if self.path else named_code(self.code)
        cls = code.algorithm_class(self.name)
        refuse_cuda_only(cls)
        if self.hparams is None or not self.image_size:
            raise ConfigError("DomainBed's hyper-parameters are filled in by dspreg.train; give hparams and image_size")
        shape = (3, self.image_size, self.image_size)
        self._code = code
        with backbone_of(task, code), seeded_everywhere(*task.key, "build"):
            try:
                method = cls(shape, task.num_classes, task.num_domains, dict(self.hparams))
            except Exception as error:  # its code is the user's, and so are its errors
                raise ConfigError(f"{self.name} of DomainBed can't be made: {type(error).__name__}: {error}") from error
        return DomainBedNetwork(method)

    @property
    def method(self) -> Any:
        """The instance of DomainBed's class."""
        return self.net.featurizer

    def update(self, direction: Direction, batches: Sequence[Batch]) -> Log:  # noqa: ARG002
        """One step of the class: it owns its loss, its gradient and its optimisers."""
        self.task.on_progress()
        # Fish makes a network in every step
        with backbone_of(self.task, self._code), seeded_everywhere(*self.task.key, self.t, "noise"):
            log = self.method.update([(batch.x, batch.y) for batch in batches], None)
        return {str(name): torch.as_tensor(value).detach().float() for name, value in log.items()}

    def get_extra_state(self) -> dict[str, Any]:
        return {**super().get_extra_state(), "attributes": saved_attributes_of(self.method)}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        super().set_extra_state(state)
        restore_attributes(self.method, state["attributes"])


class DomainBedNetwork(Network):
    """What the class predicts. All of its modules count as the featurizer."""

    def __init__(self, method: nn.Module):
        super().__init__(cast(Featurizer, method), nn.Identity())

    def forward(self, x: Tensor) -> Tensor:
        predict = cast(Callable[[Tensor], Tensor], self.featurizer.predict)
        return predict(x)


class DomainBedFeaturizer(nn.Module):
    """A backbone of ours with the attributes that DomainBed's classes expect."""

    def __init__(self, network: Featurizer):
        super().__init__()
        self.network = network
        self.n_outputs = network.width
        self.activation = nn.Identity()  # URM puts a module in its place

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.activation(self.network(x)))


@contextmanager
def backbone_of(task: Task, code: DomainBedCode) -> Iterator[None]:
    """Inside, DomainBed's classes are made with the task's backbone, and with the classifier that ERM starts from."""
    networks, algorithms = code.module("networks"), code.module("algorithms")
    classifier = networks.Classifier

    def make_featurizer(input_shape: Any, hparams: Any) -> nn.Module:  # noqa: ARG001
        with seeded(*task.key, "backbone"):
            features = task.backbone()
        if isinstance(features, Network):
            raise ConfigError("a class of DomainBed makes its own classifier; take a network that returns features")
        return DomainBedFeaturizer(features)

    def make_classifier(*arguments: Any, **options: Any) -> nn.Module:
        with seeded(*task.key, "classifier"):
            return cast(nn.Module, classifier(*arguments, **options))

    before = []
    for module in (networks, algorithms):
        for name, made in (("Featurizer", make_featurizer), ("Classifier", make_classifier)):
            if hasattr(module, name):
                before.append((module, name, getattr(module, name)))
                setattr(module, name, made)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


@contextmanager
def seeded_everywhere(*key: Key) -> Iterator[None]:
    """Inside, the global generators of torch, numpy and Python start from `key`; afterwards they are as before."""
    import random

    with untouched(), seeded(*key):
        random.seed(seed_for(*key))
        np.random.seed(seed_for(*key) % 2**32)
        yield


def refuse_cuda_only(cls: type) -> None:
    """Refuse a class that puts tensors on a GPU whatever its images are on, where there is none."""
    if torch.cuda.is_available():
        return
    lines, start = inspect.getsourcelines(cls)
    for number, line in enumerate(lines, start):
        if ".cuda()" in line.partition("#")[0]:
            raise ConfigError(
                f"{cls.__name__} of DomainBed needs CUDA, which is not here: line {number} of "
                f"{inspect.getsourcefile(cls)} is {line.strip()!r}. Use a machine with a GPU, or let that line "
                "follow the device of its images"
            )
