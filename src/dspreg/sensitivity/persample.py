"""`persample`: the mean of squared per-sample gradients, at about the price of a plain backward pass.

Parameters go three ways. Most enter a function that `rules` knows, once, and their squares are formed in one backward
pass that keeps no gradients (`Taps`). What is left, a tied weight or a GRU's, is vectorised by `torch.func`, for these
parameters alone; and what that cannot do is done sample by sample.

Before a network is measured for the first time the quick way is compared with the slow one on three samples, parameter
by parameter: a network may use its layers in ways that nobody thought of.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Set
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from dspreg.errors import DataError, Notice
from dspreg.sensitivity.estimators import Params, Readings, loop
from dspreg.sensitivity.samples import Inputs, Samples
from dspreg.sensitivity.sums import Sums
from dspreg.sensitivity.taps import Taps

CHUNK_BYTES = 2**28  # of per-sample gradients that `vectorised` holds at a time
COMPARED = 3  # samples: with one, those who mix up samples and positions could not be told
_trusted: WeakKeyDictionary[nn.Module, dict[tuple[object, ...], frozenset[str]]] = WeakKeyDictionary()
_not_vectorised: WeakKeyDictionary[nn.Module, set[str]] = WeakKeyDictionary()


def persample(reading: Readings, params: Params, samples: Samples, sums: Sums, *, net: nn.Module) -> None:
    """Add Σ_a (∂_k reading_ia)² of every sample i to `sums`."""
    quick = trusted(reading, params, samples, net)
    done = by_rules(reading, params, samples, sums, quick) if quick else set()
    rest = {name: p for name, p in params.items() if name not in done}
    if rest:
        by_vectors(reading, rest, samples, sums, net=net)


def by_rules(reading: Readings, params: Params, samples: Samples, sums: Sums, wanted: Set[str]) -> set[str]:
    """One forward pass, and one backward pass per reading, for the parameters that `rules` are enough for.

    Returns:
        The names of those, among the wanted. A parameter that was not seen at all has no part in the readings.
    """
    taps = Taps(params, len(samples), sums)
    with taps:
        values = reading(samples)
    done = {name for name in wanted if name in taps.once or name not in taps.seen}
    taps.skip = set(params) - done
    for a in range(values.shape[1]):
        if values.requires_grad:
            last = a == values.shape[1] - 1
            torch.autograd.grad(values[:, a].sum(), [taps.anchor], retain_graph=not last, allow_unused=True)
    return done


def trusted(reading: Readings, params: Params, samples: Samples, net: nn.Module) -> frozenset[str]:
    """The parameters for which the rules give what the plain loop gives, on a few samples."""
    few = samples.take(slice(0, COMPARED))
    known = _trusted.setdefault(net, {})
    sort = (tuple(params), *few.sort)
    if sort not in known:
        known[sort] = compared(reading, params, few)
    return known[sort]


def compared(reading: Readings, params: Params, few: Samples) -> frozenset[str]:
    everyone = torch.ones(1, len(few), dtype=torch.float64)
    quick, slow = Sums(params, 1), Sums(params, 1)
    for sums in (quick, slow):
        sums.weigh(everyone)
    try:
        done = by_rules(reading, params, few, quick, set(params))
    except (DataError, torch.OutOfMemoryError):
        raise
    except RuntimeError:
        return frozenset()
    slow.scales = quick.scales
    loop(reading, params, few, slow)
    fast, exact = quick.row(0), slow.row(0)
    tolerance = 1e-9 if next(iter(params.values())).dtype == torch.float64 else 1e-2
    return frozenset(
        name for name in done if (fast[name] - exact[name]).abs().amax() <= tolerance * exact[name].abs().amax()
    )


def by_vectors(reading: Readings, params: Params, samples: Samples, sums: Sums, *, net: nn.Module) -> None:
    """By `torch.func`, and where it fails by a loop, with one notice."""
    slow = _not_vectorised.setdefault(net, set())
    rest = {name: p for name, p in params.items() if name not in slow}
    if rest:
        held = Sums(rest, sums.rows, sums.scales)  # so that nothing is added twice
        held.weigh(sums.groups)
        try:
            vectorised(reading, rest, samples, held, net=net)
            require_all_reached(reading, rest, samples, held)
            sums.merge(held)
        except (DataError, torch.OutOfMemoryError):
            raise
        except (RuntimeError, NotImplementedError) as error:
            slow.update(rest)
            reason = str(error).strip().splitlines()[0]
            few = ", ".join(list(rest)[:3]) + (f" and {len(rest) - 3} more" if len(rest) > 3 else "")
            text = f"torch.func cannot vectorise {few} ({reason}); measuring them sample by sample"
            warnings.warn(f"{text}: the same numbers, slower", Notice, stacklevel=2)
    if slow & set(params):
        loop(reading, {name: params[name] for name in params if name in slow}, samples, sums)


def vectorised(
    reading: Readings,
    params: Params,
    samples: Samples,
    sums: Sums,
    *,
    net: nn.Module,
    chunk_bytes: int = CHUNK_BYTES,
) -> None:
    """Many samples at a time by `torch.func`, at most `chunk_bytes` of gradients at once."""
    device = next(iter(params.values())).device
    y = samples.y if samples.y is not None else torch.zeros(len(samples), device=device)  # not looked at
    closed = _Closed(net, reading)
    slots = _slots(net, params)

    def one(params: Params, inputs: Inputs, y: Tensor, a: int) -> Tensor:
        single = Samples(inputs, y).map(lambda t: t[None])
        named = {f"net.{slot}": params[name] for slot, name in slots.items()}
        # torch's own tying would put a parameter twice into a module that is registered twice, and never take it out
        values: Tensor = torch.func.functional_call(closed, (named, buffers), (single,), tie_weights=False)
        return values[0, a]

    buffers = {f"net.{name}": b for name, b in net.named_buffers()}  # what forward puts in their place is dropped
    gradients: Callable[..., dict[str, Tensor]] = torch.func.vmap(torch.func.grad(one), in_dims=(None, 0, 0, None))
    with torch.no_grad():
        num_readings = reading(samples.take(slice(0, 1))).shape[1]
    size = max(1, chunk_bytes // sum(p.numel() * p.element_size() for p in params.values()))
    point = {name: p.detach() for name, p in params.items()}
    for start in range(0, len(samples), size):
        part = slice(start, start + size)
        inputs = samples.take(part).inputs
        for a in range(num_readings):
            # no_grad: parameters that are not measured would keep a graph alive. Fused attention cannot be vectorised.
            with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
                each = gradients(point, inputs, y[part], a)
            for name, g in each.items():
                sums.probe(name, g)
                sums.given(name, g, start)


def require_all_reached(reading: Readings, params: Params, samples: Samples, sums: Sums) -> None:
    """`torch.func` exchanges parameters in their modules; one used from elsewhere, a list, would seem unused."""
    silent = {name: params[name] for name in params if name not in sums.totals or not sums.totals[name].any()}
    total = reading(samples.take(slice(0, COMPARED))).square().sum()
    if silent and total.requires_grad:
        grads = torch.autograd.grad(total, list(silent.values()), allow_unused=True)
        for name, g in zip(silent, grads, strict=True):
            if g is not None and g.any():
                raise RuntimeError(f"{name!r} is used otherwise than as an attribute of its module")


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
