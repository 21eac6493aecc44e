"""Statistics of sensitivities over domains: mean s̄, variance v and coefficient of variation c.

    s̄_k = 1/D Σ_d s_k^(d)        v_k = 1/D Σ_d (s_k^(d) − s̄_k)²        c_k = √v_k / (s̄_k + ε)

See "Domain-Invariance Quantification" in the paper. Deviations are divided by the mean, s/s̄ − 1, before they are
squared: s is a squared gradient already, and the square of a small s would underflow.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dspreg.vectors import ParamVector

BLOCK = 2**15  # numbers at a time, so that intermediate results stay in the processor's cache


class Spread:
    """The running weighted mean of sensitivities x ≥ 0, and their relative variance r = Σ w (x/mean − 1)².

    Needs two vectors, in the dtype of what is added, however many are added.
    """

    def __init__(self) -> None:
        self.mean = ParamVector()
        self.relative = ParamVector()
        self.weight = 0.0
        self.count = 0

    def add(self, sums: Mapping[str, Tensor], over: float = 1.0, weight: float = 1.0) -> None:
        """Add x = sums/over."""
        before, self.weight = self.weight, self.weight + weight
        self.count += 1
        if self.count == 1:
            self.mean = ParamVector((name, total / over) for name, total in sums.items())
            self.relative = self.mean.map(torch.zeros_like)
            return
        step, share = weight / self.weight, weight * before / self.weight
        for name, mean in self.mean.items():
            for m, r, x in _blocks(mean, self.relative[name], sums[name]):
                change, old = torch.sub(x, m, alpha=over), m.clone()
                m.add_(change, alpha=step / over)
                inverse = m.clamp(min=torch.finfo(m.dtype).tiny).reciprocal_()  # finite also where s is still 0
                r.mul_(old.mul_(inverse).square_()).addcmul_(change.mul_(inverse), change, value=share / over**2)

    def c(self, eps: float = 0.0, scales: Mapping[str, float] | None = None) -> ParamVector:
        """c of x, if every x has weight 1. Overwrites the relative variance: nothing can be added afterwards.

        `scales`: what was added is x·scale².
        """
        bound = math.sqrt(max(self.count - 1, 0))
        for name, relative in self.relative.items():
            scaled_eps = eps * (scales or {}).get(name, 1.0) ** 2
            for r, m in _blocks(relative, self.mean[name]):
                r.mul_(1 / self.weight).sqrt_().clamp_(max=bound)
                if scaled_eps:
                    r.mul_(m / (m + scaled_eps))
        return self.relative.map(Tensor.contiguous)

    def squared_error(self, name: str) -> Tensor:
        """Squared relative standard error of the mean, if each x is the mean of `weight` independent samples."""
        return self.relative[name].to(torch.float64, copy=True).div_(self.weight * (self.count - 1))


def _blocks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Pieces of tensors of one shape; views if their memory layout is the same."""
    order = sorted(range(tensors[0].ndim), key=tensors[0].stride, reverse=True)
    flat = [t.permute(order).reshape(-1) for t in tensors]
    for i in range(0, len(flat[0]), BLOCK):
        yield tuple(t[i : i + BLOCK] for t in flat)


def coefficient_of_variation(per_domain: Sequence[ParamVector], eps: float = 0.0) -> ParamVector:
    """c of sensitivities, one vector per domain: 0 where all domains agree, at most √(D−1).

    The variance is the population's. A parameter that no domain is sensitive to has c = 0 (0/0 := 0).
    """
    spread = Spread()
    for vector in per_domain:
        spread.add(vector.map(lambda t: t.double().contiguous()))
    return spread.c(eps)


def coefficients(sums: Tensor, over: Sequence[float], eps: float = 0.0) -> Tensor:
    """c of one parameter from its sums (D, …) over `over` samples each."""
    order = [1 + i for i in sorted(range(sums.ndim - 1), key=sums[0].stride, reverse=True)]
    in_memory_order = sums.permute(0, *order)
    c = sums.new_empty(in_memory_order.shape[1:])
    flat, out = in_memory_order.reshape(len(sums), c.numel()), c.view(-1)
    per = 1 / torch.tensor(over, dtype=sums.dtype, device=sums.device)[:, None]
    bound, tiny = math.sqrt(len(sums) - 1), torch.finfo(sums.dtype).tiny
    for i in range(0, c.numel(), BLOCK):
        x = flat[:, i : i + BLOCK] * per
        mean = x.mean(0)
        relative = x.sub_(mean).div_(mean.clamp(min=tiny)).square_().mean(0)
        r = torch.sqrt(relative, out=out[i : i + BLOCK]).clamp_(max=bound)
        if eps:
            r.mul_(mean / (mean + eps))
    return c.permute([order.index(1 + i) for i in range(c.ndim)]).contiguous()


def relative_variance(x: Tensor, mean: Tensor) -> Tensor:
    """v/s̄² of sensitivities x (D, …), whose mean is `mean`; 0 if no domain is sensitive."""
    alive = mean > 0
    return x.div(torch.where(alive, mean, 1.0)).sub_(1).square_().mean(0).mul_(alive)


def rank_correlation(a: Tensor, b: Tensor) -> float:
    """Spearman's: Pearson's correlation of the ranks, ties sharing their mean rank. NaN if one of them is constant."""
    x, y = (torch.from_numpy(_ranks(values.reshape(-1).cpu().numpy())) for values in (a, b))
    x.sub_(x.mean())
    y.sub_(y.mean())
    return float(x @ y / (x.norm() * y.norm()))


def _ranks(values: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Ranks from 1, in the memory of one sort: networks have hundreds of millions of parameters."""
    order = np.argsort(values)  # takes a fifth of the time of torch's
    ordered = values[order]
    new = np.ones(len(values) + 1, dtype=bool)
    np.not_equal(ordered[1:], ordered[:-1], out=new[1:-1])
    edges = np.flatnonzero(new)  # where other values begin, and the end
    ranks = np.empty(len(values))
    ranks[order] = np.repeat((edges[:-1] + edges[1:] + 1) / 2, np.diff(edges))
    return ranks
