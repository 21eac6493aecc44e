"""Four ways to estimate how strongly each parameter moves the result on a batch.

All take the *readings* of a batch, a matrix (B, A) of scalars per sample, and the parameters θ_k:

    s_k = 1/B Σ_i Σ_a (∂_k reading_ia)²

With `of="loss"` the one reading is the sample's loss: the paper's practice, the empirical Fisher. With `of="output"`
there is a reading per output coordinate, and Σ_a (∂_k f_a)² is the squared norm in the paper's definition of s_k. With
`of="fisher"` the labels are drawn from the network's own softmax, which makes it the true Fisher's diagonal.

`loop` and `persample` take the square per sample, before averaging. `signed` is unbiased for the same number.
`minibatch` squares the gradient of the mean: another and smaller quantity. A weight used twice, or shared between
layers, has its gradients summed before the square, as the derivative with respect to it is.

Everything is squared and summed in float64: the square of a small float32 is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from dspreg.errors import DataError
from dspreg.sensitivity.samples import Function, Inputs, Samples
from dspreg.vectors import ParamVector

Loss = Callable[[Tensor, Tensor], Tensor]
Readings = Callable[[Samples], Tensor]
Params = Mapping[str, Tensor]

CHUNK_BYTES = 2**28  # of per-sample gradients held at a time


def readings(f: Function, of: str, loss: Loss | None = None) -> Readings:
    """The scalars per sample (B, A) whose gradients are squared."""

    def outputs(samples: Samples) -> Tensor:
        return samples.outputs(f).reshape(len(samples), -1)

    def losses(samples: Samples) -> Tensor:
        assert samples.y is not None
        out = samples.outputs(f)
        values = F.cross_entropy(out, samples.y, reduction="none") if loss is None else loss(out, samples.y)
        if values.shape != (len(samples),):
            raise DataError(
                f"the loss returned shape {tuple(values.shape)} for {len(samples)} samples; "
                f"wanted ({len(samples)},), one value per sample: use reduction='none' and average the rest yourself"
            )
        return values[:, None]

    return outputs if of == "output" else losses


@torch.no_grad()
def drawn_labels(f: Function, samples: Samples, random: torch.Generator) -> Tensor:
    """One label per sample from the network's softmax, y ~ p(· | x). (B,)"""
    p = samples.outputs(f).double().softmax(1)
    return torch.multinomial(p.cpu(), 1, generator=random)[:, 0].to(p.device)


def loop(reading: Readings, params: Params, samples: Samples, groups: Tensor) -> ParamVector:
    """One sample and one reading at a time: the reference.

    Args:
        reading: See `readings`.
        params: The θ_k by name.
        samples: B samples.
        groups: (G, B) weights. Row g of the result is Σ_i groups_gi Σ_a (∂_k reading_ia)²; 1/B everywhere gives s.

    Returns:
        One tensor (G, …) per parameter, float64.
    """
    total = _zeros(params, len(groups))
    for i in range(len(samples)):
        values = reading(samples.take(slice(i, i + 1)))[0]
        for value in values:
            for name, g in gradient(value, params, retain_graph=True).items():
                total[name] += torch.multiply(groups[:, i].view(-1, *[1] * g.ndim), g.double().square())
    return ParamVector(total)


