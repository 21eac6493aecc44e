"""timm networks: look them up, create them with or without a head, load their weights."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dspreg.errors import ConfigError, IntegrityError
from dspreg.networks.lean_imports import compiler_deferred, import_timm
from dspreg.networks.weights import load_file
from dspreg.randomness import untouched

# what a network raises for images of a size it cannot process
UNFIT = (RuntimeError, ValueError, AssertionError, IndexError, ZeroDivisionError)

EMBEDDING = "embedding"
POOLS = {"token": "token", "mean": "avg"}  # features → timm's word


def pretrained_config(name: str) -> Any:
    """timm's configuration of the pretrained weights of a name; None if there are none."""
    timm = import_timm()
    architecture, dot, tag = name.partition(".")
    known = timm.list_models()
    if architecture not in known:
        like = difflib.get_close_matches(name.lower().replace("-", "_"), ["small-cnn", *known], n=4, cutoff=0.5)
        nearest = f" Similar names: {', '.join(like)}." if like else ""
        raise ConfigError(f"no network is called {name!r}.{nearest} Known are small-cnn and all of timm.list_models()")
    try:
        if dot and not tag:
            raise RuntimeError("a dot without a tag")
        return timm.get_pretrained_cfg(name)
    except RuntimeError as error:
        tags = [full.partition(".")[2] for full in timm.list_pretrained(f"{architecture}.*")]
        raise ConfigError(f"{architecture} has no tag {tag!r}; its tags: {', '.join(tags) or 'none'}") from error


def hub_location(name: str, config: Any) -> tuple[str, str]:
    """Where the weights of a network are: the repository on the hub, and the name with its tag."""
    if config is None or not config.hf_hub_id:
        raise ConfigError(
            f"timm has no weights for {name} on the hub. Start from scratch with --weights none, or give a "
            "safetensors file with --weights FILE"
        )
    architecture = name.partition(".")[0]
    return config.hf_hub_id, f"{architecture}.{config.tag}" if config.tag else architecture


def create_with_head(
    name: str, image_size: int | None, num_classes: int | None, channels: int = 3
) -> tuple[nn.Module, str]:
    """A new network with timm's own head, and the timm call that creates it.

    Args:
        name: As timm knows it.
        image_size: Height and width in pixels; None for the network's default.
        num_classes: Outputs of the head; 0 for no head, None for the network's default.
        channels: Of the images.
    """
    timm = import_timm()
    classes: dict[str, Any] = {} if num_classes is None else {"num_classes": num_classes}
    classes |= {} if channels == 3 else {"in_chans": channels}
    call = f"timm.create_model({name!r}" + "".join(f", {option}={value}" for option, value in classes.items())
    if image_size is not None:
        try:
            sized = timm.create_model(name, pretrained=False, **classes, img_size=image_size)
            return sized, f"{call}, img_size={image_size})"
        except TypeError as error:
            if "img_size" not in str(error):  # a network that takes any size has no such argument
                raise
        except UNFIT as error:
            raise _size_error(name, image_size, error) from error
    return timm.create_model(name, pretrained=False, **classes), f"{call})"


def load_pretrained(
    name: str, image_size: int, path: Path, num_classes: int | None = 0, *, new_head: bool = False, channels: int = 3
) -> tuple[nn.Module, str]:
    """The network with the weights of a file, and the file's SHA-256.

    Weights of a network for RGB are made fit for other `channels`.

    `num_classes` as in `create_with_head`, `new_head` as in `load_file`.

    A transformer's weights are for one image size: `image_size`, or the network's default size, in which case timm
    resamples the position embedding.
    """
    if channels != 3:
        model, sha256 = load_pretrained(name, image_size, path, num_classes, new_head=new_head)
        return with_channels(model, name, image_size, num_classes, channels), sha256
    with untouched():
        model = create_with_head(name, image_size, num_classes)[0]
        try:
            return model, _load(model, name, path, new_head)
        except IntegrityError as mismatch:
            model = create_with_head(name, None, num_classes)[0]
            resize = getattr(model, "set_input_size", None)
            if resize is None:
                raise
            try:
                sha256 = _load(model, name, path, new_head)
            except IntegrityError:
                raise mismatch from None  # the one for the requested size
        try:
            resize(img_size=image_size)
        except UNFIT as error:
            raise _size_error(name, image_size, error) from error
        return model, sha256


