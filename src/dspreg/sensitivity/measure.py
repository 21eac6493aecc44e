"""`measure`: how sensitive a network is to each of its parameters on each domain, and how much that differs."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from dspreg.errors import ConfigError, DataError, Notice
from dspreg.randomness import Key
from dspreg.sensitivity.estimators import Loss
from dspreg.sensitivity.meter import Meter
from dspreg.sensitivity.null import Floor, FunctionOf, Walk
from dspreg.sensitivity.profile import Profile, kinds_of
from dspreg.sensitivity.purity import evaluating, require_separate_samples
from dspreg.sensitivity.samples import Samples, batches_of
from dspreg.sensitivity.statistics import Moments, coefficient, debiased, dispersion, rank_correlation, root_mean_square
from dspreg.sensitivity.variance import Variance, variance_of
from dspreg.vectors import ParamVector, Patterns


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
    dtype = torch.promote_types(next(iter(meter.params.values())).dtype, torch.float32)
    loaded: dict[str, Iterable[Samples]] = {
        name: _labelled(meter, f, name, d, batches) for d, (name, batches) in enumerate(domains.items())
    }
    floor = None
    if null:
        kept = {name: list(batches) for name, batches in loaded.items()}
        loaded = dict(kept)
        floor = Floor(meter, f, list(kept.values()), walk)

    across, halves = Moments(), (Moments(), Moments())
    s: dict[str, ParamVector] = {}
    errors: list[ParamVector] = []
    counts: dict[str, dict[str, int]] = {}
    for d, (name, batches) in enumerate(loaded.items()):
        within, parts = Moments(), (Moments(), Moments())
        for b, samples in enumerate(walk(batches, f"measuring {name}")):
            mean = floor.shared(d, b, samples) if floor else meter.mean(f(samples, d), samples, d, b)
            within.add(mean, len(samples))
            parts[b % 2].add(mean, len(samples))
        across.add(within.mean)
        counts[name] = {"batches": within.count, "samples": int(within.weight)}
        s[name] = (within.mean * scale).to(dtype)
        if within.count > 1:
            errors.append(within.standard_error)
            for half, part in zip(halves, parts, strict=True):
                half.add(part.mean)
    null_c = floor.c(eps, scale) if floor else None

    enough = len(errors) == len(counts)
    if not enough:
        few = ", ".join(name for name, n in counts.items() if n["batches"] < 2)
        warnings.warn(f"one batch only of {few}: c_debiased and reliability need two per domain", Notice, stacklevel=3)
    scaled = across.scaled(scale)
    return Profile(
        s=s,
        mean=scaled.mean.to(dtype),
        variance=scaled.deviation.square().to(dtype),
        c=coefficient(across, scale, eps).to(dtype),
        c_debiased=debiased(scaled, root_mean_square(errors) * scale, eps).to(dtype) if enough else None,
        null=None if null_c is None else null_c.to(dtype),
        reliability=_agreement(across, [coefficient(half, scale, eps) for half in halves]) if enough else None,
        kinds=kinds_of(meter.net, meter.params),
        settings={
            "of": meter.of,
            "estimator": meter.estimator,  # `loop` where `persample` fell back to it
            "draws": meter.draws if meter.estimator == "signed" else None,
            "eps": eps,
            "variance": variance if isinstance(variance, (int, float)) else type(variance).__name__,
            "loss": "cross_entropy" if meter.loss is None else getattr(meter.loss, "__name__", "custom"),
            "domains": counts,
        },
    )


def refreshed(meter: Meter, f: FunctionOf, domains: Mapping[str, Iterable[Samples]], eps: float = 0.0) -> ParamVector:
    """c alone, domain by domain: three vectors, however many domains. Arguments as in `profiled`."""
    across = Moments()
    for d, (name, batches) in enumerate(domains.items()):
        mean, n = ParamVector(), 0
        for b, samples in enumerate(_labelled(meter, f, name, d, batches)):
            n += len(samples)
            mean = mean + (meter.mean(f(samples, d), samples, d, b) - mean) * (len(samples) / n)
        if not n:
            raise DataError(f"there are no samples of {name!r} to measure on")
        across.add(mean)
    return dispersion(across, eps)


def _labelled(meter: Meter, f: FunctionOf, name: str, d: int, batches: Iterable[Samples]) -> Iterator[Samples]:
    for b, samples in enumerate(batches):
        if b == 0:
            require_separate_samples(f(samples, d), samples)
        try:
            yield meter.labelled(f(samples, d), samples, d, b)
        except DataError as error:
            raise DataError(f"domain {name!r}, batch {b}: {error}") from error


def _agreement(across: Moments, halves: list[ParamVector]) -> float | None:
    """Rank correlation over the parameters some domain is sensitive to: the others agree on c = 0 for no merit."""
    alive = across.mean.flat() > 0
    odd, even = (half.flat()[alive] for half in halves)
    agreement = rank_correlation(odd, even)
    return agreement if math.isfinite(agreement) else None  # NaN where c is the same everywhere


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
