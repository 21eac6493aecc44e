"""Where a convolutional network has feature maps that still look like the image."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dspreg.networks.network import Featurizer

EARLY = (4, 8)  # the image's side over that of the map: the first two stages of a ResNet


def early_stages(featurizer: Featurizer) -> tuple[str, ...]:
    """Names of the modules that end the first two stages; none if the network is not known to have stages.

    Its own word, `featurizer.stages`, comes first; then timm's, and then the names that ResNets share.
    """
    own: tuple[str, ...] = getattr(featurizer, "stages", ())  # any module with a `width` may be a featurizer
    if own:
        return own
    known = dict(timm_maps(featurizer))
    if known:
        return tuple(name for name, (reduction, _) in known.items() if reduction in EARLY)
    return tuple(name for name, _ in featurizer.named_modules() if name.rpartition(".")[2] in ("layer1", "layer2"))


def channels_at(featurizer: Featurizer, place: str) -> int | None:
    """How many channels the map there has, where timm says so."""
    return dict(timm_maps(featurizer)).get(place, (0, None))[1]


def timm_maps(featurizer: Featurizer) -> Iterator[tuple[str, tuple[int, int]]]:
    """Module names of a timm model inside, with the reduction and the channels of their outputs."""
    for prefix, module in featurizer.named_modules():
        info: Any = getattr(module, "feature_info", None)
        for each in info if isinstance(info, list) else ():  # blocks of EfficientNets have a method of that name
            yield f"{prefix}.{each['module']}".lstrip("."), (each["reduction"], each["num_chs"])