def persample(
    reading: Readings,
    params: Params,
    samples: Samples,
    groups: Tensor,
    *,
    net: nn.Module,
    chunk_bytes: int = CHUNK_BYTES,
) -> ParamVector:
    """Like `loop`, many samples at a time by `torch.func`, at most `chunk_bytes` of gradients at once."""
    y = samples.y if samples.y is not None else torch.zeros(len(samples), device=groups.device)  # not looked at
    closed = _Closed(net, reading)
    slots = _slots(net, params)

    def one(params: Params, inputs: Inputs, y: Tensor, a: int) -> Tensor:
        single = Samples(inputs, y).map(lambda t: t[None])
        named = {f"net.{slot}": params[name] for slot, name in slots.items()}
        # torch's own tying would put a parameter twice into a module that is registered twice, and never take it out
        values: Tensor = torch.func.functional_call(closed, (named, buffers), (single,), tie_weights=False)
        return values[0, a]

    buffers = {f"net.{name}": b for name, b in net.named_buffers()}  # what forward puts in their place is dropped
    gradients = torch.func.vmap(torch.func.grad(one), in_dims=(None, 0, 0, None))
    with torch.no_grad():
        num_readings = reading(samples.take(slice(0, 1))).shape[1]
    size = max(1, chunk_bytes // sum(p.numel() * p.element_size() for p in params.values()))
    point = {name: p.detach() for name, p in params.items()}
    total = _zeros(params, len(groups))
    for start in range(0, len(samples), size):
        part = slice(start, start + size)
        inputs = samples.take(part).inputs
        for a in range(num_readings):
            # no_grad: parameters that are not measured would keep a graph alive. Fused attention cannot be vectorised.
            with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
                each = gradients(point, inputs, y[part], a)
            for name, g in each.items():
                total[name] += torch.tensordot(groups[:, part], g.double().square(), 1)
    return ParamVector(total)


def signed(reading: Readings, params: Params, samples: Samples, *, draws: int, random: torch.Generator) -> ParamVector:
    """The square of one random combination, (∂_k Σ_ia ε_ia reading_ia)²/B with ε = ±1, averaged over `draws`.

    Signs are independent, so cross terms vanish in expectation and it is unbiased for s; one backward pass a draw.
    Unbiased for s is not unbiased for c: a few draws give a large c where there is none. Compare with null.
    """
    values = reading(samples)
    total = _zeros(params)
    for draw in range(draws):
        signs = torch.randint(2, values.shape, generator=random, device="cpu").to(values) * 2 - 1
        for name, g in gradient((signs * values).sum(), params, retain_graph=draw < draws - 1).items():
            total[name] += g.double().square()
    return ParamVector(total) / (draws * len(samples))


def minibatch(reading: Readings, params: Params, samples: Samples) -> ParamVector:
    """The square of the mean gradient, Σ_a (∂_k 1/B Σ_i reading_ia)².

    Not s: where s has the mean of squares this has the square of the mean, smaller by up to the batch size.
    """
    total = _zeros(params)
    for value in reading(samples).mean(0):
        for name, g in gradient(value, params, retain_graph=True).items():
            total[name] += g.double().square()
    return ParamVector(total)


def _slots(net: nn.Module, params: Params) -> dict[str, str]:
    """Every place of a measured parameter in the network, and the name it goes by. A tied one has several."""
    named = {p: name for name, p in params.items()}
    places = {}
    for module, owner in net.named_modules():  # each module once, also if it is registered twice
        for own, p in owner.named_parameters(recurse=False, remove_duplicate=False):
            if p in named:
                places[f"{module}.{own}".removeprefix(".")] = named[p]
    return places


class _Closed(nn.Module):
    """`reading` as a module with the network inside, so that `functional_call` can put other parameters into it."""

    def __init__(self, net: nn.Module, reading: Readings):
        super().__init__()
        self.net = net
        self.reading = reading

    def forward(self, samples: Samples) -> Tensor:
        return self.reading(samples)


def gradient(value: Tensor, params: Params, *, retain_graph: bool) -> dict[str, Tensor]:
    """The gradient, without the parameters that `value` does not depend on."""
    if not value.requires_grad:
        return {}
    grads = torch.autograd.grad(value, list(params.values()), retain_graph=retain_graph, allow_unused=True)
    return {name: g for name, g in zip(params, grads, strict=True) if g is not None}


def _zeros(params: Params, *leading: int) -> dict[str, Tensor]:
    return {n: torch.zeros((*leading, *p.shape), dtype=torch.float64, device=p.device) for n, p in params.items()}
