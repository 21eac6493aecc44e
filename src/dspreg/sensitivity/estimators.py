"""Estimators of how sensitive a network is to each parameter on a batch.

All take the *readings* of a batch, a matrix (B, A) of scalars per sample, and the parameters θ_k, and add B·s_k to
`sums`, with

    s_k = 1/B Σ_i Σ_a (∂_k reading_ia)²

With `of="loss"` the only reading is the sample's loss: the paper's practice, the empirical Fisher. With `of="output"`
there is a reading per output coordinate, and Σ_a (∂_k f_a)² is the squared norm in the paper's definition of s_k. With
`of="fisher"` the labels are drawn from the network's own softmax, which makes it the true Fisher's diagonal.

`loop` and `persample` (in `per_sample/`) square per sample, before averaging. `signed` is unbiased for
the same number. `minibatch` squares the gradient of the mean: another, smaller quantity. The gradients of a weight
that is used twice, or shared between layers, are summed before squaring, as in its derivative.

Squares are summed in the parameters' own dtype, scaled by powers of two if they would leave its range.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from dspreg.errors import DataError
from dspreg.sensitivity.per_sample.accumulator import Accumulator
from dspreg.sensitivity.samples import Function, Samples

Loss = Callable[[Tensor, Tensor], Tensor]
Readings = Callable[[Samples], Tensor]
Params = Mapping[str, Tensor]


def readings(f: Function, of: str, loss: Loss | None = None, random: torch.Generator | None = None) -> Readings:
    """The scalars per sample (B, A) whose gradients are squared. Missing labels are drawn by `random`."""

    def outputs(samples: Samples) -> Tensor:
        return samples.outputs(f).reshape(len(samples), -1)

    def losses(samples: Samples) -> Tensor:
        out = samples.outputs(f)
        y = samples.y
        if y is None:
            assert random is not None
            y = draw_labels(out.detach(), random)
        values = F.cross_entropy(out, y, reduction="none") if loss is None else loss(out, y)
        if values.shape != (len(samples),):
            raise DataError(
                f"the loss returned shape {tuple(values.shape)} for {len(samples)} samples; "
                f"wanted ({len(samples)},), one value per sample: use reduction='none', and average other dimensions"
            )
        return values[:, None]

    return outputs if of == "output" else losses


def draw_labels(out: Tensor, random: torch.Generator) -> Tensor:
    """One label per sample from the network's softmax, y ~ p(· | x). (B,)"""
    p = out.double().softmax(1)
    return torch.multinomial(p.cpu(), 1, generator=random)[:, 0].to(p.device)


def estimate_by_loop(reading: Readings, params: Params, samples: Samples, sums: Accumulator) -> None:
    """The reference: one sample and one reading at a time.

    Args:
        reading: See `readings`.
        params: The θ_k by name.
        samples: B samples, with the weights set in `sums`.
        sums: Σ_a (∂_k reading_ia)² of every sample i is added to it.
    """
    for i in range(len(samples)):
        for value in reading(samples.take(slice(i, i + 1)))[0]:
            for name, g in gradient(value, params, retain_graph=True).items():
                sums.choose_scale(name, g)
                sums.add_sample(name, g, i)


def estimate_by_signs(
    reading: Readings, params: Params, samples: Samples, sums: Accumulator, *, draws: int, random: torch.Generator
) -> None:
    """The square of one random combination, (∂_k Σ_ia ε_ia reading_ia)² with ε = ±1, averaged over `draws`.

    Signs are independent, so cross terms vanish in expectation and it is unbiased for s; one backward pass per draw.
    Unbiased for s is not unbiased for c: with few draws c is large by chance. Compare with null, c under random domain
    labels.
    """
    values = reading(samples)
    sums.set_weights(sums.groups[:, :1] / draws)
    for draw in range(draws):
        signs = torch.randint(2, values.shape, generator=random, device="cpu").to(values) * 2 - 1
        add_squares((signs * values).sum(), params, sums, retain_graph=draw < draws - 1)


def estimate_by_minibatch(reading: Readings, params: Params, samples: Samples, sums: Accumulator) -> None:
    """B times the square of the mean gradient, B Σ_a (∂_k 1/B Σ_i reading_ia)²; one forward and A backward passes.

    Not s, which is the mean of squares: the square of the mean is smaller by up to the batch size.
    """
    sums.set_weights(sums.groups[:, :1] * len(samples))
    values = reading(samples).mean(0)
    for a, value in enumerate(values):
        add_squares(value, params, sums, retain_graph=a < len(values) - 1)


def add_squares(value: Tensor, params: Params, sums: Accumulator, *, retain_graph: bool) -> None:
    """Add the squares of one gradient, parameter by parameter during backward: it is never in memory as a whole."""

    def consume(name: str, g: Tensor) -> Tensor:
        with torch.no_grad():
            sums.choose_scale(name, g)
            sums.add_sample(name, g, 0)
        return g.new_zeros(()).expand_as(g)  # autograd keeps this instead

    hooks = [p.register_hook(partial(consume, name)) for name, p in params.items()]
    try:
        gradient(value, params, retain_graph=retain_graph)
    finally:
        for hook in hooks:
            hook.remove()


def gradient(value: Tensor, params: Params, *, retain_graph: bool) -> dict[str, Tensor]:
    """The gradient by name, without parameters that `value` does not depend on."""
    if not value.requires_grad:
        return {}
    grads = torch.autograd.grad(value, list(params.values()), retain_graph=retain_graph, allow_unused=True)
    return {name: g for name, g in zip(params, grads, strict=True) if g is not None}
