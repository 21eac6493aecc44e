"""Which way each parameter of a network can be measured, found by comparing with single samples.

A network may use its layers in ways that nobody thought of: positions before samples, samples sorted inside, parameters
in a list. So the quick ways are compared with the plain loop on three samples, parameter by parameter, before they are
relied on.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from dspreg.errors import DataError, Notice
from dspreg.sensitivity.estimators import Params, Readings, estimate_by_loop
from dspreg.sensitivity.per_sample.accumulator import Accumulator
from dspreg.sensitivity.samples import Samples, module_ids

COMPARED = 3  # samples: with one, those who mix up samples and positions could not be warned
WEIGHTS = (1.0, 2.0, 4.0)  # theirs: with equal ones, those who exchange samples could not


class Strategies(dict[str, str]):
    """A parameter's: "rules", "vectors" or "loop". Without an entry nobody knows yet."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[str, float] = {}  # numbers per sample that it had a part in, of those that rules saw


Way = Callable[[Params, Samples, Accumulator], set[str]]  # adds what it can do, and says for which names
_known: WeakKeyDictionary[nn.Module, dict[tuple[object, ...], Strategies]] = WeakKeyDictionary()
_warned: WeakKeyDictionary[nn.Module, set[str]] = WeakKeyDictionary()


def known_strategies(params: Params, samples: Samples, net: nn.Module) -> Strategies:
    """What was found out about this network and sort of samples, to be added to.

    A network is another one when a module was exchanged. And what holds for a batch of one need not hold for more.
    """
    sort = (tuple(params), module_ids(net), min(len(samples), COMPARED), samples.sort)
    return _known.setdefault(net, {}).setdefault(sort, Strategies())


def compare_strategies(
    reading: Readings, params: Params, samples: Samples, *, rules: Way, vectors: Way, net: nn.Module
) -> dict[str, str]:
    """The ways that give the loop's numbers. A parameter whose gradients are zero proves nothing and has no entry."""
    few = samples.take(slice(0, COMPARED))
    exact = _weighted(params, few)
    estimate_by_loop(reading, params, few, exact)
    moved = {name: p for name, p in params.items() if name in exact.totals and exact.totals[name].any()}
    if not moved:
        return {}
    right, _ = _right(rules, moved, few, exact)
    ways = dict.fromkeys(right, "rules")
    rest = {name: p for name, p in moved.items() if name not in ways}
    if rest:
        right, error = _right(vectors, rest, few, exact)
        ways |= {name: "vectors" if name in right else "loop" for name in rest}
        warn_slow(net, [name for name in rest if name not in right], error)
    return ways


def warn_slow(net: nn.Module, names: list[str], error: Exception | None) -> None:
    """Once for each parameter: it is slow, and why."""
    warned = _warned.setdefault(net, set())
    if warned.issuperset(names):
        return
    warned.update(names)
    reason = str(error).strip().splitlines()[0] if error else "it gives other numbers than single samples do"
    few = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    text = f"torch.func cannot vectorise {few} ({reason}); measuring them sample by sample"
    warnings.warn(f"{text}: the same numbers, slower", Notice, stacklevel=2)


def _right(way: Way, params: Params, few: Samples, exact: Accumulator) -> tuple[set[str], Exception | None]:
    """The parameters for which this way gives the exact squares, or why it gives none."""
    sums = _weighted(params, few, exact.scales)
    try:
        done = way(params, few, sums)
    except (DataError, torch.OutOfMemoryError):
        raise
    except (RuntimeError, NotImplementedError) as error:
        return set(), error
    near = tolerance(params)
    found = done & sums.totals.keys()
    return {name for name in found if agree(sums.totals[name], exact.totals[name], near)}, None


def _weighted(params: Params, samples: Samples, scales: dict[str, float] | None = None) -> Accumulator:
    sums = Accumulator(params, 1, scales)
    device = next(iter(params.values())).device
    sums.set_weights(torch.tensor([WEIGHTS[: len(samples)]], dtype=torch.float64, device=device))
    return sums


def agree(ours: Tensor, exact: Tensor, near: float) -> bool:
    """By the size of the largest. NaN agrees with nothing."""
    return bool((ours - exact).abs().amax() <= near * exact.amax())


def tolerance(params: Params) -> float:
    """Of squares, relative, by the coarsest dtype."""
    eps = max(torch.finfo(p.dtype).eps for p in params.values())
    return 1e-9 if eps < 1e-15 else 1e-2 if eps < 1e-6 else 1e-1
