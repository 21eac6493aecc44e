"""Where a convolutional network has feature maps that still look like the image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from dspreg.networks.network import Featurizer

EARLY = (4, 8)  # the image's side over that of the map: the first two stages of a ResNet


def early_stages(featurizer: Featurizer) -> tuple[str, ...]:
    """Names of the modules that end the first two stages; none if the network is not known to have stages.

    Its own word, `featurizer.stages`, comes first; then timm's, and then the names that ResNets share.
    """
    own: tuple[str, ...] = getattr(featurizer, "stages", ())  # any module with a `width` may be a featurizer
    if own:
        return own
    if model := timm_model(featurizer):
        return tuple(model.name(each) for each in model.stages if each["reduction"] in EARLY)
    return tuple(name for name, _ in featurizer.named_modules() if name.rpartition(".")[2] in ("layer1", "layer2"))


def map_stages(featurizer: Featurizer) -> tuple[str, ...]:
    """Names of the modules that end a stage of feature maps, the stem left out; none if they are not known by name.

    Of timm's models those at a quarter of the image's side or less, and the four of ResNets of any origin.
    """
    if model := timm_model(featurizer):
        reductions = {each["reduction"] for each in model.stages}
        if len(reductions) == 1:
            return ()  # a transformer: tokens
        return tuple(model.name(each) for each in model.stages if each["reduction"] >= min(EARLY))
    names = [f"layer{i}" for i in range(1, 5)]
    return tuple(name for name, _ in featurizer.named_modules() if name.rpartition(".")[2] in names)


def channels_at(featurizer: Featurizer, place: str) -> int | None:
    """How many channels the map there has, where timm says so."""
    model = timm_model(featurizer)
    known = {model.name(each): int(each["num_chs"]) for each in model.stages} if model else {}
    return known.get(place)


@dataclass(frozen=True)
class TimmModel:
    """A timm model inside a featurizer."""

    prefix: str
    module: nn.Module
    stages: list[dict[str, Any]]  # of each the name of its last module, its reduction and its channels

    def name(self, stage: dict[str, Any]) -> str:
        return f"{self.prefix}.{stage['module']}".lstrip(".")


def timm_model(featurizer: nn.Module) -> TimmModel | None:
    """The model that says where its stages end."""
    for prefix, module in featurizer.named_modules():
        info: Any = getattr(module, "feature_info", None)
        if isinstance(info, list):  # blocks of EfficientNets have a method of that name
            return TimmModel(prefix, module, info)
    return None
