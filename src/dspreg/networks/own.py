"""Networks of the user's own, by import path: what a function or class without arguments returns."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dspreg.errors import ConfigError, DspregError
from dspreg.io.importing import Trust, import_object, is_import_path
from dspreg.networks.batch_norm import freeze_statistics
from dspreg.networks.lean_imports import import_timm
from dspreg.networks.network import Featurizer, Network
from dspreg.networks.weights import Weights, load_file
from dspreg.randomness import seeded

PLAIN = (bool, int, float, str)


def is_own_network(name: str) -> bool:
    """Whether a name is an import path, and not a timm network with a tag."""
    if not is_import_path(name):
        return False
    return name.partition(".")[0] not in import_timm().list_models()


class OwnFeaturizer(Featurizer):
    """A featurizer of the user's own, with dropout after it: inputs (B, …) to features (B, width)."""

    def __init__(self, model: nn.Module, dropout: float = 0.0, frozen_bn: bool = False):
        super().__init__()
        self.model = model
        self.width = int(cast(Any, model).width)
        self.stages = tuple(f"model.{place}" for place in getattr(model, "stages", ()))  # type: ignore[misc]
        self.dropout = nn.Dropout(dropout)
        self.frozen_bn = frozen_bn
        self.train()

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.model(x)
        if features.ndim != 2 or features.shape[1] != self.width:
            raise ConfigError(
                f"{type(self.model).__name__} returned features of shape {tuple(features.shape)}; wanted (B, "
                f"{self.width}), as its `width` says"
            )
        return cast(Tensor, self.dropout(features))

    def train(self, mode: bool = True) -> OwnFeaturizer:
        super().train(mode)
        if self.frozen_bn:
            freeze_statistics(self)
        return self


def make_own_network(
    name: str, *, weights: str = "default", dropout: float = 0.0, frozen_bn: bool = False, trust: Trust = None
) -> Featurizer | Network:
    """What the function or class at an import path returns, as a featurizer, or as a network with its own classifier.

    Args:
        name: Import path of something that is called without arguments and returns an nn.Module with a `width`, the
            number of its features, or a `dspreg.networks.Network`, whose featurizer has one.
        weights: `"default"` or `"none"`, as it is created, or a safetensors file of the tensors of what it returns.
        dropout: After the features.
        frozen_bn: Keep batch norm in evaluation mode.
        trust: As in `import_object`.

    Raises:
        ConfigError: There is no such function, or it returns something else.
        IntegrityError: A file names it, and its module is not trusted.
    """
    made = call_factory(name, import_object(name, trust))
    if weights not in ("default", "none"):
        load_file(made, name, Path(weights).expanduser())
    features = made.featurizer if isinstance(made, Network) else made
    width = getattr(features, "width", None)
    if type(width) is not int or width < 1:
        raise ConfigError(
            f"{name}() returned a {type(features).__name__} whose `width` is {width!r}; wanted the number of its "
            "features, as in self.width = 64, or a dspreg.networks.Network(featurizer, classifier) of one that has it"
        )
    wrapped = OwnFeaturizer(features, dropout, frozen_bn)
    return Network(wrapped, made.classifier) if isinstance(made, Network) else wrapped


def call_factory(name: str, factory: Any) -> nn.Module:
    """The network that a function or class returns, called without arguments."""
    if not callable(factory):
        raise ConfigError(
            f"{name!r} is a {type(factory).__name__}; wanted a function or class that returns an nn.Module"
        )
    try:
        net = factory()
    except DspregError:
        raise
    except Exception as error:
        detail = str(error).strip().partition("\n")[0]
        raise ConfigError(f"{name}(), called without arguments, raised {type(error).__name__}: {detail}") from error
    if not isinstance(net, nn.Module):
        raise ConfigError(f"{name}() returned a {type(net).__name__}; wanted an nn.Module")
    return net


def describe_weights(name: str, weights: str, trust: Trust = None) -> tuple[Weights, bool]:
    """Where an own network's weights come from, and whether it has batch norm whose statistics nothing has moved.

    Of a network as it is created, the SHA-256 is of what does not depend on the seed: its modules and their settings,
    names, shapes and types of its tensors, and the numbers of those that are always the same, such as pretrained ones.
    So a network that was changed under the same name is another one.
    """
    factory, made = import_object(name, trust), []
    for seed in ("one", "other"):
        with seeded("own network", seed):
            made.append(call_factory(name, factory))
    untouched = any(
        isinstance(m, _BatchNorm) and m.running_mean is not None and not bool(m.running_mean.any())
        for m in made[0].modules()
    )
    if weights not in ("default", "none"):
        path = Path(weights).expanduser()
        return Weights("file", path.name, load_file(made[0], name, path)), False
    total = hashlib.sha256(json.dumps(list(_modules(made[0]))).encode())
    others = made[1].state_dict()
    for tensor_name, tensor in made[0].state_dict().items():
        total.update(json.dumps([tensor_name, str(tensor.dtype), *tensor.shape]).encode())
        other = others.get(tensor_name)
        if other is not None and torch.equal(tensor, other):
            total.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return Weights("own", "as created", total.hexdigest()), untouched


def _modules(net: nn.Module) -> Iterator[list[Any]]:
    for name, module in net.named_modules():
        own = {key: value for key, value in vars(module).items() if not key.startswith("_") and _is_plain(value)}
        yield [name, type(module).__name__, sorted(own.items())]


def _is_plain(value: Any) -> bool:
    return isinstance(value, PLAIN) or (isinstance(value, tuple) and all(isinstance(each, PLAIN) for each in value))
