"""From the sums of every domain to the vectors of a profile, in float64, block by block.

Networks have hundreds of millions of parameters: sums are held once, in the network's dtype, and their statistics are
computed parameter by parameter.
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

RANKED = 2_000_000  # parameters in a rank correlation, at most
HALVES = ("c of odd batches", "c of even batches")


class Domain:
    """The sums of one domain, batch by batch."""

    def __init__(self) -> None:
        self.within = Spread()
        self.odd: dict[str, Tensor] = {}  # sums over every second batch; those of the others are the difference
        self.in_odd = 0  # samples in them

    def add(self, sums: Mapping[str, Tensor], samples: int) -> None:
        """Add the sums over the samples of one batch."""
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
        self.halves: dict[str, list[Tensor]] = {
            half: [] for half in HALVES
        }  # of parameters that some domain is sensitive to

    def add(self, name: str, domains: Sequence[Domain], pseudo: Sequence[Tensor] | None) -> None:
        """Add one parameter, from the sums of domains and, for null (c under random domain labels), pseudo-domains."""
        inputs = {"s": [d.within.mean[name] for d in domains]}
        shape, dtype = inputs["s"][0].shape, torch.promote_types(inputs["s"][0].dtype, torch.float32)
        if isinstance(self.variance, ParamVector):
            inputs["variance"] = [self.variance[name]]
        if pseudo is not None:
            inputs["null"] = list(pseudo)
        if all(d.within.count > 1 for d in domains):
            inputs["errors"] = [d.within.squared_error(name) for d in domains]
        if all(0 < d.in_odd < d.within.weight for d in domains):
            inputs["odd"] = [d.odd[name] for d in domains]
        rounding = torch.finfo(inputs["s"][0].dtype).eps
        flat = [t.reshape(-1) for tensors in inputs.values() for t in tensors]
        size = len(flat[0])
        rows = flat[0].new_empty(len(flat), min(BLOCK, size), dtype=torch.float64)
        results: dict[str, Tensor] = {}
        for start in range(0, max(1, size), BLOCK):
            part = slice(start, min(start + BLOCK, size))
            block = rows[:, : part.stop - start]
            for row, t in zip(block, flat, strict=True):
                row.copy_(t[part])
            by_input = dict(zip(inputs, block.split([len(tensors) for tensors in inputs.values()]), strict=True))
            for what, values in self._block(by_input, domains, self.scales.get(name, 1.0) ** -2, rounding).items():
                if what not in results:
                    results[what] = flat[0].new_empty(size, dtype=dtype)
                results[what][part] = values
        alive = results.pop("alive") > 0
        everywhere = bool(alive.all())
        for what, whole in results.items():
            if what in HALVES:
                self.halves[what].append(whole if everywhere else whole[alive])
            else:
                self.vectors.setdefault(what, {})[name] = whole.view(shape)

    def _block(
        self, inputs: dict[str, Tensor], domains: Sequence[Domain], unit: float, rounding: float
    ) -> dict[str, Tensor]:
        """All statistics of n entries, from rows (D, n) in float64, which are overwritten.

        `rounding` is the relative error of the sums.
        """
        x = inputs["s"]
        variance = inputs["variance"][0] if "variance" in inputs else x.new_tensor(self.variance)
        factor, varies = variance * unit, variance > 0

        def c(root: Tensor, mean: Tensor) -> Tensor:
            """`root` of the relative variance; smaller with ε, and 0 for a parameter whose variance is 0."""
            root = root.clamp_(max=math.sqrt(len(domains) - 1)).mul_(varies)
            return root * (mean / (mean + self.eps)) if self.eps else root

        def c_of(x: Tensor) -> Tensor:
            mean = x.mean(0)
            return c(relative_variance(x, mean).sqrt_(), mean * factor)

        plain = x.mean(0)
        squared, mean = relative_variance(x, plain), plain * factor
        root = squared.sqrt()
        results = {f"s {d}": row * factor for d, row in enumerate(x)}
        results |= {"alive": plain, "mean": mean, "variance": (root * mean).square_(), "c": c(root, mean)}
        if "null" in inputs:
            results["null"] = c_of(inputs["null"])
        if "errors" in inputs:
            share = x / plain.clamp(min=torch.finfo(x.dtype).tiny)  # s/s̄
            noise = share.square_().mul_(inputs["errors"]).mean(0)
            unbiased = squared.sub_(noise.mul_(1 - 1 / len(domains))).clamp_(min=0)
            results["c_debiased"] = c(unbiased.sqrt_(), mean)
        if "odd" in inputs:
            samples = x.new_tensor([[d.within.weight] for d in domains])
            in_odd = x.new_tensor([[d.in_odd] for d in domains])
            batches = x.new_tensor([[d.within.count] for d in domains])
            odd, total = inputs["odd"], x * samples
            even = total - odd
            even.mul_(even > total.mul_(2 * rounding * batches))  # a residue of rounding would have a large c
            for what, half in zip(HALVES, (odd.div_(in_odd), even.div_(samples - in_odd)), strict=True):
                results[what] = c_of(half)
        return results

    def get(self, what: str) -> ParamVector | None:
        return ParamVector(self.vectors[what]) if what in self.vectors else None

    def fields(self, names: Sequence[str]) -> dict[str, Any]:
        """The fields of a `Profile` of domains with these names."""
        vectors = ("mean", "variance", "c", "c_debiased", "null")
        return {what: self.get(what) for what in vectors} | {
            "s": {domain: self.get(f"s {d}") for d, domain in enumerate(names)},
            "reliability": self.reliability(),
        }

    def reliability(self) -> float | None:
        """Rank correlation over parameters that some domain is sensitive to: the others agree on c = 0 trivially.

        A large network is represented by two million keyed samples of them, accurate to about 0.001: sorting all would
        take longer than measuring.
        """
        if not self.halves[HALVES[0]]:
            return None
        return agreement(*(torch.cat(self.halves[half]) for half in HALVES))


def agreement(a: Tensor, b: Tensor) -> float | None:
    """Rank correlation of two c, over keyed samples if there are many entries. None if one of them is constant."""
    if len(a) > RANKED:
        some = torch.randint(len(a), (RANKED,), generator=generator("reliability")).to(a.device)
        a, b = a.index_select(0, some), b.index_select(0, some)
    correlation = rank_correlation(a, b)
    return correlation if math.isfinite(correlation) else None
