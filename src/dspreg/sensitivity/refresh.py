"""c, for the refreshes of a training: as few vectors as possible, and no null (c under random domain labels)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dspreg.errors import DataError
from dspreg.sensitivity.measure import attach_labels
from dspreg.sensitivity.meter import Meter, require_finite
from dspreg.sensitivity.null import FunctionOf
from dspreg.sensitivity.per_sample.accumulator import Accumulator
from dspreg.sensitivity.samples import Function, Samples, concatenate
from dspreg.sensitivity.statistics import Spread, coefficients
from dspreg.vectors import ParamVector

MAX_ROWS = 3  # up to so many domains have their own sums: as many vectors as running statistics need
PASS_SIZE = 48  # samples of small batches that go through the network in one pass


def measure_s(meter: Meter, f: FunctionOf, domains: Mapping[str, Iterable[Samples]]) -> dict[str, ParamVector]:
    """s of every domain: as many vectors as domains. Arguments as in `build_profile`."""
    sums = meter.sums(len(domains))
    sizes = _accumulate(meter, f, _label(meter, f, domains), sums)
    s: dict[str, dict[str, Tensor]] = {name: {} for name in domains}
    for k in meter.params:
        unit = meter.scales.get(k, 1.0) ** -2
        for name, total, size in zip(domains, sums.pop(k), sizes, strict=True):
            s[name][k] = total * (unit / size)
    return {name: require_finite(ParamVector(vector)) for name, vector in s.items()}


def measure_c(meter: Meter, f: FunctionOf, domains: Mapping[str, Iterable[Samples]], eps: float = 0.0) -> ParamVector:
    """c alone: three vectors, however many domains. Arguments as in `build_profile`."""
    return measure_c_and_mean(meter, f, domains, eps, keeps_mean=False)[0]


def measure_c_and_mean(
    meter: Meter, f: FunctionOf, domains: Mapping[str, Iterable[Samples]], eps: float = 0.0, *, keeps_mean: bool = True
) -> tuple[ParamVector, ParamVector]:
    """c, and s̄ up to a factor for each tensor, which ranks within a tensor do not see."""
    labelled = _label(meter, f, domains)
    if len(labelled) <= MAX_ROWS:
        sums = meter.sums(len(labelled))
        sizes = _accumulate(meter, f, labelled, sums)
        c, mean = {}, {}
        for name in meter.params:
            each = sums.pop(name)
            c[name] = coefficients(each, sizes, eps * meter.scales.get(name, 1.0) ** 2)
            if keeps_mean:
                per = 1 / torch.tensor(sizes, dtype=each.dtype, device=each.device)
                mean[name] = torch.tensordot(per / len(sizes), each, dims=1)
        return require_finite(ParamVector(c)), ParamVector(mean)
    across, sums = Spread(), meter.sums()
    for domain in labelled:
        (size,) = _accumulate(meter, f, [domain], sums)
        across.add(sums.row(0), size)
        sums.clear(0)
    require_finite(across.mean)
    return across.c(eps, meter.scales), across.mean


def _label(
    meter: Meter, f: FunctionOf, domains: Mapping[str, Iterable[Samples]]
) -> list[tuple[int, str, Iterable[Samples]]]:
    return [
        (d, name, attach_labels(meter, f, name, d, batches, again=False))
        for d, (name, batches) in enumerate(domains.items())
    ]


def _accumulate(
    meter: Meter, f: FunctionOf, domains: Sequence[tuple[int, str, Iterable[Samples]]], sums: Accumulator
) -> list[int]:
    """Add every domain to its own row, and return the number of samples of each."""
    sizes = [0] * len(domains)

    def pieces() -> Iterator[Piece]:
        for row, (d, name, batches) in enumerate(domains):
            for b, samples in enumerate(batches):
                sizes[row] += len(samples)
                yield Piece(row, (d, b), f(samples, d), samples)
            if not sizes[row]:
                raise DataError(f"there are no samples of {name!r} to measure on")

    for merged in _merge_small(pieces(), PASS_SIZE if meter.takes_groups else 0):
        rows = torch.tensor([piece.row for piece in merged for _ in range(len(piece.samples))])
        groups = torch.eq(torch.arange(len(domains))[:, None], rows).double()
        first = merged[0]
        meter.add(first.f, concatenate([piece.samples for piece in merged]), sums, *first.place, groups=groups)
    return sizes


class Piece(NamedTuple):
    """One batch of one domain."""

    row: int
    place: tuple[int, int]
    f: Function
    samples: Samples


def _merge_small(pieces: Iterable[Piece], max_samples: int) -> Iterator[list[Piece]]:
    """Consecutive batches that can go through the network in one pass: small ones are less efficient."""
    group: list[Piece] = []
    for piece in pieces:
        if group:
            first, n = group[0], sum(len(p.samples) for p in (*group, piece))
            if n > max_samples or piece.f != first.f or piece.samples.signature != first.samples.signature:
                yield group
                group = []
        group.append(piece)
    if group:
        yield group
