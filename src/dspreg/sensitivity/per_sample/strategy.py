"""The fastest correct strategy for each parameter, found by comparison with the loop over single samples.

A network may use its layers in unforeseen ways: positions before samples, samples sorted inside, parameters in a list.
So the fast strategies are compared with the loop on three samples, parameter by parameter, before they are used.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from dspreg.errors import DataError, Notice
from dspreg.io.text import join_few
from dspreg.sensitivity.estimators import Params, Readings, estimate_by_loop
from dspreg.sensitivity.per_sample.accumulator import Accumulator
from dspreg.sensitivity.samples import Facts, Samples

COMPARED = 3  # samples: with one, a mix-up of samples and positions would not be noticed
WEIGHTS = (1.0, 2.0, 4.0)  # of these samples: with equal weights, an exchange of samples would not be noticed


class Strategies(dict[str, str]):
    """Parameter name → "rules", "vmap" or "loop"; a parameter without an entry has not been compared yet."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[str, float] = {}  # outputs per sample of the function a parameter enters, if a rule applies


Estimate = Callable[[Params, Samples, Accumulator], set[str]]  # adds squares; returns the names it did so for
_known = Facts[Strategies]()
_warned: WeakKeyDictionary[nn.Module, set[str]] = WeakKeyDictionary()


def known_strategies(params: Params, samples: Samples, net: nn.Module, now: tuple[object, ...]) -> Strategies:
    """The cached strategies for this network and signature of samples, to be updated.

    They do not hold once its `architecture` is not `now` any more, and what holds for a batch of one need not hold for
    more.
    """
    key = (tuple(params), min(len(samples), COMPARED), samples.signature)
    return _known.about(net, now).setdefault(key, Strategies())


def compare_strategies(
    reading: Readings, params: Params, samples: Samples, *, rules: Estimate, vmap: Estimate, net: nn.Module
) -> dict[str, str]:
    """The strategies that agree with the loop. A parameter whose gradients are zero proves nothing and has no entry."""
    few = samples.take(slice(0, COMPARED))
    exact = _make_accumulator(params, few)
    estimate_by_loop(reading, params, few, exact)
    nonzero = {name: p for name, p in params.items() if name in exact.totals and exact.totals[name].any()}
    if not nonzero:
        return {}
    correct, _ = _find_agreeing(rules, nonzero, few, exact)
    strategies = dict.fromkeys(correct, "rules")
    rest = {name: p for name, p in nonzero.items() if name not in strategies}
    if rest:
        correct, error = _find_agreeing(vmap, rest, few, exact)
        strategies |= {name: "vmap" if name in correct else "loop" for name in rest}
        warn_slow(net, [name for name in rest if name not in correct], error)
    return strategies


def warn_slow(net: nn.Module, names: list[str], error: Exception | None) -> None:
    """Warn, once for each parameter, that it is measured by the slow loop, and why."""
    warned = _warned.setdefault(net, set())
    if warned.issuperset(names):
        return
    warned.update(names)
    reason = str(error).strip().splitlines()[0] if error else "its numbers differ from those of single samples"
    text = f"torch.func cannot vectorise {join_few(names, 3)} ({reason}); measuring them sample by sample"
    warnings.warn(f"{text}: the same numbers, slower", Notice, stacklevel=2)


def _find_agreeing(
    estimate: Estimate, params: Params, few: Samples, exact: Accumulator
) -> tuple[set[str], Exception | None]:
    """The parameters for which a strategy gives the exact squares, or the error that it raised."""
    sums = _make_accumulator(params, few, exact.scales)
    try:
        done = estimate(params, few, sums)
    except (DataError, torch.OutOfMemoryError):
        raise
    except (RuntimeError, NotImplementedError) as error:
        return set(), error
    near = tolerance(params)
    return {name for name in done & sums.totals.keys() if agree(sums.totals[name], exact.totals[name], near)}, None


def _make_accumulator(params: Params, samples: Samples, scales: dict[str, float] | None = None) -> Accumulator:
    sums = Accumulator(params, 1, scales)
    device = next(iter(params.values())).device
    sums.set_weights(torch.tensor([WEIGHTS[: len(samples)]], dtype=torch.float64, device=device))
    return sums


def agree(ours: Tensor, exact: Tensor, near: float) -> bool:
    """Whether all entries agree, relative to the largest. NaN agrees with nothing."""
    return bool((ours - exact).abs().amax() <= near * exact.amax())


def tolerance(params: Params) -> float:
    """Relative tolerance of squares, by the coarsest dtype."""
    eps = max(torch.finfo(p.dtype).eps for p in params.values())
    return 1e-9 if eps < 1e-15 else 1e-2 if eps < 1e-6 else 1e-1
