"""From the sensitivities of every domain to all a profile tells, in float64 block by block.

Networks have hundreds of millions of parameters: whatever is summed is held once, in the network's dtype, and given up
parameter by parameter as its statistics are formed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dspreg.randomness import generator
from dspreg.sensitivity.statistics import BLOCK, Spread, rank_correlation, relative_variance
from dspreg.vectors import ParamVector

RANKED = 2_000_000  # parameters
HALVES = ("c of odd batches", "c of even batches")


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
        self.halves: dict[str, list[Tensor]] = {half: [] for half in HALVES}  # where some domain is sensitive

    def add(self, name: str, domains: Sequence[Domain], pseudo: Sequence[Tensor] | None) -> None:
        """One parameter, from what was summed on the domains and, for the floor, on pseudo-domains."""
        given = {"s": [d.within.mean[name] for d in domains]}
        shape, dtype = given["s"][0].shape, torch.promote_types(given["s"][0].dtype, torch.float32)
        if isinstance(self.variance, ParamVector):
            given["variance"] = [self.variance[name]]
        if pseudo is not None:
            given["null"] = list(pseudo)
        if all(d.within.count > 1 for d in domains):
            given["errors"] = [d.within.squared_error(name) for d in domains]
        if all(0 < d.in_odd < d.within.weight for d in domains):
            given["odd"] = [d.odd[name] for d in domains]
        rounding = torch.finfo(given["s"][0].dtype).eps
        flat = [t.reshape(-1) for tensors in given.values() for t in tensors]
        found: dict[str, list[Tensor]] = {}
        for start in range(0, max(1, len(flat[0])), BLOCK):
            pieces = iter([t[start : start + BLOCK].double() for t in flat])
            block = {what: torch.stack([next(pieces) for _ in tensors]) for what, tensors in given.items()}
            for what, values in self._block(block, domains, self.scales.get(name, 1.0) ** -2, rounding).items():
                found.setdefault(what, []).append(values.to(dtype))
        alive = torch.cat(found.pop("alive")) > 0
        for what, parts in found.items():
            whole = torch.cat(parts)
            if what in HALVES:
                self.halves[what].append(whole[alive])
            else:
                self.vectors.setdefault(what, {})[name] = whole.view(shape)

    def _block(
        self, given: dict[str, Tensor], domains: Sequence[Domain], unit: float, rounding: float
    ) -> dict[str, Tensor]:
        """All statistics of some numbers, from rows (D, n) in float64, of sums that were rounded by as much."""
        x = given["s"]
        variance = given["variance"][0] if "variance" in given else x.new_tensor(self.variance)
        factor, varies = variance * unit, variance > 0

        def c(squared: Tensor, mean: Tensor) -> Tensor:
            """√ of what is relative to the mean; less with ε, and 0 for a parameter that does not vary."""
            root = squared.sqrt().clamp_(max=math.sqrt(len(domains) - 1)).mul_(varies)
            return root * (mean / (mean + self.eps)) if self.eps else root

        squared, plain = relative_variance(x), x.mean(0)
        mean = plain * factor
        found = {f"s {d}": one * factor for d, one in enumerate(x)}
        found |= {"alive": plain, "mean": mean, "variance": (squared.sqrt() * mean).square_(), "c": c(squared, mean)}
        if "null" in given:
            found["null"] = c(relative_variance(given["null"]), given["null"].mean(0) * factor)
        if "errors" in given:
            share = x / plain.clamp(min=torch.finfo(x.dtype).tiny)  # s/s̄
            noise = given["errors"].mul_(share.square_()).mean(0)
            found["c_debiased"] = c((squared - (1 - 1 / len(domains)) * noise).clamp_(min=0), mean)
        if "odd" in given:
            samples = x.new_tensor([[d.within.weight] for d in domains])
            in_odd = x.new_tensor([[d.in_odd] for d in domains])
            batches = x.new_tensor([[d.within.count] for d in domains])
            total = x * samples
            even = total - given["odd"]
            even = torch.where(even > 2 * rounding * batches * total, even, 0)  # what rounding left has a large c
            even = even / (samples - in_odd)
            for what, half in zip(HALVES, (given["odd"] / in_odd, even), strict=True):
                found[what] = c(relative_variance(half), half.mean(0) * factor)
        return found

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
        """Rank correlation over parameters some domain is sensitive to: the others agree on c = 0 for no merit.

        Of a large network over two million keyed ones: that is exact to about 0.001, and sorting all takes longer than
        measuring them.
        """
        if not self.halves[HALVES[0]]:
            return None
        return agreement(*(torch.cat(self.halves[half]) for half in HALVES))


def agreement(a: Tensor, b: Tensor) -> float | None:
    """Rank correlation of two c, of many numbers over keyed ones. None where one of them is the same everywhere."""
    if len(a) > RANKED:
        some = torch.randint(len(a), (RANKED,), generator=generator("reliability")).to(a.device)
        a, b = a[some], b[some]
    found = rank_correlation(a, b)
    return found if math.isfinite(found) else None