def with_channels(
    model: nn.Module, name: str, image_size: int | None, num_classes: int | None, channels: int
) -> nn.Module:
    """The same network for images of other channels than RGB, its first convolution made fit as timm does."""
    from timm.models import adapt_input_conv

    first = (getattr(model, "pretrained_cfg", None) or {}).get("first_conv") or ()
    places = [f"{place}.weight" for place in ((first,) if isinstance(first, str) else first)]
    state = model.state_dict()
    if not places or any(place not in state for place in places):
        raise ConfigError(f"timm does not say how {name} reads images that are not RGB; use --weights none")
    with untouched():
        made = create_with_head(name, image_size, num_classes, channels)[0]
    made.load_state_dict({**state, **{place: adapt_input_conv(channels, state[place]) for place in places}})
    return made


def _load(model: nn.Module, name: str, path: Path, new_head: bool) -> str:
    return load_file(model, name, path, _heads(model, model.state_dict()), new_head=new_head)


def heads_of(config: Any) -> tuple[str, ...]:
    """The modules that timm's configuration of a network names as its classifier."""
    named = (config or {}).get("classifier") or ()
    return (named,) if isinstance(named, str) else tuple(named)


def _heads(model: nn.Module, state: dict[str, Tensor]) -> tuple[str, ...]:
    """The modules that `num_classes=0` removes."""
    heads = heads_of(getattr(model, "pretrained_cfg", {}))
    # LeViT's is called "head.linear", but all of "head", with its batch norm, is removed
    parents = (head.rpartition(".")[0] for head in heads)
    removed = (p for p in parents if p and not any(tensor.startswith(f"{p}.") for tensor in state))
    return tuple(dict.fromkeys((*heads, *removed)))


def width_of(model: nn.Module, name: str, image_size: int, channels: int = 3) -> int:
    """The number of features, by a forward pass: for some networks `num_features` is a different number.

    Within `shapes_alone`, of a network made there, the pass takes no memory.
    """
    model.eval()
    try:
        with torch.no_grad():
            features = model(torch.zeros(2, channels, image_size, image_size))
    except UNFIT as error:
        raise _size_error(name, image_size, error) from error
    if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != 2:
        got = f"shape {tuple(features.shape)}" if isinstance(features, Tensor) else f"a {type(features).__name__}"
        raise ConfigError(
            f"{name} returned {got} for two images; wanted one row of features each, (2, width). Use another network, "
            "or wrap it in a Featurizer that pools"
        )
    if not features.is_meta and not features.isfinite().all():  # on that device there are shapes and no numbers
        raise _size_error(name, image_size, ValueError("its features are not finite"))
    return features.shape[1]


def stated_width(model: nn.Module) -> int | None:
    """The number of features that timm says a network without its head returns."""
    stated = getattr(model, "head_hidden_size", None) or getattr(model, "num_features", None)
    return stated if isinstance(stated, int) else None


def choose_features(model: nn.Module, name: str, features: str) -> None:
    """Let a transformer without its head return its class token, or the mean of its patch tokens.

    Raises:
        ConfigError: The network has none.
    """
    if features not in POOLS:
        return
    prefix = getattr(model, "num_prefix_tokens", None)
    pools: Any = getattr(model, "reset_classifier", None)
    if prefix is None or getattr(model, "attn_pool", None) is not None or pools is None:
        what = "pools its tokens by attention" if prefix is not None else "has no tokens, but maps that it pools"
        raise ConfigError(f"{name} {what}; features={features} is for vision transformers. Leave it out")
    if features == "token" and not prefix:
        raise ConfigError(f"{name} has patch tokens and no class token; use features=mean, or leave it out")
    pools(0, global_pool=POOLS[features])


def require_embedding(name: str, config: Any) -> int:
    """The size of the embedding of a CLIP network, which timm has as its head.

    Raises:
        ConfigError: It is none.
    """
    size = config.num_classes if config is not None else 0
    if "clip" not in name or not size:
        raise ConfigError(
            f"{name} has no image embedding that texts are compared with. CLIP's networks have: dspreg weights list "
            "'vit_*clip*' shows them. For others leave features and head out"
        )
    return int(size)


def normalisation(model: nn.Module) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    with compiler_deferred():
        from timm import data

    config: dict[str, Any] = data.resolve_model_data_config(model)  # type: ignore
    return config["mean"], config["std"]


def _size_error(name: str, image_size: int, error: Exception) -> ConfigError:
    config = import_timm().get_pretrained_cfg(name)
    default = config.input_size[-1] if config else 224
    fault = "too small for" if image_size < default else "not possible with"
    detail = str(error).strip().partition("\n")[0] or type(error).__name__
    return ConfigError(f"images of {image_size} pixels are {fault} {name}, whose default is {default}: {detail}")
