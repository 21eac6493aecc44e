"""From the sensitivities of every domain to all a profile tells, in float64 tensor by tensor.

Networks have hundreds of millions of parameters: whatever is summed is held once, in the network's dtype, and given up
parameter by parameter as its statistics are formed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dspreg.sensitivity.statistics import Spread, rank_correlation, relative_variance
from dspreg.vectors import ParamVector


class Domain:
    """What was summed on one domain, batch by batch."""

    def __init__(self) -> None:
        self.within = Spread()
        self.odd: dict[str, Tensor] = {}  # sums over every second batch; the rest is the difference
        self.in_odd = 0  # samples

    def add(self, sums: Mapping[str, Tensor], samples: int) -> None:
        """The sums over the samples of one batch."""
        self.within.add(sums, samples, samples)
        if self.within.count % 2:
            self.in_odd += samples
            for name, total in sums.items():
                self.odd[name] = self.odd[name].add_(total) if name in self.odd else total.clone()

    def halves(self, name: str) -> tuple[Tensor, Tensor]:
        """s of the odd and of the even batches."""
        whole, odd = self.within.mean[name].double() * self.within.weight, self.odd[name].double()
        return odd / self.in_odd, (whole - odd).clamp_(min=0) / (self.within.weight - self.in_odd)

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

    def __init__(self, scales: Mapping[str, float], variance: ParamVector | float, eps: float):
        self.scales, self.variance, self.eps = scales, variance, eps
        self.vectors: dict[str, dict[str, Tensor]] = {}
        self.halves: list[tuple[Tensor, Tensor]] = []  # c of odd and even batches, where some domain is sensitive

    def add(self, name: str, domains: Sequence[Domain], pseudo: Sequence[Tensor] | None) -> None:
        """One parameter, from what was summed on the domains and, for the floor, on pseudo-domains."""
        means = [d.within.mean[name] for d in domains]
        dtype = torch.promote_types(means[0].dtype, torch.float32)
        unit = self.scales.get(name, 1.0) ** -2
        variance = self.variance[name] if isinstance(self.variance, ParamVector) else self.variance
        varies = (variance > 0) if isinstance(variance, Tensor) else True

        def keep(what: str, tensor: Tensor) -> None:
            self.vectors.setdefault(what, {})[name] = tensor.to(dtype).contiguous()

        def c(squared: Tensor, mean: Tensor) -> Tensor:
            """√ of what is relative to the mean; less with ε, and 0 for a parameter that does not vary."""
            root = squared.sqrt().clamp(max=math.sqrt(len(domains) - 1)) * varies
            return root * (mean / (mean + self.eps)) if self.eps else root

        x = torch.stack([mean.double() for mean in means])
        squared, plain = relative_variance(x), x.mean(0)
        s = x * (unit * variance)
        mean = s.mean(0)
        for d, one in enumerate(s):
            keep(f"s {d}", one)
        keep("mean", mean)
        keep("variance", (squared.sqrt() * mean).square())
        keep("c", c(squared, mean))
        if pseudo is not None:
            dealt = torch.stack([p.double() for p in pseudo])
            keep("null", c(relative_variance(dealt), dealt.mean(0) * (unit * variance)))
        if all(d.within.count > 1 for d in domains):
            share = torch.where(plain > 0, x / torch.where(plain > 0, plain, 1.0), 0.0)  # s/s̄
            noise = torch.stack([d.within.squared_error(name) for d in domains]).mul_(share.square_()).mean(0)
            keep("c_debiased", c((squared - (1 - 1 / len(domains)) * noise).clamp(min=0), mean))
            halves = [torch.stack(half) for half in zip(*(d.halves(name) for d in domains), strict=True)]
            odd, even = (c(relative_variance(h), h.mean(0) * (unit * variance))[plain > 0].to(dtype) for h in halves)
            self.halves.append((odd, even))

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
