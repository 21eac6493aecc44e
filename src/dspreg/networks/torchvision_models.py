"""torchvision's image classifiers, with their heads: `torchvision.resnet50`."""

from __future__ import annotations

from typing import Any

from torch import nn

from dspreg.errors import ConfigError
from dspreg.io.text import did_you_mean
from dspreg.networks.lean_imports import import_torchvision_models
from dspreg.networks.shapes import shapes_alone

PREFIX = "torchvision."


def create_network(name: str, image_size: int, num_classes: int | None) -> nn.Module:
    """A new network; `num_classes` None for its default, 1,000."""
    models = import_torchvision_models()
    known = models.list_models(module=models)
    if name not in known:
        raise ConfigError(
            f"torchvision has no network for images called {name!r}.{did_you_mean(name, known)} "
            "Known are those of torchvision.models.list_models(module=torchvision.models)"
        )
    options: dict[str, Any] = {} if num_classes is None else {"num_classes": num_classes}
    if name in ("inception_v3", "googlenet"):
        options["init_weights"] = True  # explicit, because they warn without it
    if name.startswith("vit_"):
        options["image_size"] = image_size  # the others take any size
    try:
        net: nn.Module = models.get_model(name, weights=None, **options)
    except (ValueError, AssertionError, RuntimeError) as error:
        detail = str(error).strip().partition("\n")[0]
        raise ConfigError(f"torchvision.{name} can't be created for images of {image_size} pixels: {detail}") from error
    return net


def heads_of(name: str, image_size: int) -> tuple[str, ...]:
    """The modules with tensors whose shape depends on the number of classes."""
    with shapes_alone():
        first, second = (create_network(name, image_size, classes).state_dict() for classes in (11, 13))
    differing = [tensor for tensor in first if first[tensor].shape != second[tensor].shape]
    return tuple(dict.fromkeys(tensor.rpartition(".")[0] for tensor in differing))


def normalisation(name: str) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """Mean and standard deviation with which its published weights were trained."""
    transforms = next(iter(import_torchvision_models().get_model_weights(name))).transforms()
    return tuple(transforms.mean), tuple(transforms.std)
