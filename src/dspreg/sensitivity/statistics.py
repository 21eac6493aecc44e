"""How sensitivities differ between domains: mean s̄, variance v and coefficient of variation c.

    s̄_k = 1/D Σ_d s_k^(d)        v_k = 1/D Σ_d (s_k^(d) − s̄_k)²        c_k = √v_k / (s̄_k + ε)

See "Domain-Invariance Quantification" in the paper. Everything is computed in float64. Roots are kept instead of
squares: s is a squared gradient already, and the square of s would leave even float64's range for small ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from dspreg.vectors import ParamVector


class Moments:
    """A running weighted mean and the root of the weighted sum of squared deviations, √Σ w (x − mean)².

    Two vectors, however many are added. Computed in float64 tensor by tensor, and held in `dtype` (None: as given).
    """

    def __init__(self, vectors: Iterable[ParamVector] = (), dtype: torch.dtype | None = torch.float64):
        self.mean = ParamVector()
        self.root = ParamVector()
        self.weight = 0.0
        self.count = 0
        self.dtype = dtype
        for vector in vectors:
            self.add(vector)

    def add(self, vector: ParamVector, weight: float = 1.0) -> None:
        before, self.weight = self.weight, self.weight + weight
        self.count += 1
        if self.count == 1:
            self.mean = vector.map(lambda t: t.to(self.dtype or t.dtype, copy=True))
            self.root = self.mean.map(torch.zeros_like)
            return
        step, spread = weight / self.weight, math.sqrt(weight * before / self.weight)
        for name, mean in self.mean.items():
            middle = mean.double()
            change = vector[name].double() - middle
            mean.copy_(middle.add_(change, alpha=step))
            self.root[name].copy_(torch.hypot(self.root[name].double(), change.mul_(spread)))

    def scaled(self, factor: ParamVector | float) -> Moments:
        """The moments of vector·factor."""
        other = Moments(dtype=self.dtype)
        other.mean, other.root = self.mean * factor, self.root * factor
        other.weight, other.count = self.weight, self.count
        return other

    @property
    def deviation(self) -> ParamVector:
        """√v: the population standard deviation."""
        return self.root / math.sqrt(self.weight)

    @property
    def standard_error(self) -> ParamVector:
        """Of the mean, when the vectors are means of `weight` independent samples each. Needs two vectors."""
        return ParamVector((name, self.standard_error_of(name)) for name in self.root)

    def standard_error_of(self, name: str) -> Tensor:
        return self.root[name].double() / math.sqrt(self.weight * (self.count - 1))


def coefficient_of_variation(per_domain: Sequence[ParamVector], eps: float = 0.0) -> ParamVector:
    """c of sensitivities, one vector per domain: 0 where all domains agree, at most √(D−1).

    The variance is the population's. A parameter that no domain is sensitive to has c = 0 (0/0 := 0).
    """
    return dispersion(Moments(per_domain), eps)


def dispersion(across: Moments, eps: float = 0.0, scales: Mapping[str, float] | None = None) -> ParamVector:
    """c from the moments across domains, of s·scale² if there are scales."""
    bound, root = math.sqrt(max(across.count - 1, 0)), math.sqrt(across.weight)

    def one(name: str, mean: Tensor) -> Tensor:
        deviation = across.root[name].double() / root
        c = ratio(deviation, mean.double(), eps * (scales or {}).get(name, 1.0) ** 2).clamp(max=bound)
        return c.to(mean.dtype)

    return ParamVector((name, one(name, mean)) for name, mean in across.mean.items())


def coefficient(across: Moments, scale: ParamVector | float, eps: float) -> ParamVector:
    """c of s·scale. With eps = 0 the scale cancels, except that a parameter that does not vary has s = c = 0."""
    if eps > 0:
        return dispersion(across.scaled(scale), eps)
    c = dispersion(across)
    return c.map(lambda c, v: torch.where(v > 0, c, 0.0), scale) if isinstance(scale, ParamVector) else c


def debiased(across: Moments, noise: ParamVector, eps: float = 0.0) -> ParamVector:
    """c without the share that sampling noise alone would give.

        √max(0, v − (1 − 1/D) · mean_d SE_d²) / (s̄ + ε)

    Args:
        across: Moments across the D domains.
        noise: √mean_d SE_d², the typical standard error of a domain's sensitivity.
    """
    factor = 1 - 1 / across.count

    def one(deviation: Tensor, mean: Tensor, error: Tensor) -> Tensor:
        return (ratio(deviation, mean, eps).square() - factor * ratio(error, mean, eps).square()).clamp(min=0).sqrt()

    return across.deviation.map(one, across.mean, noise)


def ratio(a: Tensor, b: Tensor, eps: float) -> Tensor:
    """a / (b + eps), and 0 where that is 0/0."""
    below = b + eps
    return torch.where(below > 0, a / torch.where(below > 0, below, 1.0), 0.0)


def root_mean_square(vectors: Sequence[ParamVector]) -> ParamVector:
    """√(1/D Σ_d v_d²), without leaving the range on the way."""
    total = vectors[0]
    for vector in vectors[1:]:
        total = total.map(torch.hypot, vector)
    return total.map(torch.abs) / math.sqrt(len(vectors))


def rank_correlation(a: Tensor, b: Tensor) -> float:
    """Spearman's: Pearson's correlation of the ranks, ties sharing their mean rank. NaN if one side is constant."""
    x, y = _ranks(a), _ranks(b)
    x, y = x - x.mean(), y - y.mean()
    return float(x @ y / (x.norm() * y.norm()))


def _ranks(values: Tensor) -> Tensor:
    """Ranks from 1, float64, in the memory of one sort: networks have hundreds of millions of parameters."""
    ordered, order = torch.sort(values.reshape(-1))
    new = torch.ones(len(ordered), dtype=torch.bool, device=ordered.device)
    torch.ne(ordered[1:], ordered[:-1], out=new[1:])
    starts = new.nonzero()[:, 0]
    ends = torch.cat([starts[1:], starts.new_tensor([len(ordered)])])
    shared = (starts + ends + 1).double() / 2
    ranks = torch.empty(len(ordered), dtype=torch.float64, device=ordered.device)
    ranks[order] = shared.repeat_interleave(ends - starts)
    return ranks
