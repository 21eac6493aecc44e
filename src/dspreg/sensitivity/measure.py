"""`measure`: how sensitive a network is to each of its parameters on each domain, and how much that differs."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn

from dspreg.errors import ConfigError, DataError, Notice
from dspreg.randomness import Key
from dspreg.sensitivity.estimators import Loss
from dspreg.sensitivity.meter import Meter, finite
from dspreg.sensitivity.null import Floor, FunctionOf, Walk
from dspreg.sensitivity.profile import Profile, kinds_of
from dspreg.sensitivity.purity import evaluating, require_separate_samples
from dspreg.sensitivity.samples import Function, Samples, batches_of, joined
from dspreg.sensitivity.statistics import Spread, coefficients
from dspreg.sensitivity.summary import Domain, Summary
from dspreg.sensitivity.sums import Sums
from dspreg.sensitivity.variance import Variance, variance_of
from dspreg.vectors import ParamVector, Patterns

ROWS = 3  # up to so many domains have sums of their own in a refresh: as many vectors as running statistics need
TOGETHER = 48  # samples of small batches that go through the network in one pass


def measure(
    model: nn.Module,
    domains: Mapping[str, Iterable[Any]],
    *,
    loss: Loss | None = None,
    of: str = "loss",
    estimator: str = "persample",
    variance: Variance = 1.0,
    eps: float = 0.0,
    only: Patterns = None,
    exclude: Patterns = None,
    max_batches: int | None = None,
    draws: int | None = None,
    progress: bool = False,
    null: bool = True,
    key: Key = 0,
) -> Profile:
    """Measure every parameter of `model` on every domain.

        s_k^(d) = Var(θ_k) · E_{x ~ d} [(∂_k ℓ)²]        c_k = √(Var_d s_k^(d)) / (mean_d s_k^(d) + ε)

    Runs in evaluation mode and leaves no trace: weights, buffers, gradients, flags and random state stay as they are.

    Args:
        model: Any network that treats samples separately in evaluation mode. Frozen parameters are left out.
        domains: At least two, by name. A loader is any iterable of (x, y), of x alone, or of dictionaries; it is
            iterated once.
        loss: Maps (output, y) to one value per sample; cross-entropy unless given.
        of: `"loss"` (the paper's practice), `"output"` (its definition: the Jacobian of the outputs) or `"fisher"`
            (labels drawn from the network). The last two need no labels.
        estimator: `"persample"`, its slow reference `"loop"`, `"signed"` (one backward pass a draw, unbiased for s)
            or `"minibatch"` (squares the mean gradient: another quantity).
        variance: Var(θ_k): a number, a vector by parameter name, or a `RunningVariance`. Scales s; cancels in c.
        eps: ε above. With 0, the default, c does not depend on the scale of the loss.
        only, exclude: Shell patterns on parameter names, such as `"layer4.*"`.
        max_batches: Of each domain; all unless given.
        draws: Sign draws per batch, for `"signed"`.
        progress: Show a progress bar.
        null: Also measure the floor of c. Holds all batches in memory, and `"signed"` and `"minibatch"` take twice
            as long.
        key: Of the drawn labels, signs and pseudo-domains: the same key gives the same numbers.

    Returns:
        A `Profile` with s by domain, their mean and variance, c, its floor `null`, `c_debiased` and `reliability`.
    """
    if not isinstance(domains, Mapping) or len(domains) < 2:
        got = f"{len(domains)} domain(s)" if isinstance(domains, Mapping) else f"a {type(domains).__name__}"
        raise DataError(f"{got}; wanted a mapping from name to loader with at least two, since c compares domains")
    if eps < 0 or not math.isfinite(eps):
        raise ConfigError(f"eps={eps}; wanted a finite number ≥ 0")
    if max_batches is not None and max_batches < 1:
        raise ConfigError(f"max_batches={max_batches}; wanted at least 1, or None for all")
    meter = Meter(
        model, of=of, estimator=estimator, draws=draws, loss=loss, only=only, exclude=exclude, key=("measure", key)
    )
    device = next(iter(meter.params.values())).device
    with evaluating(model), _bar(progress) as walk:
        loaded = {str(d): batches_of(str(d), loader, max_batches, device) for d, loader in domains.items()}
        return profiled(
            meter, lambda _samples, _domain: model, loaded, variance=variance, eps=eps, null=null, walk=walk
        )


def profiled(
    meter: Meter,
    f: FunctionOf,
    domains: Mapping[str, Iterable[Samples]],
    *,
    variance: Variance = 1.0,
    eps: float = 0.0,
    null: bool = True,
    walk: Walk = lambda batches, _what: batches,
) -> Profile:
    """All that is known of samples that are ready, for a network in evaluation mode. What `measure` stands on.

    Args:
        meter: The estimator.
        f: Given a batch and the position of its domain, the function to measure on it.
        domains: Batches by domain, iterated once.
        variance, eps, null: As in `measure`.
        walk: Shows how far it is.
    """
    scale = variance_of(variance, meter.params)
    loaded: dict[str, Iterable[Samples]] = {
        name: _labelled(meter, f, name, d, batches, again=null) for d, (name, batches) in enumerate(domains.items())
    }
    floor = None
    if null:
        kept = {name: list(batches) for name, batches in loaded.items()}
        loaded = dict(kept)
        floor = Floor(meter, f, list(kept.values()), walk)
    at_once = floor is not None and meter.takes_groups
    # The first row is the current batch. The others, where there are any, are the pseudo-domains of the floor.
    sums = meter.sums(1 + len(loaded) if at_once else 1)

    measured: dict[str, Domain] = {}
    for d, (name, batches) in enumerate(loaded.items()):
        domain = measured[name] = Domain()
        for b, samples in enumerate(walk(batches, f"measuring {name}")):
            groups = None
            if floor and at_once:
                groups = torch.cat([torch.ones(1, len(samples), dtype=torch.float64), floor.members(d, b)])
            meter.add(f(samples, d), samples, sums, d, b, groups=groups)
            domain.add(sums.row(0), len(samples))
            sums.clear(0)
        finite(domain.within.mean)
    pseudo = None
    if floor:
        pseudo = [sums.mean(1 + d, n) for d, n in enumerate(floor.sizes)] if at_once else floor.again()
    few = [name for name, domain in measured.items() if domain.within.count < 2]
    if few:
        text = f"one batch only of {', '.join(few)}: c_debiased and reliability need two per domain"
        warnings.warn(text, Notice, stacklevel=3)

    summary = Summary(meter.scales, scale, eps)
    for name in meter.params:
        summary.add(name, list(measured.values()), None if pseudo is None else [p[name] for p in pseudo])
    return Profile(
        **summary.fields(list(measured)),
        kinds=kinds_of(meter.net, meter.params),
        settings={
            "of": meter.of,
            "estimator": meter.estimator,
            "draws": meter.draws if meter.estimator == "signed" else None,
            "eps": eps,
            "variance": variance if isinstance(variance, (int, float)) else type(variance).__name__,
            "loss": "cross_entropy" if meter.loss is None else getattr(meter.loss, "__name__", "custom"),
            "domains": {name: domain.counts for name, domain in measured.items()},
        },
    )


def refreshed(meter: Meter, f: FunctionOf, domains: Mapping[str, Iterable[Samples]], eps: float = 0.0) -> ParamVector:
    """c alone: three vectors, however many domains. Arguments as in `profiled`."""
    labelled = [
        (d, name, _labelled(meter, f, name, d, batches, again=False))
        for d, (name, batches) in enumerate(domains.items())
    ]
    if len(labelled) <= ROWS:
        sums = meter.sums(len(labelled))
        sizes = _summed(meter, f, labelled, sums)
        floors = {name: eps * meter.scales.get(name, 1.0) ** 2 for name in meter.params}
        return finite(ParamVector((k, coefficients(sums.taken(k), sizes, floor)) for k, floor in floors.items()))
    across, sums = Spread(), meter.sums()
    for domain in labelled:
        (size,) = _summed(meter, f, [domain], sums)
        across.add(sums.row(0), size)
        sums.clear(0)
    finite(across.mean)
    return across.c(eps, meter.scales)


def _summed(
    meter: Meter, f: FunctionOf, domains: Sequence[tuple[int, str, Iterable[Samples]]], sums: Sums
) -> list[int]:
    """Add every domain to a row of its own. How many samples each has."""
    sizes = [0] * len(domains)

    def pieces() -> Iterator[Piece]:
        for row, (d, name, batches) in enumerate(domains):
            for b, samples in enumerate(batches):
                sizes[row] += len(samples)
                yield Piece(row, (d, b), f(samples, d), samples)
            if not sizes[row]:
                raise DataError(f"there are no samples of {name!r} to measure on")

    for together in _joined(pieces(), TOGETHER if meter.takes_groups else 0):
        rows = torch.tensor([piece.row for piece in together for _ in range(len(piece.samples))])
        groups = torch.eq(torch.arange(len(domains))[:, None], rows).double()
        first = together[0]
        meter.add(first.f, joined([piece.samples for piece in together]), sums, *first.place, groups=groups)
    return sizes


class Piece(NamedTuple):
    """One batch of one domain."""

    row: int
    place: tuple[int, int]
    f: Function
    samples: Samples


def _joined(pieces: Iterable[Piece], most: int) -> Iterator[list[Piece]]:
    """Neighbours that can go through the network together, up to so many samples: small batches cost more each."""
    held: list[Piece] = []
    for piece in pieces:
        if held:
            first, n = held[0], sum(len(p.samples) for p in (*held, piece))
            if n > most or piece.f != first.f or piece.samples.sort != first.samples.sort:
                yield held
                held = []
        held.append(piece)
    if held:
        yield held


def _labelled(
    meter: Meter, f: FunctionOf, name: str, d: int, batches: Iterable[Samples], *, again: bool
) -> Iterator[Samples]:
    for b, samples in enumerate(batches):
        if b == 0:
            require_separate_samples(meter.net, f(samples, d), samples)
        try:
            yield meter.labelled(f(samples, d), samples, d, b, again=again)
        except DataError as error:
            raise DataError(f"domain {name!r}, batch {b}: {error}") from error


@contextmanager
def _bar(show: bool) -> Iterator[Walk]:
    """A function that walks through batches, with a progress bar if wanted."""
    if not show:
        yield lambda batches, _: batches
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns) as bar:

        def walk(batches: Iterable[Samples], what: str) -> Iterable[Samples]:
            return bar.track(batches, total=len(batches) if isinstance(batches, list) else None, description=what)

        yield walk
