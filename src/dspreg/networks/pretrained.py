"""Backbones by name: `small-cnn` or any timm network, from scratch, from a file or from the hub."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dspreg.errors import ConfigError, Notice
from dspreg.io.importing import Trust
from dspreg.networks.backbones import SmallCNN
from dspreg.networks.batch_norm import freeze_statistics
from dspreg.networks.hub import download_weights
from dspreg.networks.network import Featurizer, Network
from dspreg.networks.own import OwnFeaturizer, describe_weights, is_own_network, make_own_network
from dspreg.networks.timm_models import (
    EMBEDDING,
    choose_features,
    create_with_head,
    hub_location,
    load_pretrained,
    normalisation,
    pretrained_config,
    require_embedding,
    stated_width,
    width_of,
)
from dspreg.networks.weights import ExpectedWeights, Weights, read_weights
from dspreg.randomness import untouched

PerChannel = tuple[float, ...]
IMAGENET: tuple[PerChannel, PerChannel] = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
NO_WEIGHTS = Weights("none", "none", None)
NEED_THEIR_INPUT = (nn.Hardtanh, nn.Hardswish, nn.SiLU)  # for a gradient; ReLU6 is a Hardtanh


@dataclass(frozen=True)
class Backbone:
    """A featurizer by name, with the normalisation it expects and the origin of its weights."""

    name: str
    make: Callable[[], Featurizer | Network]  # initialised by torch's global generator, or a copy of the loaded one
    mean: tuple[float, ...]  # of the images it expects, per channel
    std: tuple[float, ...]
    weights: Weights
    has_batch_norm: bool = False


class TimmFeaturizer(Featurizer):
    """A timm model without its head, with dropout after the pooling: images (B, 3, H, W) to features (B, width).

    With `frozen_bn`, batch norm stays in evaluation mode in training too; its scale and shift are still trained. Of
    `features` "embedding", the model has its projection as its head, and features have length 1.
    """

    takes_features = True

    def __init__(
        self,
        model: nn.Module,
        width: int,
        dropout: float = 0.0,
        frozen_bn: bool = True,
        features: str = "default",
    ):
        super().__init__()
        self.width = width
        self.features = features
        self.model = model
        self.dropout = nn.Dropout(dropout)
        self.frozen_bn = frozen_bn
        for module in model.modules():
            if isinstance(module, NEED_THEIR_INPUT):
                module.inplace = False  # autograd would copy what they overwrite; the numbers are the same
        self.train()

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.dropout(x if x.ndim == 2 else self.undropped(x)))

    def undropped(self, x: Tensor) -> Tensor:
        out = cast(Tensor, self.model(x))
        return F.normalize(out, dim=-1) if self.features == EMBEDDING else out

    def train(self, mode: bool = True) -> TimmFeaturizer:
        super().train(mode)
        if self.frozen_bn:
            freeze_statistics(self)
        return self


def make_backbone(
    name: str,
    *,
    weights: str = "default",
    image_size: int = 224,
    dropout: float = 0.0,
    frozen_bn: bool = True,
    channels: int = 3,
    features: str = "default",
    width: int | None = None,
    trust: Trust = None,
) -> Backbone:
    """A backbone by name.

    Args:
        name: `"small-cnn"`, the import path of your own (see `networks.own.make_own_network`), or a timm network with
            or without a tag: `"resnet50"`, `"resnet50.tv_in1k"`. Without a tag, timm's default, which for ResNet-50 is
            not DomainBed's: that is `resnet50.tv_in1k`.
        weights: `"default"` for the pretrained weights of the tag (none for `small-cnn`), `"none"` to start from
            scratch, or a safetensors file.
        image_size: Height and width of the images in pixels. A transformer's position embedding is made for it.
        dropout: Probability of dropout after the pooling, as in DomainBed.
        frozen_bn: Keep batch norm in evaluation mode, as in DomainBed. From scratch, its statistics then stay at
            mean 0 and variance 1, so that it does not normalise.
        channels: Of the images. Weights for RGB are made fit as timm does: the filters of the first convolution are
            added up for one channel, and repeated for others. Mean and std are then 0.5 until they are measured.
        features: Of a transformer, what its features are: `"default"`, as timm pools; `"token"`, the class token;
            `"mean"`, the mean of the patch tokens; `"embedding"`, what a CLIP network compares with texts.
        width: The number of features, where a file says so. Where timm says the same, no forward pass finds it.
        trust: For an import path that a file holds: the modules that it may name.

    Raises:
        ConfigError: No such name, tag, file or size.
        IntegrityError: The file is damaged, a pickle, or for another network.
        ResourceError: The hub cannot be reached, or does not have the file.
    """
    if not 0 <= dropout < 1:
        raise ConfigError(f"dropout is a probability, 0 ≤ dropout < 1, not {dropout}")
    if image_size < 1:
        raise ConfigError(f"image_size is a number of pixels such as 224, not {image_size}")
    if name == "small-cnn":
        if features != "default":
            raise ConfigError(f"small-cnn has no tokens; features={features} is for transformers. Leave it out")
        return _small_cnn(weights, dropout, channels)
    if is_own_network(name):
        return _own(name, weights, dropout, frozen_bn, trust)

    config = pretrained_config(name)
    outputs = 0
    if features == EMBEDDING:
        outputs = require_embedding(name, config)
    if weights == "none":
        with untouched():
            model = create_with_head(name, image_size, outputs, channels)[0]
        source = NO_WEIGHTS
    elif weights == "default":
        repo, tag = hub_location(name, config)
        model, sha256 = load_pretrained(name, image_size, download_weights(repo, tag), outputs, channels=channels)
        source = Weights("hub", tag, sha256)
    else:
        path = Path(weights).expanduser()
        model, sha256 = load_pretrained(name, image_size, path, outputs, channels=channels)
        source = Weights("file", path.name, sha256)

    choose_features(model, name, features)
    if width is None or width != stated_width(model):
        width = width_of(model, name, image_size, channels)
    mean, std = normalisation(model) if channels == 3 else ((0.5,) * channels,) * 2
    norm = any(isinstance(module, _BatchNorm) for module in model.modules())

    def from_scratch() -> Featurizer:
        made = create_with_head(name, image_size, outputs, channels)[0]
        choose_features(made, name, features)
        return TimmFeaturizer(made, width, dropout, frozen_bn, features)

    if source is NO_WEIGHTS:
        return Backbone(name, from_scratch, mean, std, source, norm)
    template = TimmFeaturizer(model, width, dropout, frozen_bn, features)
    return Backbone(name, lambda: deepcopy(template), mean, std, source, norm)


def size_of(name: str, image_size: int, classes: int) -> int:
    """Bytes of a network with a linear classifier, in float32; needs no weights."""
    with untouched():
        if is_own_network(name):
            made = make_own_network(name)
            net: nn.Module = made.featurizer if isinstance(made, Network) else made
        else:
            net = SmallCNN() if name == "small-cnn" else create_with_head(name, image_size, 0)[0]
    width = net.width if isinstance(net, Featurizer) else width_of(net, name, image_size)
    tensors = [*net.parameters(), *net.buffers()]
    return sum(t.numel() * t.element_size() for t in tensors) + 4 * (width + 1) * classes


def _own(name: str, weights: str, dropout: float, frozen_bn: bool, trust: Trust) -> Backbone:
    def make() -> Featurizer | Network:
        return make_own_network(name, weights=weights, dropout=dropout, frozen_bn=frozen_bn, trust=trust)

    if weights == "none":  # of a model file, whose tensors come next
        return Backbone(name, make, *IMAGENET, NO_WEIGHTS)
    source, untrained = describe_weights(name, weights, trust)
    with untouched():
        template = make()
    norm = any(isinstance(module, _BatchNorm) for module in template.modules())
    if frozen_bn and untrained:
        text = f"the running statistics of {name}'s batch norm are as created, and frozen_bn keeps them so: it does not"
        warnings.warn(
            f"{text} normalise. For a network that is not pretrained give --frozen-bn no", Notice, stacklevel=3
        )
    inner = template.model if isinstance(template, OwnFeaturizer) else None
    pretrained = inner is not None and getattr(inner, "pretrained_cfg", None)
    mean, std = normalisation(inner) if inner is not None and pretrained else IMAGENET
    from_file = source.source == "file"
    return Backbone(name, (lambda: deepcopy(template)) if from_file else make, mean, std, source, norm)


def _small_cnn(weights: str, dropout: float, channels: int) -> Backbone:
    half = (0.5,) * channels
    if weights in ("default", "none"):
        return Backbone("small-cnn", lambda: SmallCNN(channels, dropout=dropout), half, half, NO_WEIGHTS)
    with untouched():
        template = SmallCNN(channels, dropout=dropout)
    path = Path(weights).expanduser()
    state, sha256 = read_weights(path, ExpectedWeights("small-cnn", template.state_dict()))
    template.load_state_dict(state)
    return Backbone("small-cnn", lambda: deepcopy(template), half, half, Weights("file", path.name, sha256))
