"""`persample`: the mean of squared per-sample gradients, at about the cost of a plain backward pass.

There are three strategies. Most parameters are used once, by a function with a rule in `layer_rules`, and their squares
are computed in one backward pass that keeps no gradients (`ParameterTaps`). The rest, such as a tied weight or a
GRU's, is vectorised by `torch.func`; and what that does not support is computed sample by sample. `strategy` finds out
which is correct for which parameter.
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
from dspreg.sensitivity.samples import Samples, architecture
from dspreg.vectors import leaves


def estimate_per_sample(
    reading: Readings,
    params: Params,
    samples: Samples,
    sums: Accumulator,
    *,
    net: nn.Module,
    now: tuple[object, ...] | None = None,
    outputs: Readings | None = None,
) -> None:
    """Add Σ_a (∂_k reading_ia)² of every sample i to `sums`.

    Args:
        reading, params, samples, sums: As in `estimate_by_loop`.
        net: The network of the parameters.
        now: Its `architecture`, if known.
        outputs: Its outputs as readings, on which strategies are compared: gradients of a loss near 0 are mostly
            rounding. By default the readings themselves.
    """
    example, few = partial(_combine, outputs or reading), samples.take(slice(0, COMPARED))
    if outputs is not None:  # outputs need no labels, so that y can hold the numbers of the samples
        few = few.with_labels(torch.arange(len(few), device=next(iter(params.values())).device))
        example = partial(_combine_by_sample, outputs)
    strategies = known_strategies(params, samples, net, architecture(net) if now is None else now)
    if new := not strategies:
        strategies.update(_compare(example, params, few, net, strategies.sizes))
    by_rules = {name for name in params if strategies.get(name) == "rules"}
    unknown = {name for name in params if name not in strategies}
    before = {name: sums.totals[name].clone() for name in unknown & sums.totals.keys()}
    done: set[str] = set()
    if by_rules:
        done = estimate_by_rules(reading, params, samples, sums, by_rules | unknown, strategies.sizes)
    changed = {name: params[name] for name in unknown & done if _has_changed(sums, name, before)}
    if changed:  # gradients that were zero before
        done -= _undo_wrong(reading, changed, samples, sums, before)
        strategies.update(dict.fromkeys(changed.keys() & done, "rules"))
    rest = {name: p for name, p in params.items() if name not in done}
    if rest:
        estimate_rest(reading, rest, samples, sums, strategies, net=net)
    still_unknown = {name: p for name, p in rest.items() if name in unknown}
    if still_unknown and not new:
        strategies.update(_compare(example, still_unknown, few, net, strategies.sizes))


def estimate_by_rules(
    reading: Readings, params: Params, samples: Samples, sums: Accumulator, wanted: Set[str], sizes: dict[str, float]
) -> set[str]:
    """One forward pass, and one backward pass per reading, for the parameters that layer rules suffice for.

    Args:
        reading, params, samples, sums: As in `estimate_by_loop`.
        wanted: Names.
        sizes: Outputs per sample where each parameter was used before; updated. If they differ now, as in a network
            that drops padding, the rows of a sample are not where the rule expects them.

    Returns:
        The names among `wanted` that were measured, including those without influence on the readings.
    """
    taps = ParameterTaps(params, len(samples), sums)
    with taps:
        values = reading(samples)
    # tapped parameters are detached: any that autograd still reaches was used elsewhere, by a script or custom function
    elsewhere = {id(leaf) for leaf in leaves(values)}
    done = {n for n in wanted if (n in taps.once or n not in taps.seen) and id(params[n]) not in elsewhere}
    done -= {name for name, size in taps.sizes.items() if sizes.setdefault(name, size) != size}
    taps.skip = set(params) - done
    for a in range(values.shape[1]):
        if values.requires_grad:
            last = a == values.shape[1] - 1
            torch.autograd.grad(values[:, a].sum(), [taps.anchor], retain_graph=not last, allow_unused=True)
    return done


def estimate_rest(
    reading: Readings, params: Params, samples: Samples, sums: Accumulator, strategies: Strategies, *, net: nn.Module
) -> None:
    """By `torch.func` if that is known to be correct, else by the loop."""
    by_vmap = {name: p for name, p in params.items() if strategies.get(name) == "vmap"}
    if by_vmap:
        separate = Accumulator(by_vmap, sums.rows, sums.scales)  # so that after an error nothing is added twice
        separate.set_weights(sums.groups)
        try:
            estimate_by_vmap(reading, by_vmap, samples, separate, net=net)
            sums.merge(separate)
        except (DataError, torch.OutOfMemoryError):
            raise
        except (RuntimeError, NotImplementedError) as error:
            strategies.update(dict.fromkeys(by_vmap, "loop"))
            warn_slow(net, list(by_vmap), error)
    rest = {name: p for name, p in params.items() if strategies.get(name) != "vmap"}
    if rest:
        estimate_by_loop(reading, rest, samples, sums)


def _compare(
    reading: Readings, params: Params, samples: Samples, net: nn.Module, sizes: dict[str, float]
) -> dict[str, str]:
    def rules(params: Params, few: Samples, sums: Accumulator) -> set[str]:
        return estimate_by_rules(reading, params, few, sums, set(params), sizes)

    def vmap(params: Params, few: Samples, sums: Accumulator) -> set[str]:
        estimate_by_vmap(reading, params, few, sums, net=net)
        return set(params)

    return compare_strategies(reading, params, samples, rules=rules, vmap=vmap, net=net)


def _combine(reading: Readings, samples: Samples) -> Tensor:
    """One combination of all readings, with unequal weights: the outputs of a softmax have a constant sum."""
    values = reading(samples)
    weights = torch.arange(1, values.shape[1] + 1, device=values.device).cos().to(values.dtype)
    return (values * weights).sum(1, keepdim=True)


def _combine_by_sample(reading: Readings, samples: Samples) -> Tensor:
    """The same, with another factor for every sample. Otherwise all samples would have the same gradient after the last
    non-linearity, and an exchange of samples would not be noticed.
    """
    assert samples.y is not None
    return _combine(reading, samples) * (1 + samples.y)[:, None]


def _has_changed(sums: Accumulator, name: str, before: dict[str, Tensor]) -> bool:
    """Whether anything but zeros was added to a parameter's sums."""
    total = sums.totals.get(name)
    return total is not None and not torch.equal(total, before.get(name, torch.zeros_like(total)))


def _undo_wrong(
    reading: Readings, params: Params, samples: Samples, sums: Accumulator, before: dict[str, Tensor]
) -> set[str]:
    """The parameters for which rules and loop differ on this batch. What was added for them is taken back.

    The others keep the sums of the rules, so that results are bitwise independent of when a parameter was compared.
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
