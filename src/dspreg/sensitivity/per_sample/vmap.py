"""Per-sample gradients of many samples at a time by `torch.func`, for parameters without a layer rule."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from dspreg.sensitivity.estimators import Params, Readings
from dspreg.sensitivity.per_sample.accumulator import Accumulator
from dspreg.sensitivity.samples import Inputs, Samples

CHUNK_BYTES = 2**28  # of per-sample gradients held at a time


def estimate_by_vmap(
    reading: Readings,
    params: Params,
    samples: Samples,
    sums: Accumulator,
    *,
    net: nn.Module,
    chunk_bytes: int = CHUNK_BYTES,
) -> None:
    """Many samples at a time by `torch.func`, at most `chunk_bytes` of gradients at once."""
    device = next(iter(params.values())).device
    y = samples.y if samples.y is not None else torch.zeros(len(samples), device=device)  # not used
    module = _ReadingModule(net, reading)
    slots = _slots(net, params)

    def reading_of_one(params: Params, inputs: Inputs, y: Tensor, a: int) -> Tensor:
        single = Samples(inputs, y).map(lambda t: t[None])
        named = {f"net.{slot}": params[name] for slot, name in slots.items()}
        # torch's own tying would set a parameter twice in a module that is registered twice, and never restore it
        values: Tensor = torch.func.functional_call(module, (named, buffers), (single,), tie_weights=False)
        return values[0, a]

    buffers = {f"net.{name}": b for name, b in net.named_buffers()}  # what forward assigns to them is dropped
    gradients: Callable[..., dict[str, Tensor]] = torch.func.vmap(
        torch.func.grad(reading_of_one), in_dims=(None, 0, 0, None)
    )
    with torch.no_grad():
        num_readings = reading(samples.take(slice(0, 1))).shape[1]
    size = max(1, chunk_bytes // sum(p.numel() * p.element_size() for p in params.values()))
    point = {name: p.detach() for name, p in params.items()}
    for start in range(0, len(samples), size):
        part = slice(start, start + size)
        inputs = samples.take(part).inputs
        for a in range(num_readings):
            # no_grad: parameters that are not measured would keep a graph alive. vmap does not support fused attention.
            with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
                each = gradients(point, inputs, y[part], a)
            for name, g in each.items():
                sums.choose_scale(name, g)
                sums.add_gradients(name, g, start)


def _slots(net: nn.Module, params: Params) -> dict[str, str]:
    """Every attribute of the network that holds a measured parameter → its name. A tied parameter has several."""
    names = {p: name for name, p in params.items()}
    slots = {}
    for module, owner in net.named_modules():  # each module once, even if registered twice
        for own, p in owner.named_parameters(recurse=False, remove_duplicate=False):
            if p in names:
                slots[f"{module}.{own}".removeprefix(".")] = names[p]
    return slots


class _ReadingModule(nn.Module):
    """`reading` as a module that contains the network, so that `functional_call` can replace its parameters."""

    def __init__(self, net: nn.Module, reading: Readings):
        super().__init__()
        self.net = net
        self.reading = reading

    def forward(self, samples: Samples) -> Tensor:
        return self.reading(samples)
