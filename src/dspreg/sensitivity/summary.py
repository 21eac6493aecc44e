"""From the sensitivities of every domain to all a profile tells, in float64 tensor by tensor.

Networks have hundreds of millions of parameters: whatever is summed is held once, in the network's dtype, and given up
parameter by parameter as its statistics are formed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dspreg.sensitivity.meter import finite
from dspreg.sensitivity.statistics import Moments, coefficient, debiased, rank_correlation, root_mean_square
from dspreg.vectors import ParamVector


@dataclass
class Domain:
    """What was summed on one domain, batch by batch."""

    within: Moments = field(default_factory=lambda: Moments(dtype=None))
    odd: Moments = field(default_factory=lambda: Moments(dtype=None))  # every second batch; the rest is the difference

    def add(self, mean: ParamVector, samples: int) -> None:
        """s of one batch."""
        self.within.add(mean, samples)
        if self.within.count % 2:
            self.odd.add(mean, samples)

    def close(self) -> None:
        """The domain is complete."""
        finite(self.within.mean)
        self.odd.root = ParamVector()  # only the mean of these is wanted

    def halves(self, name: str) -> tuple[Tensor, Tensor]:
        """s of the odd and of the even batches."""
        whole, odd = self.within.mean[name].double(), self.odd.mean[name].double()
        share = self.odd.weight / self.within.weight
        return odd, ((whole - share * odd) / (1 - share)).clamp(min=0)

    @property
    def counts(self) -> dict[str, int]:
        return {"batches": self.within.count, "samples": int(self.within.weight)}


class Summary:
    """The vectors of a profile, filled in one parameter at a time.

    Args:
        scales: Sums hold s·scale², by parameter.
        variance: Var(θ_k), which scales s and cancels in c.
        eps: ε in c.
    """

    def __init__(self, scales: dict[str, float], variance: ParamVector | float, eps: float):
        self.scales, self.variance, self.eps = scales, variance, eps
        self.vectors: dict[str, dict[str, Tensor]] = {}
        self.halves: list[tuple[Tensor, Tensor]] = []  # c of odd and even batches, where some domain is sensitive

    def add(self, name: str, domains: Sequence[Domain], pseudo: Sequence[Tensor] | None) -> None:
        """One parameter, from what was summed on the domains and, for the floor, on pseudo-domains."""
        means = [d.within.mean[name] for d in domains]
        dtype = torch.promote_types(means[0].dtype, torch.float32)
        unit = self.scales.get(name, 1.0) ** -2
        variance = ParamVector({name: self.variance[name]}) if isinstance(self.variance, ParamVector) else self.variance

        def moments(tensors: Sequence[Tensor]) -> Moments:
            return Moments(ParamVector({name: t.double() * unit}) for t in tensors)

        def keep(what: str, vector: ParamVector) -> None:
            self.vectors.setdefault(what, {})[name] = vector[name].to(dtype).contiguous()

        def c(tensors: Sequence[Tensor]) -> ParamVector:
            return coefficient(moments(tensors), variance, self.eps)

        across = moments(means)
        scaled = across.scaled(variance)
        for d, mean in enumerate(means):
            keep(f"s {d}", ParamVector({name: mean.double() * unit}) * variance)
        keep("mean", scaled.mean)
        keep("variance", scaled.deviation.square())
        keep("c", coefficient(across, variance, self.eps))
        if pseudo is not None:
            keep("null", c(pseudo))
        if all(d.within.count > 1 for d in domains):
            errors = [ParamVector({name: d.within.standard_error_of(name) * unit}) for d in domains]
            keep("c_debiased", debiased(scaled, root_mean_square(errors) * variance, self.eps))
            alive = across.mean[name] > 0
            odd, even = zip(*(d.halves(name) for d in domains), strict=True)
            self.halves.append((c(odd)[name][alive].to(dtype), c(even)[name][alive].to(dtype)))

    def get(self, what: str) -> ParamVector | None:
        return ParamVector(self.vectors[what]) if what in self.vectors else None

    def fields(self, names: Sequence[str]) -> dict[str, Any]:
        """For a `Profile` of domains with these names."""
        every = ("mean", "variance", "c", "c_debiased", "null")
        return {what: self.get(what) for what in every} | {
            "s": {domain: self.get(f"s {d}") for d, domain in enumerate(names)},
            "reliability": self.reliability(),
        }

    def reliability(self) -> float | None:
        """Rank correlation over parameters some domain is sensitive to: the others agree on c = 0 for no merit."""
        if not self.halves:
            return None
        odd, even = (torch.cat(side) for side in zip(*self.halves, strict=True))
        agreement = rank_correlation(odd, even)
        return agreement if math.isfinite(agreement) else None  # NaN where c is the same everywhere
