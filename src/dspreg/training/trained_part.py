"""Which parameters of a network are trained, and from where: groups of layers, adapters, masks, a text head."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from dspreg.algorithms.base import Algorithm
from dspreg.config.train_config import TRAIN_OPTIONS, TrainConfig
from dspreg.config.trained_part import TrainedPart
from dspreg.errors import ConfigError
from dspreg.io.atomic_files import read_regular_file, sha256
from dspreg.io.text import join_few, plural
from dspreg.networks.network import Featurizer, Network
from dspreg.networks.stages import timm_model
from dspreg.randomness import Key, generator
from dspreg.sensitivity.controls import shuffle, shuffle_matched
from dspreg.sensitivity.profile import Profile, upper_quantile
from dspreg.vectors import ParamVector

NEEDS_PEFT = "--train lora needs peft: pip install 'dspreg[lora]'"
OWN_STEPS = ("optimizer", "schedule", "warmup", "layer_decay", "train", "features", "head")


def require_trainable(config: TrainConfig, layers: Sequence[Algorithm]) -> None:
    """Refuse what can't be meant, before there is a run.

    Args:
        config: Every option filled in.
        layers: Of the method, the outermost first.

    Raises:
        ConfigError: Says which options do not go together, and what to do.
    """
    changed = [name for name in OWN_STEPS if getattr(config, name) != TRAIN_OPTIONS[name].before]
    if changed and layers[-1].compatibility.owns_step:
        what = " and ".join(f"--{name.replace('_', '-')}" for name in changed)
        raise ConfigError(
            f"{type(layers[-1]).__name__} makes its own network and optimiser, which {what} would not reach. Leave "
            "them out, or take the same method of dspreg, if there is one"
        )
    if config.warmup >= config.steps:
        raise ConfigError(f"warmup={config.warmup:,} of {config.steps:,} steps; wanted fewer than there are steps")
    if config.train == "head" and config.layer_decay < 1:
        raise ConfigError("--layer-decay is for the layers of the backbone, and --train head trains none of them")
    if config.train != "all" and not config.frozen_bn:
        raise ConfigError(
            f"--train {config.train} with --frozen-bn no: running statistics of frozen layers would move. Leave "
            "--frozen-bn out"
        )
    if config.head != "random" and config.features != "embedding":
        raise ConfigError(
            f"--head {config.head} is compared with CLIP's embedding of an image, and --features {config.features} "
            "is something else. Leave --features out"
        )


def freeze(net: Network, part: TrainedPart, name: str) -> None:
    """Freeze what is not trained, and add adapters; the classifier is always trained. A mask freezes nothing here.

    Args:
        net: The network, new.
        part: Of it.
        name: Of the backbone, for messages.

    Raises:
        ConfigError: The backbone has no such part.
    """
    if part.kind in ("all", "mask"):
        return
    trained = last_blocks(net.featurizer, part.blocks, name) if part.kind == "last" else set()
    for parameter, p in net.featurizer.named_parameters():
        p.requires_grad_(parameter in trained)
    if part.kind == "lora":
        add_adapters(net.featurizer, part, name)


def layer_groups(featurizer: Featurizer, name: str) -> dict[str, int]:
    """Parameter of a featurizer → the number of its group of layers, from the image on, by timm's `group_matcher`."""
    from timm.models import group_parameters

    found = timm_model(featurizer)
    matcher: Any = getattr(found.module, "group_matcher", None) if found else None
    if found is None or matcher is None:
        raise ConfigError(
            f"{name} has no groups of layers that timm knows; use --train all or head, and no layer decay"
        )
    groups: dict[str, int] = group_parameters(found.module, matcher(coarse=False), reverse=True)
    return {f"{found.prefix}.{parameter}".lstrip("."): group for parameter, group in groups.items()}


def last_blocks(featurizer: Featurizer, count: int, name: str) -> set[str]:
    """The parameters of the last blocks, and of what comes after them, such as a final norm."""
    groups = layer_groups(featurizer, name)
    # group 0 is the stem, and what comes after the blocks has no number in its name
    numbered = {group for parameter, group in groups.items() if any(map(str.isdecimal, parameter.split(".")))}
    blocks = sorted(numbered - {0})
    if count > len(blocks):
        raise ConfigError(
            f"train=last:{count}: {name} has {plural(len(blocks), 'block', 'blocks')}. Give fewer, or --train all"
        )
    return {parameter for parameter, group in groups.items() if group >= blocks[-count]}


