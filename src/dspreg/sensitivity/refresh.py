"""c alone, as a training measures it again and again: no floor, no reliability, and as few vectors as it can be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch

from dspreg.errors import DataError
from dspreg.sensitivity.measure import attach_labels
from dspreg.sensitivity.meter import Meter, finite
from dspreg.sensitivity.null import FunctionOf
from dspreg.sensitivity.per_sample.accumulator import Accumulator
from dspreg.sensitivity.samples import Function, Samples, concatenate
from dspreg.sensitivity.statistics import Spread, coefficients
from dspreg.vectors import ParamVector

ROWS = 3  # up to so many domains have sums of their own: as many vectors as running statistics need
TOGETHER = 48  # samples of small batches that go through the network in one pass


def measure_c(meter: Meter, f: FunctionOf, domains: Mapping[str, Iterable[Samples]], eps: float = 0.0) -> ParamVector:
    """c alone: three vectors, however many domains. Arguments as in `build_profile`."""
    every = [
        (d, name, attach_labels(meter, f, name, d, batches, again=False))
        for d, (name, batches) in enumerate(domains.items())
    ]
    if len(every) <= ROWS:
        sums = meter.sums(len(every))
        sizes = _summed(meter, f, every, sums)
        floors = {name: eps * meter.scales.get(name, 1.0) ** 2 for name in meter.params}
        return finite(ParamVector((k, coefficients(sums.pop(k), sizes, floor)) for k, floor in floors.items()))
    across, sums = Spread(), meter.sums()
    for domain in every:
        (size,) = _summed(meter, f, [domain], sums)
        across.add(sums.row(0), size)
        sums.clear(0)
    finite(across.mean)
    return across.c(eps, meter.scales)


def _summed(
    meter: Meter, f: FunctionOf, domains: Sequence[tuple[int, str, Iterable[Samples]]], sums: Accumulator
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
        meter.add(first.f, concatenate([piece.samples for piece in together]), sums, *first.place, groups=groups)
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
