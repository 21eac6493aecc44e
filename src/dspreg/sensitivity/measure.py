"""`measure`: how sensitive a network is to each parameter on each domain, and how much this differs."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from dspreg.errors import ConfigError, DataError, Notice
from dspreg.io.progress_bars import make_console, make_progress
from dspreg.precision import full_precision
from dspreg.randomness import Key
from dspreg.sensitivity.distributed import ProcessGroup
from dspreg.sensitivity.estimators import Loss
from dspreg.sensitivity.evaluation_mode import evaluation_mode, require_separate_samples
from dspreg.sensitivity.meter import Meter, require_finite
from dspreg.sensitivity.null import FunctionOf, PermutationNull, Walk
from dspreg.sensitivity.profile import Profile, kinds_of
from dspreg.sensitivity.samples import Samples, batches_of, notice_same_data
from dspreg.sensitivity.summary import Domain, Summary
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
    group: Any = None,
) -> Profile:
    """Measure every parameter of `model` on every domain.

        s_k^(d) = Var(θ_k) · E_{x ~ d} [(∂_k ℓ)²]        c_k = √(Var_d s_k^(d)) / (mean_d s_k^(d) + ε)

    Runs in evaluation mode without side effects: weights, buffers, gradients, flags and random state stay as they are.

    Args:
        model: Any network that treats samples separately in evaluation mode. Frozen parameters are left out.
        domains: At least two, by name. A loader is any iterable of (x, y), of x alone, or of dictionaries; it is
            iterated once.
        loss: Maps (output, y) to one value per sample; cross-entropy by default.
        of: `"loss"` (the paper's practice), `"output"` (its definition: the Jacobian of the outputs) or `"fisher"`
            (labels drawn from the network). The last two need no labels.
        estimator: `"persample"`, its slow reference `"loop"`, `"signed"` (one backward pass per draw, unbiased for s)
            or `"minibatch"` (squares the mean gradient: another quantity).
        variance: Var(θ_k): a number, a vector by parameter name, or a `RunningVariance`. Scales s and cancels in c.
        eps: ε above. With 0, the default, c does not depend on the scale of the loss.
        only, exclude: Shell patterns on parameter names, such as `"layer4.*"`.
        max_batches: Per domain; all by default. A loader that never ends needs it.
        draws: Sign draws per batch, for `"signed"`.
        progress: Show a progress bar, on stderr.
        null: Also measure the null, c under random domain labels. Holds all batches in memory; `"signed"` and
            `"minibatch"` take twice as long.
        key: Seed of drawn labels, signs and pseudo-domains: the same key gives the same numbers.
        group: A `torch.distributed` process group. Each process passes its own batches of the same domains, and all
            get the profile of all batches, bitwise identical.

    Returns:
        A `Profile` with s by domain, its mean and variance over domains, c, `null`, `c_debiased` and `reliability`.
    """
    if not isinstance(domains, Mapping) or len(domains) < 2:
        got = f"{len(domains)} domain(s)" if isinstance(domains, Mapping) else f"a {type(domains).__name__}"
        raise DataError(f"{got}; wanted a mapping from name to loader with at least two, since c compares domains")
    notice_same_data(domains)
    if eps < 0 or not math.isfinite(eps):
        raise ConfigError(f"eps={eps}; wanted a finite number ≥ 0")
    if max_batches is not None and max_batches < 1:
        raise ConfigError(f"max_batches={max_batches}; wanted at least 1, or None for all")
    processes = ProcessGroup(group) if group is not None else None
    rank: tuple[Key, ...] = () if processes is None else (processes.rank,)  # otherwise all would draw the same signs
    meter = Meter(
        model,
        of=of,
        estimator=estimator,
        draws=draws,
        loss=loss,
        only=only,
        exclude=exclude,
        key=("measure", key, *rank),
    )
    device = next(iter(meter.params.values())).device
    with evaluation_mode(model), full_precision(device.type), progress_bar(progress) as walk:
        loaded = {str(d): batches_of(str(d), loader, max_batches, device) for d, loader in domains.items()}
        return build_profile(
            meter,
            lambda _samples, _domain: model,
            loaded,
            variance=variance,
            eps=eps,
            null=null,
            walk=walk,
            processes=processes,
        )


def build_profile(
    meter: Meter,
    f: FunctionOf,
    domains: Mapping[str, Iterable[Samples]],
    *,
    variance: Variance = 1.0,
    eps: float = 0.0,
    null: bool = True,
    walk: Walk = lambda batches, _what: batches,
    processes: ProcessGroup | None = None,
) -> Profile:
    """The profile of a network in evaluation mode, from checked samples. The core of `measure`.

    Args:
        meter: The estimator.
        f: Returns the function to measure on a batch, from the batch and the position of its domain.
        domains: Batches by domain, iterated once.
        variance, eps, null: As in `measure`.
        walk: Iterates over batches, displaying progress.
        processes: The processes that measure together, each its own batches.
    """
    scale = variance_of(variance, meter.params)
    if processes is None:
        measured, pseudo = _accumulate(meter, f, domains, null, walk)
    else:
        with processes.raise_together():
            measured, pseudo = _accumulate(meter, f, domains, null, walk)
        pseudo = processes.merge(measured, pseudo, meter)
    few = [name for name, domain in measured.items() if domain.within.count < 2]
    if few:
        text = f"only one batch of {', '.join(few)}: c_debiased and reliability need two per domain"
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


def _accumulate(
    meter: Meter, f: FunctionOf, domains: Mapping[str, Iterable[Samples]], null: bool, walk: Walk
) -> tuple[dict[str, Domain], list[ParamVector] | None]:
    """The sums of every domain, and s of every pseudo-domain of the null."""
    loaded: dict[str, Iterable[Samples]] = {
        name: attach_labels(meter, f, name, d, batches, again=null) for d, (name, batches) in enumerate(domains.items())
    }
    permutation = None
    if null:
        in_memory = {name: list(batches) for name, batches in loaded.items()}
        loaded = dict(in_memory)
        permutation = PermutationNull(meter, f, list(in_memory.values()), walk)
    same_pass = permutation is not None and meter.takes_groups
    # The first row is the current batch. The others, if there are any, are the pseudo-domains of the null.
    sums = meter.sums(1 + len(loaded) if same_pass else 1)

    measured: dict[str, Domain] = {}
    for d, (name, batches) in enumerate(loaded.items()):
        domain = measured[name] = Domain()
        for b, samples in enumerate(walk(batches, f"measuring {name}")):
            groups = None
            if permutation and same_pass:
                groups = torch.cat([torch.ones(1, len(samples), dtype=torch.float64), permutation.members(d, b)])
            meter.add(f(samples, d), samples, sums, d, b, groups=groups)
            domain.add(sums.row(0), len(samples))
            sums.clear(0)
        require_finite(domain.within.mean)
    pseudo: list[ParamVector] | None = None
    if permutation and same_pass:
        pseudo = [sums.mean(1 + d, n) for d, n in enumerate(permutation.sizes)]
    elif permutation:
        pseudo = permutation.second_pass()
    return measured, pseudo


def attach_labels(
    meter: Meter, f: FunctionOf, name: str, d: int, batches: Iterable[Samples], *, again: bool
) -> Iterator[Samples]:
    """The batches of one domain, checked, with the labels to use. `again`: they will be measured twice."""
    for b, samples in enumerate(batches):
        if b == 0:
            require_separate_samples(meter.net, meter.architecture, f(samples, d), samples, again=d == 0)
        try:
            yield meter.with_labels(f(samples, d), samples, d, b, again=again)
        except DataError as error:
            raise DataError(f"domain {name!r}, batch {b}: {error}") from error


@contextmanager
def progress_bar(show: bool) -> Iterator[Walk]:
    """A function that iterates over batches, with a progress bar if `show`: on stderr, apart from results."""
    if not show:
        yield lambda batches, _: batches
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with make_progress(*columns, console=make_console()) as bar:

        def walk(batches: Iterable[Samples], what: str) -> Iterable[Samples]:
            return bar.track(batches, total=len(batches) if isinstance(batches, list) else None, description=what)

        yield walk
