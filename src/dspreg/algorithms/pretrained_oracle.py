"""Layers that know the network they started from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dspreg.algorithms.base import Algorithm
from dspreg.algorithms.compatibility import Compatibility
from dspreg.algorithms.stack import regroup
from dspreg.algorithms.task import Task
from dspreg.batches import Batch, Outputs, at_least_float32
from dspreg.errors import ConfigError
from dspreg.networks import Network
from dspreg.networks.feature_hooks import capture_features, default_places, frozen_copy, probe_outputs, require_places

LISTENS = "listens to features inside the network, which torch.compile hides"


class WithOracle(Algorithm):
    """A layer that compares features at `places` with those of an oracle, the network as it was at the start.

        R = Σ_l ½ mean[ (h_l − h⁰_l)²/v_l + log v_l ],  v_l = softplus(b_l) + 1e-5, one per channel, 0.1 at the start

    h_l are features at the l-th place, h⁰_l the oracle's for the same inputs: those that the featurizer really gets,
    mixed ones if a layer below mixes. R comes with the outputs. The b_l and whatever else a layer trains besides the
    network are `parts`, in `net` under the layer's name, with `lr_mult` times the learning rate.

    The oracle is in evaluation mode, not trained and not saved: `build` makes it anew from the same weights.
    """

    compatibility = Compatibility(reads_images=True, not_compiled=LISTENS)
    weight: float
    lr_mult: float
    places: str | Sequence[str] | None

    def check(self, **weights: float) -> None:
        for name, value in {"weight": self.weight, **weights}.items():
            if not 0 <= value < math.inf:
                raise ConfigError(f"{type(self).__name__}: {name}={value}; wanted a finite number ≥ 0")
        if not 0 < self.lr_mult < math.inf:
            raise ConfigError(f"{type(self).__name__}: lr_mult={self.lr_mult}; wanted a finite number > 0")

    def build(self, task: Task) -> Network:
        net, name = self.base.build(task), type(self).__name__
        if hasattr(net, name.lower()):
            raise ConfigError(f"{name} stands twice in this stack; wanted once")
        oracle = frozen_copy(net.featurizer).requires_grad_(False)
        given = (self.places,) if isinstance(self.places, str) else self.places
        self._places = tuple(given) if given is not None else default_places(oracle)
        require_places(oracle, self._places, name)
        self._oracle = (oracle,)
        seen = probe_outputs(oracle, self._places)
        if silent := [place for place in self._places if place not in seen]:
            raise ConfigError(f"{name}: nothing passes through {', '.join(silent)}; wanted places that are called")
        last = any(getattr(m, "output_fmt", None) == "NHWC" for m in oracle.modules())  # timm's word for channels last
        shapes = [broadcast(seen[place], last) for place in self._places]
        net.add_module(name.lower(), nn.ModuleDict({"variances": variances(shapes)}))
        return net

    def configure_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        regroup(optimizer, self.parts.parameters(), lr=optimizer.param_groups[0]["lr"] * self.lr_mult)

    @property
    def parts(self) -> Any:
        """What this layer trains besides the network."""
        return self.net.get_submodule(type(self).__name__.lower())

    def forward(self, batches: Sequence[Batch]) -> Outputs:
        with capture_features(self.net.featurizer, self._places) as heard:
            out: Outputs = self.base(batches)
        (oracle,) = self._oracle
        with torch.no_grad(), capture_features(oracle, self._places) as known:
            for x in heard.inputs:
                oracle(x)
        terms = [
            bound(join(heard.features[place]), join(known.features[place]), variance(b))
            for place, b in zip(self._places, self.parts["variances"], strict=True)
        ]
        return out.replace(extras={**out.extras, type(self).__name__: torch.stack(terms).sum()})

    def distance(self, out: Outputs) -> Tensor:
        """R."""
        return out.extras[type(self).__name__]

    _oracle: tuple[nn.Module, ...] = ()  # in a tuple, as a part of the module would be trained and saved

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> WithOracle:
        super()._apply(fn, recurse)
        for oracle in self._oracle:
            oracle._apply(fn)
        return self


def variances(shapes: Iterable[Sequence[int]]) -> nn.ParameterList:
    """The b of v = softplus(b) + 1e-5 for v = 0.1."""
    return nn.ParameterList([nn.Parameter(torch.full(tuple(s), math.log(math.expm1(0.1 - 1e-5)))) for s in shapes])


def variance(b: Tensor) -> Tensor:
    return F.softplus(at_least_float32(b)) + 1e-5


def bound(h: Tensor, target: Tensor, v: Tensor) -> Tensor:
    """½ mean[(h − target)²/v + log v]: of −log N(target; h, v), without its constant."""
    away = at_least_float32(h) - at_least_float32(target)
    return (away.square() / v + v.log()).mean() / 2


def broadcast(features: Tensor, channels_last: bool) -> list[int]:
    """The shape of one number per channel, beside (B, C, H, W), tokens (B, L, C) or vectors (B, C)."""
    axis = 1 if features.ndim == 4 and not channels_last else features.ndim - 1
    return [size if i == axis else 1 for i, size in enumerate(features.shape)]


def join(parts: Sequence[Tensor]) -> Tensor:
    """Of all calls; a single one is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
