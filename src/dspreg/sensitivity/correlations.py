"""Rank correlations between vectors over the parameters of a network, with intervals.

    all:     ρ = Pearson's correlation of ranks (Spearman's), over all parameters
    within:  ρ = Σ_cells n ρ_cell / Σ_cells n, a cell being a tenth of one tensor by s̄

Tensors differ in everything, and so do parameters that matter and ones that do not; within a cell only likes are
compared. Parameters of one tensor are not independent, so that n of them are worth far less than n: an interval comes
from resampling whole tensors (a cluster bootstrap), with the ranks that the whole network gave.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dspreg.randomness import Key, generator

CELLS = 10  # of one tensor, at most
LEAST = 10  # parameters in a cell; smaller tensors are in "all" alone
RESAMPLES = 1_000
OUTSIDE = 0.025  # of the resamples, on either side of an interval


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval; None where it is undefined (a constant has no ranks) or cannot be had."""

    value: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Correlation:
    """A rank correlation over all parameters, and within cells of like ones."""

    all: Estimate
    within: Estimate


class RankCorrelations:
    """The rank correlations of all pairs of vectors.

    Args:
        vectors: By name, entries of the same parameters, tensor after tensor. (n,) each
        mean: s̄ of these parameters, which makes the cells. (n,)
        sizes: How many entries each tensor has.
        key: Of the resampling. The same key and tensors give the same resamples.
    """

    def __init__(self, vectors: Mapping[str, Tensor], mean: Tensor, sizes: Sequence[int], *key: Key):
        self.names = list(vectors)
        sizes = [size for size in sizes if size]
        moments = _moments_by_tensor(vectors, sizes)
        totals, weights = _cells_by_tensor(vectors, mean, sizes)
        draws = _resample(len(sizes), *key)
        # first the network itself, in which every tensor occurs once; then the resamples
        counts = torch.cat([torch.ones(1, len(sizes), dtype=torch.float64), draws])
        self.all = _correlations(torch.tensordot(counts, moments, 1))
        self.within = torch.tensordot(counts, totals, 1) / torch.tensordot(counts, weights, 1)

    def pair(self, a: str, b: str) -> Correlation:
        return self.combine([(1.0, a, b)])

    def combine(self, terms: Sequence[tuple[float, str, str]]) -> Correlation:
        """Σ factor · ρ(a, b): a difference, or a mean, of correlations of the same network."""
        places = [(factor, self.names.index(a), self.names.index(b)) for factor, a, b in terms]
        return Correlation(*(estimate(sum_of(values, places)) for values in (self.all, self.within)))


def sum_of(values: Tensor, places: Sequence[tuple[float, int, int]]) -> Tensor:
    return torch.stack([factor * values[:, i, j] for factor, i, j in places]).sum(0)


def estimate(values: Tensor) -> Estimate:
    """The first is of the network itself, the others are of resamples."""
    value, resampled = float(values[0]), values[1:]
    if not math.isfinite(value):
        return Estimate(None)
    resampled = resampled[torch.isfinite(resampled)]
    if not len(resampled):
        return Estimate(value)
    low, high = torch.quantile(resampled, resampled.new_tensor([OUTSIDE, 1 - OUTSIDE])).tolist()
    return Estimate(value, low, high)


def rank_rows(values: Tensor) -> Tensor:
    """Ranks from 1 within each row, ties sharing their mean rank. (…, n), float64"""
    ordered, order = values.sort(-1)
    n = values.shape[-1]
    place = torch.arange(n, device=values.device)
    new = torch.ones_like(ordered, dtype=torch.bool)
    torch.ne(ordered[..., 1:], ordered[..., :-1], out=new[..., 1:])
    ranks = torch.empty(values.shape, dtype=torch.float64, device=values.device)
    if new.all():
        return ranks.scatter_(-1, order, (place + 1.0).double().expand_as(ranks))
    first = torch.where(new, place, 0).cummax(-1).values
    ends = torch.ones_like(new)
    ends[..., :-1] = new[..., 1:]
    last = torch.where(ends, place, n).flip(-1).cummin(-1).values.flip(-1)
    return ranks.scatter_(-1, order, (first + last).double() / 2 + 1)


def _moments_by_tensor(vectors: Mapping[str, Tensor], sizes: Sequence[int]) -> Tensor:
    """Σ z zᵀ of z = (1, rank of each vector), one matrix per tensor. (T, V+1, V+1)"""
    n = sum(sizes)
    # float32 holds ranks and their halves exactly up to 2²³
    dtype = torch.float32 if n < 2**23 else torch.float64
    ranks = torch.stack([rank_rows(each).sub_((n + 1) / 2).to(dtype) for each in vectors.values()])
    made = []
    for part in ranks.split(list(sizes), 1):
        z = torch.cat([torch.ones(1, part.shape[1], dtype=torch.float64), part.double() / n])
        made.append(z @ z.T)
    return torch.stack(made)


def _correlations(moments: Tensor) -> Tensor:
    """Pearson's of all pairs from sums of products with a leading 1. (…, V+1, V+1) → (…, V, V)"""
    n, sums = moments[..., :1, :1], moments[..., 1:, 0]
    covariances = moments[..., 1:, 1:] / n - sums.unsqueeze(-1) * sums.unsqueeze(-2) / n.square()
    return _normalise(covariances)


def _normalise(covariances: Tensor) -> Tensor:
    scale = covariances.diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt()
    return (covariances / (scale.unsqueeze(-1) * scale.unsqueeze(-2))).clamp(-1, 1)


def _cells_by_tensor(vectors: Mapping[str, Tensor], mean: Tensor, sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Σ_cells n ρ_cell and Σ_cells n of every tensor; a pair with a constant has no ρ in that cell. (T, V, V) each"""
    totals, weights = (torch.zeros(len(sizes), len(vectors), len(vectors), dtype=torch.float64) for _ in range(2))
    start = 0
    for t, size in enumerate(sizes):
        cells = min(CELLS, size // LEAST)
        if cells:
            order = mean[start : start + size].argsort(stable=True)
            values = torch.stack([each[start : start + size][order] for each in vectors.values()])
            for cell in values.tensor_split(cells, 1):
                ranks = rank_rows(cell)
                ranks -= ranks.mean(1, keepdim=True)
                rho = _normalise(ranks @ ranks.T)
                there = torch.isfinite(rho)
                totals[t] += torch.where(there, rho, 0.0) * cell.shape[1]
                weights[t] += there * float(cell.shape[1])
        start += size
    return totals, weights


def _resample(tensors: int, *key: Key) -> Tensor:
    """How often each tensor occurs in each resample. (R, T); none for a single tensor, which has no spread."""
    if tensors < 2:
        return torch.zeros(0, tensors, dtype=torch.float64)
    drawn = torch.randint(tensors, (RESAMPLES, tensors), generator=generator(*key, "tensors"))
    return torch.zeros(RESAMPLES, tensors, dtype=torch.float64).scatter_add_(1, drawn, torch.ones(drawn.shape).double())
