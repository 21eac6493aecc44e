"""The squared per-sample gradients of a layer's parameters, from the layer's input and the gradient of its output.

One function per kind of layer. Each is called in the backward pass with the gradient `g` of the layer's output and
adds to `sums`; x and g are batch-first, (B, …). Names are None for parameters that are absent or not measured.
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

from dspreg.sensitivity.per_sample.accumulator import MAX_PAIRS, Accumulator, PositionPairs, chunk_size

Name = str | None


def linear(sums: Accumulator, weight: Name, bias: Name, x: Tensor, g: Tensor) -> None:
    """y = x Wᵀ + b with x (B, …, I), y (B, …, O)."""
    g, x = ((t.flatten(1, -2) if t.ndim > 2 else t[:, None]).transpose(1, 2) for t in (g, x))
    if weight is not None:
        sums.add_products(weight, g, x)
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
        sums.add_products(weight, g.flatten(2), x.flatten(2))
    elif taps := positions_by_tap(tuple(x.shape[2:]), tuple(g.shape[2:]), kernel):
        totals = sums.permuted_view(weight, (*range(2, g.ndim), 0, 1)).flatten(1, -3)  # one matrix per tap
        pairs = PositionPairs(sums, weight, g.flatten(2), x.flatten(2))
        for tap, (outputs, inputs) in enumerate(taps):
            if outputs:
                pairs.add_to(totals[:, tap], outputs, inputs)
    elif kernel.groups == 1 and x.device.type == "cpu":
        unfold_convolution(sums, weight, x, g, kernel)
    else:
        group_convolution(sums, weight, x, g, kernel)


def unfold_convolution(sums: Accumulator, weight: str, x: Tensor, g: Tensor, kernel: Kernel) -> None:
    """Sample by sample, a matrix product of g with the unfolded input, in two buffers that stay in the cache."""
    border = [side for p in reversed(kernel.padding) for side in (p, p)]
    out, channels, *size = kernel.shape
    last = channels > g.shape[-1]  # contiguous copies are long: of channels, if these are more than columns
    x = F.pad(x.movedim(1, -1), [0, 0, *border]).contiguous() if last else F.pad(x, border) if any(border) else x
    channel_step, *steps = (x.movedim(-1, 1) if last else x).stride()[1:]
    taps = [d * step for d, step in zip(kernel.dilation, steps, strict=True)]
    moves = [s * step for s, step in zip(kernel.stride, steps, strict=True)]
    unfolded = x.new_empty(*g.shape[2:], *size, channels) if last else x.new_empty(channels, *size, *g.shape[2:])
    strides = (*moves, *taps, channel_step) if last else (channel_step, *taps, *moves)
    buffer = g.new_empty(out, *size, channels) if last else g.new_empty(kernel.shape)
    gradient = buffer.movedim(-1, 1) if last else buffer
    rows = unfolded.view(g[0, 0].numel(), -1) if last else unfolded.view(-1, g[0, 0].numel()).T
    if last:
        sums.permuted_view(weight, (0, *range(2, len(kernel.shape)), 1))
    g = g.flatten(2)

    def gradient_of(i: int) -> Tensor:
        unfolded.copy_(x[i].as_strided(unfolded.shape, strides))
        torch.mm(g[i], rows, out=buffer.view(out, -1))
        return gradient

    sums.add_each(weight, gradient_of)


def group_convolution(sums: Accumulator, weight: str, x: Tensor, g: Tensor, kernel: Kernel) -> None:
    """Samples as groups of one convolution: the gradient of its weights contains those of all samples."""
    size = chunk_size(x, math.prod(kernel.shape))
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


Positions = tuple[list[int], list[int]]  # of the output, and of the input that a tap connects it to


@lru_cache
def positions_by_tap(inputs: tuple[int, ...], outputs: tuple[int, ...], kernel: Kernel) -> list[Positions] | None:
    """The positions that each tap of a kernel connects, or None if they are many. Zero padding has no positions."""
    taps = list(product(*map(range, kernel.shape[2:])))
    if kernel.groups > 1 or math.prod(outputs) ** 2 > 4 * MAX_PAIRS * len(taps):  # too many, whatever the padding
        return None
    positions, pairs = [], 0
    for tap in taps:
        axes = [
            [(o, o * s - p + t * d) for o in range(no) if 0 <= o * s - p + t * d < ni]
            for t, ni, no, s, p, d in zip(tap, inputs, outputs, *kernel[1:4], strict=True)
        ]
        connected = list(product(*axes))
        of_output = [_flat_index([o for o, _ in place], outputs) for place in connected]
        positions.append((of_output, [_flat_index([i for _, i in place], inputs) for place in connected]))
        pairs += len(connected) * (len(connected) + 1) // 2
    return positions if pairs <= MAX_PAIRS * len(taps) else None


def _flat_index(index: Sequence[int], sizes: Sequence[int]) -> int:
    flat = 0
    for i, size in zip(index, sizes, strict=True):
        flat = flat * size + i
    return flat


def affine(sums: Accumulator, weight: Name, bias: Name, x: Tensor, g: Tensor, channel: int) -> None:
    """y = x·w + b with w, b along dimension `channel`: a normalisation layer, if x is its normalised input."""
    others = [d for d in range(1, g.ndim) if d != channel]
    if weight is not None:
        each = g * x
        sums.add_gradients(weight, each.sum(others) if others else each)
    if bias is not None:
        sums.add_gradients(bias, g.sum(others) if others else g.clone())


def fixed_norm(sums: Accumulator, weight: Name, bias: Name, x: Tensor, g: Tensor, mean: Tensor, rstd: Tensor) -> None:
    """Batch norm in evaluation mode, x (B, C, …): mean and standard deviation are constants."""
    g, x = (t.reshape(*t.shape[:2], -1) for t in (g, x))
    total = g.sum(2)
    if weight is not None:
        centred = (x - mean[:, None]).mul_(g).sum(2)  # not Σgx − mean·Σg, which cancels where |mean| is large
        sums.add_gradients(weight, centred.mul_(rstd))
    if bias is not None:
        sums.add_gradients(bias, total)


def embedding(sums: Accumulator, weight: str, tokens: Tensor, g: Tensor, padding: int | None) -> None:
    """y = W[tokens], tokens (B, …): gradients of a token that occurs twice in a sample are summed before squaring."""
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
    """A parameter, viewed with shape `own`, that was broadcast to `each` (B, …): sum over the broadcast dimensions."""
    shape = sums.params[name].shape
    own = shape if own is None else own
    own = (1,) * (each.ndim - len(own)) + tuple(own)
    expanded = [d for d in range(1, each.ndim) if own[d] == 1 and each.shape[d] > 1]
    sums.add_gradients(
        name, (each.sum(expanded, keepdim=True) if expanded else each.clone()).reshape(len(each), *shape)
    )


def layer_norm(sums: Accumulator, weight: Name, bias: Name, x: Tensor, g: Tensor, dims: int, eps: float) -> None:
    """Normalised over the last `dims` dimensions, with weights of their shape."""
    if weight is not None:
        broadcast(sums, weight, F.layer_norm(x, x.shape[x.ndim - dims :], eps=eps).mul_(g))
    if bias is not None:
        broadcast(sums, bias, g)


def group_norm(sums: Accumulator, weight: Name, bias: Name, x: Tensor, g: Tensor, groups: int, eps: float) -> None:
    """x (B, C, …), normalised within groups of channels."""
    normalised = F.group_norm(x, groups, eps=eps) if weight is not None else x
    affine(sums, weight, bias, normalised, g, channel=1)
