"""`persample`: the mean of squared per-sample gradients, at about the price of a plain backward pass.

Parameters go three ways. Most enter a function that `layer_rules` knows, once, and their squares are formed in one
backward pass that keeps no gradients (`ParameterTaps`). What is left, a tied weight or a GRU's, is vectorised by
`torch.func`, for these parameters alone; and what that cannot do is done sample by sample. `strategy` says which way is
right for which.
"""

from __future__ import annotations

from collections.abc import Set
from functools import partial

import torch
from torch import Tensor, nn

from dspreg.errors import DataError
from dspreg.sensitivity.estimators import Params, Readings, estimate_by_loop
from dspreg.sensitivity.per_sample.accumulator import Accumulator
from dspreg.sensitivity.per_sample.function_mode import ParameterTaps
from dspreg.sensitivity.per_sample.strategy import (
    COMPARED,
    Strategies,
    agree,
    compare_strategies,
    known_strategies,
    tolerance,
    warn_slow,
)
from dspreg.sensitivity.per_sample.vmap import estimate_by_vmap
from dspreg.sensitivity.samples import Samples
from dspreg.vectors import leaves


def estimate_per_sample(
    reading: Readings,
    params: Params,
    samples: Samples,
    sums: Accumulator,
    *,
    net: nn.Module,
    outputs: Readings | None = None,
) -> None:
    """Add Σ_a (∂_k reading_ia)² of every sample i to `sums`.

    Args:
        reading, params, samples, sums: As in `estimate_by_loop`.
        net: The network that the parameters are of.
        outputs: Its outputs as readings, to compare the ways on: a loss that is nearly 0 has gradients that are mostly
            rounding. The readings themselves unless given.
    """
    example, few = partial(_combined, outputs or reading), samples.take(slice(0, COMPARED))
    if outputs is not None:  # they need no labels, so that samples may carry what tells them apart
        few = few.with_labels(torch.arange(len(few), device=next(iter(params.values())).device))
        example = partial(_apart, outputs)
    ways = known_strategies(params, samples, net)
    if new := not ways:
        ways.update(_compared(example, params, few, net, ways.sizes))
    quick = {name for name in params if ways.get(name) == "rules"}
    unknown = {name for name in params if name not in ways}
    before = {name: sums.totals[name].clone() for name in unknown & sums.totals.keys()}
    done = by_rules(reading, params, samples, sums, quick | unknown, ways.sizes) if quick else set()
    moved = {name: params[name] for name in unknown & done if _moved(sums, name, before)}
    if moved:  # gradients that were zero are not any more
        done -= _wrong(reading, moved, samples, sums, before)
        ways.update(dict.fromkeys(moved.keys() & done, "rules"))
    rest = {name: p for name, p in params.items() if name not in done}
    if rest:
        slowly(reading, rest, samples, sums, ways, net=net)
    late = {name: p for name, p in rest.items() if name in unknown}
    if late and not new:
        ways.update(_compared(example, late, few, net, ways.sizes))


def by_rules(
    reading: Readings, params: Params, samples: Samples, sums: Accumulator, wanted: Set[str], sizes: dict[str, float]
) -> set[str]:
    """One forward pass, and one backward pass per reading, for the parameters that `rules` are enough for.

    Args:
        reading, params, samples, sums: As in `estimate_by_loop`.
        wanted: Names.
        sizes: Numbers per sample that each parameter had a part in before, to be added to. With others, as in a network
            that leaves padding out, samples lie elsewhere than where they were looked for.

    Returns:
        The names of those, among the wanted. A parameter that has no part in the readings is one of them.
    """
    taps = ParameterTaps(params, len(samples), sums)
    with taps:
        values = reading(samples)
    # what taps see is detached, so whatever autograd still leads to was used unseen: by a script, or by own functions
    unseen = {id(leaf) for leaf in leaves(values)}
    done = {n for n in wanted if (n in taps.once or n not in taps.seen) and id(params[n]) not in unseen}
    done -= {name for name, size in taps.sizes.items() if sizes.setdefault(name, size) != size}
    taps.skip = set(params) - done
    for a in range(values.shape[1]):
        if values.requires_grad:
            last = a == values.shape[1] - 1
            torch.autograd.grad(values[:, a].sum(), [taps.anchor], retain_graph=not last, allow_unused=True)
    return done


def slowly(
    reading: Readings, params: Params, samples: Samples, sums: Accumulator, ways: Strategies, *, net: nn.Module
) -> None:
    """By `torch.func` where that is known to be right, else by a loop."""
    vectors = {name: p for name, p in params.items() if ways.get(name) == "vectors"}
    if vectors:
        held = Accumulator(vectors, sums.rows, sums.scales)  # so that nothing is added twice
        held.set_weights(sums.groups)
        try:
            estimate_by_vmap(reading, vectors, samples, held, net=net)
            sums.merge(held)
        except (DataError, torch.OutOfMemoryError):
            raise
        except (RuntimeError, NotImplementedError) as error:
            ways.update(dict.fromkeys(vectors, "loop"))
            warn_slow(net, list(vectors), error)
    rest = {name: p for name, p in params.items() if ways.get(name) != "vectors"}
    if rest:
        estimate_by_loop(reading, rest, samples, sums)


def _compared(
    reading: Readings, params: Params, samples: Samples, net: nn.Module, sizes: dict[str, float]
) -> dict[str, str]:
    def rules(params: Params, few: Samples, sums: Accumulator) -> set[str]:
        return by_rules(reading, params, few, sums, set(params), sizes)

    def vectors(params: Params, few: Samples, sums: Accumulator) -> set[str]:
        estimate_by_vmap(reading, params, few, sums, net=net)
        return set(params)

    return compare_strategies(reading, params, samples, rules=rules, vectors=vectors, net=net)


def _combined(reading: Readings, samples: Samples) -> Tensor:
    """One reading out of many, with unequal weights: those of a softmax have a constant sum."""
    values = reading(samples)
    weights = torch.arange(1, values.shape[1] + 1, device=values.device).cos().to(values.dtype)
    return (values * weights).sum(1, keepdim=True)


def _apart(reading: Readings, samples: Samples) -> Tensor:
    """Times a number of each sample's own: behind the last non-linearity all have the same gradient otherwise, and who
    takes one for another could not be told.
    """
    assert samples.y is not None
    return _combined(reading, samples) * (1 + samples.y)[:, None]


def _moved(sums: Accumulator, name: str, before: dict[str, Tensor]) -> bool:
    """Whether something other than zero was added to a parameter's sums."""
    total = sums.totals.get(name)
    return total is not None and not torch.equal(total, before.get(name, torch.zeros_like(total)))


def _wrong(
    reading: Readings, params: Params, samples: Samples, sums: Accumulator, before: dict[str, Tensor]
) -> set[str]:
    """The parameters whose rules do not give what single samples give on this batch. What was added is taken back.

    The right ones keep what the rules gave, so that no bit depends on when a parameter was looked at.
    """
    exact = Accumulator(params, sums.rows, sums.scales)
    exact.set_weights(sums.groups)
    estimate_by_loop(reading, params, samples, exact)
    wrong = set()
    for name in params:
        total = sums.totals[name]
        added = total - before[name] if name in before else total
        if name not in exact.totals or not agree(added, exact.totals[name], tolerance(params)):
            wrong.add(name)
            total.copy_(before[name] if name in before else torch.zeros_like(total))
    return wrong