def add_adapters(featurizer: Featurizer, part: TrainedPart, name: str) -> None:
    """Put B A·(alpha/r), of rank r and trained, beside the weights of layers, which are frozen; B starts at 0.

    Raises:
        ConfigError: There is no such layer, or no peft.
    """
    found = timm_model(featurizer)
    if found is None:
        raise ConfigError(f"train={part}: adapters are for networks of timm, and {name} is none; use another --model")
    modules = dict(found.module.named_modules())
    kinds = (nn.Linear,) if part.modules is None else (nn.Linear, nn.Conv2d)
    chosen = [n for n, m in modules.items() if isinstance(m, kinds) and fnmatchcase(n, part.modules or "*")]
    if not chosen:
        some = join_few([n for n, m in modules.items() if isinstance(m, nn.Linear | nn.Conv2d)], 4)
        pattern = "linear layer" if part.modules is None else f"linear layer or convolution like {part.modules!r}"
        raise ConfigError(f"train={part}: {name} has no {pattern}; it has {some}. Give others with modules='…'")
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as missing:
        raise ConfigError(NEEDS_PEFT) from missing
    how = LoraConfig(r=part.r, lora_alpha=part.alpha, target_modules=chosen)  # type: ignore[arg-type]
    inject_adapter_in_model(how, found.module)


def adapted_layers(net: nn.Module) -> Iterator[tuple[nn.Module, str, Any]]:
    """Of every layer with an adapter: the module that it is in, its name there, and it."""
    try:
        from peft.tuners.tuners_utils import BaseTunerLayer
    except ImportError:
        return
    for parent in list(net.modules()):
        for child, module in list(parent.named_children()):
            if isinstance(module, BaseTunerLayer):
                yield parent, child, module


def merge_adapters(net: nn.Module) -> None:
    """Make plain layers of those with adapters: W + B A·(alpha/r), under their own names."""
    for parent, child, module in adapted_layers(net):
        module.merge()
        setattr(parent, child, module.get_base_layer())


def read_profile(config: TrainConfig) -> tuple[Profile | None, str]:
    """The profile that a mask is made of, if there is one, and the SHA-256 of its file.

    Raises:
        ConfigError: It was measured on a target, which training would so see.
    """
    if config.part.kind != "mask":
        return None, ""
    profile = Profile.load(config.part.file)
    if seen := [name for name in config.targets if name in profile.domains]:
        raise ConfigError(
            f"train={config.train}: the profile was measured on {join_few(seen, 3)}, which is held out. Measure the "
            "other domains alone: dspreg measure --domains …"
        )
    return profile, sha256(read_regular_file(config.part.file, follow=True))


def entry_masks(profile: Profile, part: TrainedPart, net: Network, key: tuple[Key, ...]) -> dict[str, Tensor]:
    """Parameter of the backbone → which of its entries are trained: those of smallest c, or of largest.

    Args:
        profile: Of the same backbone, with or without a head; the classifier is always trained.
        part: A mask.
        net: The network.
        key: Of the training; the controls shuffle by it.

    Raises:
        ConfigError: The profile is of another network, or its quantile selects all entries or none.
    """
    c, s = of_backbone(profile.c, part, net), of_backbone(profile.mean, part, net)
    threshold = upper_quantile(c, part.quantile)
    found = {}
    for name, values in c.items():
        chosen = values >= threshold if part.which == "most" else values < threshold
        random = generator(*key, name, "mask")
        if part.control == "shuffled":
            chosen = shuffle(chosen, random)
        if part.control == "matched":
            chosen = shuffle_matched(chosen, s[name], random)
        found[name] = chosen
    kept, every = (sum(int(f(mask)) for mask in found.values()) for f in (torch.sum, torch.numel))
    if kept in (0, every):
        raise ConfigError(
            f"train={part}: c is {'' if kept else 'nowhere '}{'at least' if part.which == 'most' else 'below'} "
            f"{threshold:.3g}, its quantile, {'everywhere, so that all entries are' if kept else 'so that none is'} "
            "trained. Give another quantile, or a profile of more images"
        )
    return found


def of_backbone(values: ParamVector, part: TrainedPart, net: Network) -> ParamVector:
    """Those of the parameters of the backbone, by their names in `net`."""
    params = {f"featurizer.{name}": p for name, p in net.featurizer.named_parameters()}
    model = timm_model(net.featurizer)
    bare = f"featurizer.{model.prefix}." if model and model.prefix else "featurizer."
    found = {}
    for name, p in params.items():
        there = next((n for n in (name, name.removeprefix(bare)) if n in values), None)
        if there is None or values[there].shape != p.shape:
            has = "no such parameter" if there is None else f"the shape {list(values[there].shape)}"
            raise ConfigError(
                f"train={part}: the profile has {has} where the network has {name} {list(p.shape)}. Measure this "
                "network: dspreg measure --model …, or take profiles/start.safetensors of a run"
            )
        found[name] = values[there]
    return ParamVector(found)
