"""The squared per-sample gradients of a layer's parameters, from the layer's input and the gradient of its output.

One function per kind of layer. Each is called in the backward pass with the gradient `g` of the layer's output and
adds to `sums`; x and g have the samples in front, (B, …). Names are None for parameters that are absent or unmeasured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dspreg.sensitivity.per_sample.accumulator import PAIRS, Accumulator, Paired, chunk

Name = str | None


def linear(sums: Accumulator, weight: Name, bias: Name, x: Tensor, g: Tensor) -> None:
    """y = x Wᵀ + b with x (B, …, I), y (B, …, O)."""
    g, x = ((t.flatten(1, -2) if t.ndim > 2 else t[:, None]).transpose(1, 2) for t in (g, x))
    if weight is not None:
        sums.products(weight, g, x)
    if bias is not None:
        sums.add_gradients(bias, g.sum(2))


class Kernel(NamedTuple):
    """A convolution of any dimension."""

    shape: tuple[int, ...]  # (O, I/groups, *kernel)
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


def convolution(sums: Accumulator, weight: Name, bias: Name, x: Tensor, g: Tensor, kernel: Kernel) -> None:
    """x (B, I, …), g (B, O, …)."""
    if bias is not None:
        sums.add_gradients(bias, g.flatten(2).sum(2))
    if weight is None:
        return
    if kernel.groups == 1 and math.prod(kernel.shape[2:]) == 1 and not any(kernel.padding):
        for axis, step in enumerate(kernel.stride, 2):
            x = x[(slice(None),) * axis + (slice(None, None, step),)]
        sums.products(weight, g.flatten(2), x.flatten(2))
    elif taps := few_positions(tuple(x.shape[2:]), tuple(g.shape[2:]), kernel):
        totals = sums.permuted_view(weight, (*range(2, g.ndim), 0, 1)).flatten(1, -3)  # every tap a matrix of its own
        paired = Paired(sums, weight, g.flatten(2), x.flatten(2))
        for tap, (outputs, inputs) in enumerate(taps):
            if outputs:
                paired.add(totals[:, tap], outputs, inputs)
    elif kernel.groups == 1 and x.device.type == "cpu":
        unfold_convolution(sums, weight, x, g, kernel)
    else:
        group_convolution(sums, weight, x, g, kernel)


def unfold_convolution(sums: Accumulator, weight: str, x: Tensor, g: Tensor, kernel: Kernel) -> None:
    """Sample by sample, a matrix product of g with what every tap of the kernel saw, in two buffers that stay warm."""
    border = [side for p in reversed(kernel.padding) for side in (p, p)]
    out, channels, *size = kernel.shape
    last = channels > g.shape[-1]  # what lies together is copied together: channels, if they are more than columns
    x = F.pad(x.movedim(1, -1), [0, 0, *border]).contiguous() if last else F.pad(x, border) if any(border) else x
    apart, *within = (x.movedim(-1, 1) if last else x).stride()[1:]
    taps = [d * step for d, step in zip(kernel.dilation, within, strict=True)]
    moves = [s * step for s, step in zip(kernel.stride, within, strict=True)]
    seen = x.new_empty(*g.shape[2:], *size, channels) if last else x.new_empty(channels, *size, *g.shape[2:])
    strides = (*moves, *taps, apart) if last else (apart, *taps, *moves)
    held = g.new_empty(out, *size, channels) if last else g.new_empty(kernel.shape)
    gradient = held.movedim(-1, 1) if last else held
    rows = seen.view(g[0, 0].numel(), -1) if last else seen.view(-1, g[0, 0].numel()).T
    if last:
        sums.permuted_view(weight, (0, *range(2, len(kernel.shape)), 1))
    for i, (one, slope) in enumerate(zip(x, g.flatten(2), strict=True)):
        seen.copy_(one.as_strided(seen.shape, strides))
        torch.mm(slope, rows, out=held.view(out, -1))
        sums.add_sample(weight, gradient, i)


def group_convolution(sums: Accumulator, weight: str, x: Tensor, g: Tensor, kernel: Kernel) -> None:
    """Samples as groups of one convolution: the gradient of its weights has those of all samples side by side."""
    size = chunk(x, math.prod(kernel.shape))
    for i in range(0, len(x), size):
        xs, gs = x[i : i + size], g[i : i + size]
        n = len(xs)
        each = torch.ops.aten.convolution_backward(
            gs.reshape(1, -1, *gs.shape[2:]), xs.reshape(1, -1, *xs.shape[2:]),
            xs.new_empty(1).expand(n * kernel.shape[0], *kernel.shape[1:]), None,
            kernel.stride, kernel.padding, kernel.dilation, False, [0] * len(kernel.stride), n * kernel.groups,
            [False, True, False],
        )[1]  # fmt: skip
        sums.add_gradients(weight, each.view(n, *kernel.shape), i)


Positions = tuple[list[int], list[int]]  # of the output, and of the input that this tap shows it


@lru_cache
def few_positions(inputs: tuple[int, ...], outputs: tuple[int, ...], kernel: Kernel) -> list[Positions] | None:
    """Which positions each tap of a kernel connects, if they are few; borders of zeros are no positions."""
    taps = list(product(*map(range, kernel.shape[2:])))
    if kernel.groups > 1 or math.prod(outputs) ** 2 > 4 * PAIRS * len(taps):  # too many, whatever the borders are
        return None
    found, pairs = [], 0
    for tap in taps:
        axes = [
            [(o, o * s - p + t * d) for o in range(no) if 0 <= o * s - p + t * d < ni]
            for t, ni, no, s, p, d in zip(tap, inputs, outputs, *kernel[1:4], strict=True)
        ]
        places = list(product(*axes))
        of_output = [_flat([o for o, _ in place], outputs) for place in places]
        found.append((of_output, [_flat([i for _, i in place], inputs) for place in places]))
        pairs += len(places) * (len(places) + 1) // 2
    return found if pairs <= PAIRS * len(taps) else None


def _flat(index: Sequence[int], sizes: Sequence[int]) -> int:
    place = 0
    for i, size in zip(index, sizes, strict=True):
        place = place * size + i
    return place


def affine(sums: Accumulator, weight: Name, bias: Name, x: Tensor, g: Tensor, channel: int) -> None:
    """y = x·w + b with w, b along dimension `channel`: what remains of a normalisation when x is normalised."""
    others = [d for d in range(1, g.ndim) if d != channel]
    if weight is not None:
        each = g * x
        sums.add_gradients(weight, each.sum(others) if others else each)
    if bias is not None:
        sums.add_gradients(bias, g.sum(others) if others else g.clone())


def fixed_norm(sums: Accumulator, weight: Name, bias: Name, x: Tensor, g: Tensor, mean: Tensor, rstd: Tensor) -> None:
    """Batch norm in evaluation mode, x (B, C, …): mean and deviation are constants."""
    g, x = (t.reshape(*t.shape[:2], -1) for t in (g, x))
    total = g.sum(2)
    if weight is not None:
        centred = (x - mean[:, None]).mul_(g).sum(2)  # not Σgx − mean·Σg, which cancels where |mean| is large
        sums.add_gradients(weight, centred.mul_(rstd))
    if bias is not None:
        sums.add_gradients(bias, total)


def embedding(sums: Accumulator, weight: str, tokens: Tensor, g: Tensor, padding: int | None) -> None:
    """y = W[tokens], tokens (B, …): a token that comes twice in a sample has its gradients summed before the square."""
    words, width = sums.params[weight].shape
    n = len(tokens)
    sample = torch.arange(n, device=tokens.device).repeat_interleave(tokens[0].numel())
    keys, inverse = torch.unique(sample * words + tokens.reshape(-1), return_inverse=True)
    each = g.new_zeros(len(keys), width).index_add_(0, inverse, g.reshape(-1, width))
    which, word = keys // words, keys % words
    if padding is not None:
        each[word == padding] = 0
    sums.add_sparse(weight, each, which, word)


def broadcast(sums: Accumulator, name: str, each: Tensor, own: Sequence[int] | None = None) -> None:
    """A parameter, seen with shape `own`, that broadcasting stretched to `each` (B, …): sum over where it did."""
    shape = sums.params[name].shape
    own = shape if own is None else own
    own = (1,) * (each.ndim - len(own)) + tuple(own)
    stretched = [d for d in range(1, each.ndim) if own[d] == 1 and each.shape[d] > 1]
    sums.add_gradients(
        name, (each.sum(stretched, keepdim=True) if stretched else each.clone()).reshape(len(each), *shape)
    )


def layer_norm(sums: Accumulator, weight: Name, bias: Name, x: Tensor, g: Tensor, dims: int, eps: float) -> None:
    """Normalised over the last `dims` dimensions, with weights of their shape."""
    inner = tuple(range(x.ndim - dims, x.ndim))
    if weight is not None:
        variance, mean = torch.var_mean(x, inner, correction=0, keepdim=True)
        broadcast(sums, weight, (x - mean).mul_((variance + eps).rsqrt()).mul_(g))
    if bias is not None:
        broadcast(sums, bias, g)


def group_norm(sums: Accumulator, weight: Name, bias: Name, x: Tensor, g: Tensor, groups: int, eps: float) -> None:
    """x (B, C, …), normalised within groups of channels."""
    normalised = F.group_norm(x, groups, eps=eps) if weight is not None else x
    affine(sums, weight, bias, normalised, g, channel=1)
