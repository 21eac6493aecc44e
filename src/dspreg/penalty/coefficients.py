"""c for `Penalty`: by plain parameter names, checked, and on the devices of the parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dspreg.batches import at_least_float32
from dspreg.errors import ConfigError
from dspreg.io.text import join_few
from dspreg.penalty.wrappers import plain_names
from dspreg.vectors import ParamVector, Patterns, matching_names, trainable


class Coefficients:
    """c of the penalised parameters of a network; 1 until it is set.

    Args:
        net: The network, unwrapped.
        only, exclude: Which parameters are penalised, by shell patterns on their plain names.
    """

    def __init__(self, net: nn.Module, only: Patterns, exclude: Patterns):
        self.net, self.only, self.exclude = net, only, exclude
        self.values: ParamVector | None = None  # by the names in `net`; None until set
        self._ones = ParamVector()
        self.names()

    def names(self) -> dict[str, str]:
        """The penalised parameters: plain name → name in the network."""
        names = plain_names(self.net)
        if not names:
            kind = type(self.net).__name__
            raise ConfigError(f"{kind} has no trainable parameter (requires_grad is False everywhere)")
        return {plain: names[plain] for plain in matching_names(names, self.only, self.exclude)}

    def by_plain_name(self) -> ParamVector:
        c = self.current()
        return ParamVector((plain, c[name]) for plain, name in self.names().items())

    def current(self) -> ParamVector:
        """By the names in the network, for its current parameters."""
        params, names = trainable(self.net), self.names()
        if self.values is None:
            if any(n not in self._ones or not _fits(self._ones[n], params[n]) for n in names.values()):
                ones = {n: torch.ones_like(at_least_float32(params[n].detach())) for n in names.values()}
                self._ones = ParamVector(ones)
            return self._ones
        for plain, name in names.items():
            c, p = self.values.get(name), params[name]
            if c is None or c.shape != p.shape:
                fault = "there is no c for it" if c is None else f"its c has shape {tuple(c.shape)}"
                raise ConfigError(
                    f"the model has changed since c was measured: {plain!r} has shape {tuple(p.shape)}, and {fault}. "
                    "Call penalty.refresh(…) again"
                )
        if any(not _fits(self.values[n], params[n]) for n in names.values()):  # the model was moved to another device
            self.values = ParamVector((n, self.values[n].to(params[n].device)) for n in names.values())
        return ParamVector((n, self.values[n]) for n in names.values())

    def set(self, c: Mapping[str, Tensor]) -> None:
        """Set c to any mapping from name to tensor that has all penalised parameters."""
        if not isinstance(c, Mapping):
            raise ConfigError(f"coefficients are a {type(c).__name__}; wanted a mapping from parameter name to tensor")
        names = self.names()
        by_plain = {_plain(name, names): tensor for name, tensor in c.items()}
        missing = [repr(name) for name in names if name not in by_plain]
        if missing:
            raise ConfigError(
                f"coefficients are missing for {join_few(missing, 3)}; wanted one tensor for every penalised "
                "parameter. Leave parameters out by only= or exclude=, or give them zeros"
            )
        params = trainable(self.net)
        values = {name: _prepare(plain, by_plain[plain], params[name]) for plain, name in names.items()}
        self.values, self._ones = ParamVector(values), ParamVector()


def _fits(c: Tensor, p: Tensor) -> bool:
    return c.shape == p.shape and c.device == p.device


def _plain(name: str, known: Mapping[str, str]) -> str:
    """A name without the prefixes that wrappers add."""
    bare = name.replace("_orig_mod.", "")
    while bare not in known and bare.startswith("module."):
        bare = bare.removeprefix("module.")
    return bare


def _prepare(name: str, c: Any, p: Tensor) -> Tensor:
    """One tensor of c, checked, with the device and at least the precision of its parameter."""
    if not isinstance(c, Tensor) or c.shape != p.shape:
        got = f"of shape {tuple(c.shape)}" if isinstance(c, Tensor) else f"a {type(c).__name__}"
        raise ConfigError(f"c of {name!r} is {got}; wanted a tensor of shape {tuple(p.shape)}")
    copy: Tensor = c.detach().to(device=p.device, dtype=torch.promote_types(p.dtype, torch.float32), copy=True)
    finite = bool(torch.isfinite(copy).all())
    if not finite or (copy < 0).any():
        bad = "negative numbers" if finite else "NaN or infinite numbers"
        raise ConfigError(f"c of {name!r} has {bad}; wanted finite ones ≥ 0. Did the training diverge?")
    return copy
