"""Replacements of torch functions: call them with measured parameters detached, and tap their outputs.

Each takes the arguments of the function it replaces. It returns None if no layer rule applies: then the original
function is called, and the parameter is measured by another strategy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dspreg.sensitivity.per_sample import layer_rules as rules

if TYPE_CHECKING:
    from dspreg.sensitivity.per_sample.function_mode import ParameterTaps


def _linear(taps: ParameterTaps, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
    w, b = taps.name(weight), taps.name(bias)
    batch_first = taps.batch_first(x, 1)
    if batch_first is None or taps.name(x):
        return None
    out = F.linear(x, _detach(weight, w), _detach(bias, b))
    kept, version = x.detach(), x._version

    def use(g: Tensor) -> None:
        x = _check_unchanged(kept, version)
        rules.linear(taps.sums, taps.active(w), taps.active(b), batch_first(x), batch_first(g))

    return taps.tap(out, w, b, kept, use)


def _convolution(
    dims: int,
    function: Callable[..., Tensor],
    taps: ParameterTaps,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor | None:
    w, b = taps.name(weight), taps.name(bias)
    if x.ndim != dims + 2 or len(x) != taps.samples or taps.name(x):
        return None
    dilations = _tuple(dilation, dims)
    if isinstance(padding, str):
        if padding == "same":
            spans = [(k - 1) * d for k, d in zip(weight.shape[2:], dilations, strict=True)]
            x = F.pad(x, [side for span in reversed(spans) for side in (span // 2, span - span // 2)])
        padding = 0
    kernel = rules.Kernel(tuple(weight.shape), _tuple(stride, dims), _tuple(padding, dims), dilations, groups)
    out = function(x, _detach(weight, w), _detach(bias, b), *kernel[1:])
    kept, version = x.detach(), x._version

    def use(g: Tensor) -> None:
        rules.convolution(taps.sums, taps.active(w), taps.active(b), _check_unchanged(kept, version), g, kernel)

    return taps.tap(out, w, b, kept, use)


def _batch_norm(
    taps: ParameterTaps,
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor | None:
    w, b = taps.name(weight), taps.name(bias)
    if training or running_mean is None or running_var is None or len(x) != taps.samples or taps.name(x):
        return None
    out = F.batch_norm(x, running_mean, running_var, _detach(weight, w), _detach(bias, b), False, momentum, eps)
    mean, rstd = running_mean.detach(), (running_var.detach() + eps).rsqrt()
    kept, version = x.detach(), x._version

    def use(g: Tensor) -> None:
        rules.fixed_norm(taps.sums, taps.active(w), taps.active(b), _check_unchanged(kept, version), g, mean, rstd)

    return taps.tap(out, w, b, kept, use)


def _layer_norm(
    taps: ParameterTaps,
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor | None:
    w, b = taps.name(weight), taps.name(bias)
    dims = len(normalized_shape)
    batch_first = taps.batch_first(x, dims)
    if batch_first is None or taps.name(x):
        return None
    out = F.layer_norm(x, normalized_shape, _detach(weight, w), _detach(bias, b), eps)
    kept, version = x.detach(), x._version

    def use(g: Tensor) -> None:
        x = _check_unchanged(kept, version)
        rules.layer_norm(taps.sums, taps.active(w), taps.active(b), batch_first(x), batch_first(g), dims, eps)

    return taps.tap(out, w, b, kept, use)


def _group_norm(
    taps: ParameterTaps,
    x: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor | None:
    w, b = taps.name(weight), taps.name(bias)
    if len(x) != taps.samples or taps.name(x):
        return None
    out = F.group_norm(x, num_groups, _detach(weight, w), _detach(bias, b), eps)
    kept, version = x.detach(), x._version

    def use(g: Tensor) -> None:
        rules.group_norm(taps.sums, taps.active(w), taps.active(b), _check_unchanged(kept, version), g, num_groups, eps)

    return taps.tap(out, w, b, kept, use)


def _embedding(
    taps: ParameterTaps,
    tokens: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,  # noqa: ARG001
    scale_grad_by_freq: bool = False,
    sparse: bool = False,  # noqa: ARG001
) -> Tensor | None:
    w = taps.name(weight)
    if w is None or max_norm is not None or scale_grad_by_freq or len(tokens) != taps.samples:
        return None
    padding = None if padding_idx is None else padding_idx % len(weight)
    out = F.embedding(tokens, weight.detach())
    return taps.tap(out, w, None, None, lambda g: rules.embedding(taps.sums, w, tokens, g, padding))


def _add(taps: ParameterTaps, x: Any, y: Any, *, alpha: float = 1) -> Tensor | None:
    """x + p: the gradient of the sum is the gradient of p, broadcast over samples and positions."""
    p, other = (x, y) if taps.name(x) else (y, x)
    name = taps.name(p)
    if name is None or alpha != 1 or taps.name(other) or not _broadcasts(taps, p, other):
        return None
    return taps.tap(other + p.detach(), None, name, None, lambda g: rules.broadcast(taps.sums, name, g, p.shape))


def _multiply(taps: ParameterTaps, x: Any, y: Any) -> Tensor | None:
    """x · p, as in a layer scale."""
    p, other = (x, y) if taps.name(x) else (y, x)
    name = taps.name(p)
    if name is None or taps.name(other) or not _broadcasts(taps, p, other):
        return None
    kept, version = other.detach(), other._version
    out = other * p.detach()

    def use(g: Tensor) -> None:
        rules.broadcast(taps.sums, name, g * _check_unchanged(kept, version), p.shape)

    return taps.tap(out, name, None, kept, use)


def _expand(taps: ParameterTaps, p: Tensor, *sizes: Any) -> Tensor | None:
    """A token that every sample gets: p.expand(B, -1, -1)."""
    name = taps.name(p)
    out = p.detach().expand(*sizes)
    if name is None or out.ndim == 0 or len(out) != taps.samples or (out.ndim == p.ndim and p.shape[0] != 1):
        return None
    return taps.tap(out.clone(), None, name, None, lambda g: rules.broadcast(taps.sums, name, g, p.shape))


def _broadcasts(taps: ParameterTaps, p: Tensor, other: Any) -> bool:
    """Whether p is broadcast over the samples of `other` (B, …)."""
    if not isinstance(other, Tensor) or other.ndim == 0 or len(other) != taps.samples or p.ndim > other.ndim:
        return False
    own = (1,) * (other.ndim - p.ndim) + tuple(p.shape)
    return own[0] == 1 and all(a in (1, b) for a, b in zip(own, other.shape, strict=True))


def _detach(p: Any, name: str | None) -> Any:
    return p.detach() if p is not None and name is not None else p


def _check_unchanged(kept: Tensor, version: int) -> Tensor:
    if kept._version != version:
        raise RuntimeError("the input of a layer was changed in place after the layer had read it")
    return kept


def _tuple(value: Any, dims: int) -> tuple[int, ...]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * dims if len(values) == 1 else values


RESHAPES = {
    Tensor.reshape,
    Tensor.view,
    Tensor.unsqueeze,
    Tensor.flatten,
    torch.reshape,
    torch.unsqueeze,
    torch.flatten,
}

KEYWORDS = {"input": "x", "other": "y"}  # torch's names for them

RULES: dict[Any, Callable[..., Tensor | None]] = {
    F.linear: _linear,
    F.batch_norm: _batch_norm,
    F.layer_norm: _layer_norm,
    F.group_norm: _group_norm,
    F.embedding: _embedding,
    **{f: partial(_convolution, d, f) for d, f in enumerate((torch.conv1d, torch.conv2d, torch.conv3d), 1)},
    **dict.fromkeys((torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__), _add),
    **dict.fromkeys((torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__, torch.multiply), _multiply),
    Tensor.expand: _expand,
}
