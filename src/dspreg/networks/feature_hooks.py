"""Places inside a featurizer, and listening to the features that pass there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from dspreg.errors import ConfigError
from dspreg.io.text import did_you_mean
from dspreg.networks.stages import timm_model
from dspreg.networks.timm_models import UNFIT

SIZES = (224, 32, 28, 64, 96, 112, 128, 160, 192, 240, 256, 288, 299, 320, 336, 384, 448, 512)  # of images, to be tried
Net = TypeVar("Net", bound=nn.Module)


@dataclass
class CapturedFeatures:
    """What passed through a featurizer, one entry per call."""

    inputs: list[Tensor] = field(default_factory=list)
    features: dict[str, list[Any]] = field(default_factory=dict)  # by place, in the order in which they spoke


@contextmanager
def capture_features(featurizer: nn.Module, places: Sequence[str]) -> Iterator[CapturedFeatures]:
    """Inside, what goes into `featurizer` and what comes out at `places` is kept. No hook stays on the network."""
    heard = CapturedFeatures()
    handles = [featurizer.register_forward_pre_hook(lambda _, args: heard.inputs.append(args[0]))]
    try:
        for place in places:
            module = featurizer.get_submodule(place)
            handles.append(
                module.register_forward_hook(
                    lambda _, __, out, place=place: heard.features.setdefault(place, []).append(out)
                )
            )
        yield heard
    finally:
        for handle in handles:
            handle.remove()


def default_places(featurizer: nn.Module) -> tuple[str, ...]:
    """Behind the stem and behind every stage, by name.

    A timm model says itself where these are; the stem of its ResNets includes the max-pool, and of a transformer the
    patches are the stem and every quarter of the blocks is a stage. In other networks a stage is the children in a row
    whose outputs have the same shape, the first of them with weights, without dropout.
    """
    model = timm_model(featurizer)
    if model is None:
        return _stages(featurizer)
    names = [stage["module"] for stage in model.stages]
    if len({stage["reduction"] for stage in model.stages}) == 1:
        quarters = [names[-(-len(names) * quarter // 4) - 1] for quarter in range(1, 5)]
        names = ["patch_embed"] * hasattr(model.module, "patch_embed") + quarters
    elif names[0] == "act1" and hasattr(model.module, "maxpool"):
        names[0] = "maxpool"
    return tuple(f"{model.prefix}.{name}".lstrip(".") for name in names)


def _stages(featurizer: nn.Module) -> tuple[str, ...]:
    prefix, trunk = "", featurizer
    while len(inner := [(n, m) for n, m in trunk.named_children() if _weighs(m)]) == 1 and list(inner[0][1].children()):
        prefix, trunk = f"{prefix}{inner[0][0]}.", inner[0][1]
    places: list[str] = []
    stage: torch.Size | None = None
    for place, features in probe_outputs(featurizer, [prefix + name for name, _ in trunk.named_children()]).items():
        module, shape = featurizer.get_submodule(place), features.shape[1:]
        if shape != stage and _weighs(module):
            places.append(place)
            stage = shape
        elif shape == stage and not isinstance(module, _DropoutNd):
            places[-1] = place
    return tuple(places)


def _weighs(module: nn.Module) -> bool:
    return any(True for _ in module.parameters())


def require_places(featurizer: nn.Module, places: Sequence[str], who: str) -> None:
    """Names of modules, at least one."""
    known = [name for name, _ in featurizer.named_modules() if name]
    for place in places:
        if place not in known:
            raise ConfigError(
                f"{who}: the featurizer has no place {place!r}.{did_you_mean(place, known)} Wanted names of "
                "net.featurizer.named_modules()"
            )
    if not places:
        raise ConfigError(f"{who}: no places; wanted at least one name of net.featurizer.named_modules()")


def frozen_copy(featurizer: Net) -> Net:
    """A copy in evaluation mode, without what layers have hooked onto the outputs of its modules."""
    copy = deepcopy(featurizer).eval()
    for module in copy.modules():
        module._forward_hooks.clear()  # a hook that came along would not know that its copy no longer trains
    return copy


def probe_outputs(featurizer: nn.Module, places: Sequence[str]) -> dict[str, Tensor]:
    """What comes out at the places for one input of zeros, of the first shape that goes through."""
    first = next((m for m in featurizer.modules() if isinstance(m, nn.Conv2d | nn.Linear)), None)
    if first is None:
        raise ConfigError(
            f"{type(featurizer).__name__} has no nn.Conv2d or nn.Linear, which tell the shape of its inputs; "
            "take a network with one, or leave out MIRO and GMDG, which compare features inside of it"
        )
    if isinstance(first, nn.Linear):
        shapes: list[tuple[int, ...]] = [(1, first.in_features)]
    else:
        shapes = [(1, first.in_channels, size, size) for size in SIZES]
    copy = frozen_copy(featurizer)
    for shape in shapes:
        with torch.no_grad(), capture_features(copy, places) as heard:
            try:
                copy(torch.zeros(shape, dtype=first.weight.dtype, device=first.weight.device))
            except UNFIT:
                continue
        for place, features in heard.features.items():
            if not isinstance(features[0], Tensor):
                raise ConfigError(
                    f"at {place!r} a {type(features[0]).__name__} comes out; wanted a place with a tensor"
                )
        return {place: features[0] for place, features in heard.features.items()}
    raise ConfigError(f"no square image of {SIZES[1]} to {SIZES[-1]} pixels goes through {type(featurizer).__name__}")
