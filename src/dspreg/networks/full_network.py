"""Networks with their heads, for `dspreg measure`: `small-cnn`, timm's, torchvision's, or a factory function's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from torch import nn

from dspreg.errors import ConfigError
from dspreg.io.importing import import_object
from dspreg.io.text import nearest
from dspreg.networks import torchvision_models
from dspreg.networks.backbones import SmallCNN
from dspreg.networks.hub import download_weights
from dspreg.networks.lean_imports import import_timm
from dspreg.networks.network import Network
from dspreg.networks.own import call_factory, is_own_network
from dspreg.networks.pretrained import IMAGENET, NO_WEIGHTS, PerChannel, make_backbone
from dspreg.networks.timm_models import (
    create_with_head,
    heads_of,
    hub_location,
    load_pretrained,
    normalisation,
    pretrained_config,
)
from dspreg.networks.weights import Weights, count_outputs, load_file
from dspreg.randomness import Key, seeded


@dataclass(frozen=True)
class FullNetwork:
    """A network by name, with the normalisation it expects and the origin of its weights."""

    name: str
    net: nn.Module
    mean: PerChannel  # of the images it expects
    std: PerChannel
    weights: Weights
    head: str  # "new" (randomly initialised) or its "own": from the file, the hub or the factory function
    outputs: int | None = None  # None: unknown before the first forward pass


def make_full_network(
    name: str,
    *,
    weights: str = "default",
    image_size: int = 224,
    classes: int | None = None,
    labels: bool = True,
    key: Key = 0,
) -> FullNetwork:
    """A network with its head.

    Args:
        name: `"small-cnn"`, a timm network with or without a tag (`"resnet50.tv_in1k"`), a torchvision network
            (`"torchvision.resnet50"`), or the import path of a function or class of yours that is called without
            arguments and returns an nn.Module. timm's names take precedence over import paths.
        weights: A safetensors file, `"none"`, or `"default"`: timm's from the hub, your own network's as created.
        image_size: Height and width of the images in pixels.
        classes: Number of classes of the data, if they have labels.
        labels: Whether labels are used, so that the head must have `classes` outputs: a file's head is used if it has
            that many, and is new otherwise, as in training. Without labels, a file's head is always used.
        key: Seed of whatever is initialised at random: a new head, or the whole network from scratch.

    Raises:
        ConfigError: No such name, tag, file or size, or a function that returns something else.
        IntegrityError: The file is damaged, a pickle, or for another network.
        ResourceError: The hub cannot be reached, or does not have the file.
    """
    wanted = classes if labels else None
    with seeded("measure", key, "network"):
        if name == "small-cnn":
            return _small_cnn(weights, image_size, classes)
        if name.startswith(torchvision_models.PREFIX):
            return _torchvision(name, weights, image_size, wanted, classes)
        if is_own_network(name):
            return _from_factory(name, weights)
        return _timm(name, weights, image_size, wanted, classes)


def _timm(name: str, weights: str, image_size: int, wanted: int | None, classes: int | None) -> FullNetwork:
    config = pretrained_config(name)
    if weights == "none":
        net, source, outputs, new = create_with_head(name, image_size, classes)[0], NO_WEIGHTS, classes, True
    else:
        if weights == "default":
            repo, tag = hub_location(name, config)
            path, kind = download_weights(repo, tag), "hub"
        else:
            path = Path(weights).expanduser()
            tag, kind = path.name, "file"
        outputs, new = _head(path, heads_of(config and config.to_dict()), wanted, classes)
        net, sha256 = load_pretrained(name, image_size, path, outputs, new_head=new)
        source = Weights(kind, tag, sha256)
    mean, std = normalisation(net)
    return FullNetwork(
        name, net, mean, std, source, "new" if new else "own", outputs or getattr(net, "num_classes", None)
    )


def _torchvision(name: str, weights: str, image_size: int, wanted: int | None, classes: int | None) -> FullNetwork:
    bare = name.removeprefix(torchvision_models.PREFIX)
    if weights == "none":
        net, source, outputs, new = (
            torchvision_models.create_network(bare, image_size, classes),
            NO_WEIGHTS,
            classes,
            True,
        )
    elif weights == "default":
        torchvision_models.create_network(bare, image_size, classes)  # first, so that a wrong name is reported as such
        raise ConfigError(
            f"torchvision publishes the weights of {bare} as a pickle, which can run any code and is not opened. Give "
            f"a safetensors file of them with --weights FILE, or --weights none, or timm's network with torchvision's "
            f"weights where there is one, such as resnet50.tv_in1k"
        )
    else:
        path, heads = Path(weights).expanduser(), torchvision_models.heads_of(bare, image_size)
        outputs, new = _head(path, heads, wanted, classes)
        net = torchvision_models.create_network(bare, image_size, outputs)
        source = Weights("file", path.name, load_file(net, name, path, heads, new_head=new))
    mean, std = torchvision_models.normalisation(bare)
    return FullNetwork(name, net, mean, std, source, "new" if new else "own", outputs or 1000)


def _head(path: Path, heads: tuple[str, ...], wanted: int | None, classes: int | None) -> tuple[int | None, bool]:
    """Number of outputs (None: the architecture's default), and whether the head is new: not in the file."""
    in_file = count_outputs(path, heads)
    if in_file is not None and wanted in (None, in_file):
        return in_file, False
    return classes, True


def _small_cnn(weights: str, image_size: int, classes: int | None) -> FullNetwork:
    if classes is None:
        raise ConfigError("small-cnn has no outputs of its own; give images in class folders, domain/class/image")
    backbone = make_backbone("small-cnn", weights=weights, image_size=image_size)
    features = cast(SmallCNN, backbone.make())
    net = Network(features, nn.Linear(features.width, classes))
    return FullNetwork("small-cnn", net, backbone.mean, backbone.std, backbone.weights, "new", classes)


def _from_factory(name: str, weights: str) -> FullNetwork:
    net = call_factory(name, _import_factory(name))
    source = NO_WEIGHTS
    if weights not in ("default", "none"):
        path = Path(weights).expanduser()
        source = Weights("file", path.name, load_file(net, name, path))
    mean, std = normalisation(net) if getattr(net, "pretrained_cfg", None) else IMAGENET
    return FullNetwork(name, net, mean, std, source, "own")


def _import_factory(name: str) -> Any:
    try:
        return import_object(name)
    except ConfigError as error:
        near = nearest(name.partition(".")[0], import_timm().list_models(), 0.7)
        hint = f" Or did you mean timm's {near!r}?" if near and "no module" in str(error) else ""
        raise ConfigError(f"{error}{hint}") from error
