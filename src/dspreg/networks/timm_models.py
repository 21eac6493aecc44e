"""timm's networks without their heads: found, made, loaded and tried."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dspreg.errors import ConfigError, IntegrityError
from dspreg.networks.weights import load_file
from dspreg.randomness import untouched

# what a network raises when an image does not go through it
UNFIT = (RuntimeError, ValueError, AssertionError, IndexError, ZeroDivisionError)


def pretrained_config(name: str) -> Any:
    """timm's notes on the pretrained weights of a name, or None where it has none."""
    import timm

    architecture, dot, tag = name.partition(".")
    known = timm.list_models()
    if architecture not in known:
        like = difflib.get_close_matches(name.lower().replace("-", "_"), ["small-cnn", *known], n=4, cutoff=0.5)
        nearest = f" The nearest: {', '.join(like)}." if like else ""
        raise ConfigError(f"no network is called {name!r}.{nearest} Known are small-cnn and all of timm.list_models()")
    try:
        if dot and not tag:
            raise RuntimeError("a dot without a tag")
        return timm.get_pretrained_cfg(name)
    except RuntimeError as error:
        tags = [full.partition(".")[2] for full in timm.list_pretrained(f"{architecture}.*")]
        raise ConfigError(f"{architecture} has no tag {tag!r}; its tags: {', '.join(tags) or 'none'}") from error


def on_the_hub(name: str, config: Any) -> tuple[str, str]:
    """Where the weights of a name are: the repository on the hub, and the name with its tag."""
    if config is None or not config.hf_hub_id:
        raise ConfigError(
            f"timm has no weights for {name} on the hub. Start from scratch with --weights none, or give a "
            "safetensors file with --weights FILE"
        )
    architecture = name.partition(".")[0]
    return config.hf_hub_id, f"{architecture}.{config.tag}" if config.tag else architecture


def create_backbone(name: str, image_size: int | None) -> nn.Module:
    """A fresh network without its head; `None` for the image size it is known for."""
    return create_with_head(name, image_size, 0)[0]


def create_with_head(name: str, image_size: int | None, num_classes: int | None) -> tuple[nn.Module, str]:
    """A fresh network with timm's own head, and the call of timm that makes it.

    Args:
        name: As timm knows it.
        image_size: Of one side in pixels; None for the size it is known for.
        num_classes: Outputs of the head; 0 for a network without, None for as many as it is known for.
    """
    import timm

    classes: dict[str, Any] = {} if num_classes is None else {"num_classes": num_classes}
    call = f"timm.create_model({name!r}" + "".join(f", {option}={value}" for option, value in classes.items())
    if image_size is not None:
        try:
            sized = timm.create_model(name, pretrained=False, **classes, img_size=image_size)
            return sized, f"{call}, img_size={image_size})"
        except TypeError as error:
            if "img_size" not in str(error):  # a network that takes any size does not know the word
                raise
        except UNFIT as error:
            raise _unfit(name, image_size, error) from error
    return timm.create_model(name, pretrained=False, **classes), f"{call})"


def load_pretrained(
    name: str, image_size: int, path: Path, num_classes: int | None = 0, *, new_head: bool = False
) -> tuple[nn.Module, str]:
    """The network with the weights of a file, and the file's SHA-256.

    Outputs as in `create_with_head`, head as in `load_file`.

    A transformer's weights are for one image size. They may be those for `image_size`, or for the size that the
    network is known for; timm then resamples the positions.
    """
    with untouched():
        model = create_with_head(name, image_size, num_classes)[0]
        try:
            return model, _load(model, name, path, new_head)
        except IntegrityError as wrong:
            model = create_with_head(name, None, num_classes)[0]
            resize = getattr(model, "set_input_size", None)
            if resize is None:
                raise
            try:
                sha256 = _load(model, name, path, new_head)
            except IntegrityError:
                raise wrong from None  # what is wrong for the size that was asked for
        try:
            resize(img_size=image_size)
        except UNFIT as error:
            raise _unfit(name, image_size, error) from error
        return model, sha256


def _load(model: nn.Module, name: str, path: Path, new_head: bool) -> str:
    return load_file(model, name, path, _heads(model, model.state_dict()), new_head=new_head)


def heads_of(config: Any) -> tuple[str, ...]:
    """The modules that timm's notes on a network call its classifier."""
    named = (config or {}).get("classifier") or ()
    return (named,) if isinstance(named, str) else tuple(named)


def _heads(model: nn.Module, state: dict[str, Tensor]) -> tuple[str, ...]:
    """The modules that `num_classes=0` has taken away."""
    heads = heads_of(getattr(model, "pretrained_cfg", {}))
    # LeViT's is called "head.linear", but "head" with its batch norm has gone as a whole
    parents = (head.rpartition(".")[0] for head in heads)
    gone = (p for p in parents if p and not any(tensor.startswith(f"{p}.") for tensor in state))
    return tuple(dict.fromkeys((*heads, *gone)))


def width_of(model: nn.Module, name: str, image_size: int) -> int:
    """How many features come out: tried, because `num_features` is another number for some networks."""
    model.eval()
    try:
        with torch.no_grad():
            features = model(torch.zeros(2, 3, image_size, image_size))
    except UNFIT as error:
        raise _unfit(name, image_size, error) from error
    if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != 2:
        came = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise ConfigError(
            f"{name} makes of two images {came} and not one row of features each, (2, width); take another network, "
            "or wrap it in a Featurizer that pools"
        )
    if not features.isfinite().all():
        raise _unfit(name, image_size, ValueError("its features are not finite"))
    return features.shape[1]


def normalisation(model: nn.Module) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    from timm import data

    config: dict[str, Any] = data.resolve_model_data_config(model)  # type: ignore
    return config["mean"], config["std"]


def _unfit(name: str, image_size: int, error: Exception) -> ConfigError:
    import timm

    config = timm.get_pretrained_cfg(name)
    own = config.input_size[-1] if config else 224
    size = "too small for" if image_size < own else "no size for"
    detail = str(error).strip().partition("\n")[0] or type(error).__name__
    return ConfigError(f"images of {image_size} pixels are {size} {name}, which is known for {own}: {detail}")
