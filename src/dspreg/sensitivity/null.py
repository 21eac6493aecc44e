"""The null of c: c under random domain labels, the same samples dealt at random to pseudo-domains.

With few samples, even the sensitivities of equal domains differ, so that c > 0. The null shows how large c is by chance
alone, and so how much of a measured c to trust. Pseudo-domains have the sizes of the real ones, hence the same noise.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from dspreg.errors import Notice
from dspreg.randomness import Key, generator
from dspreg.sensitivity.meter import Meter
from dspreg.sensitivity.samples import Function, Samples, concatenate
from dspreg.vectors import ParamVector

Batches = Sequence[Sequence[Samples]]  # per domain, its batches
FunctionOf = Callable[[Samples, int], Function]  # the function to measure on a batch, by the position of its domain
Walk = Callable[[Iterable[Samples], str], Iterable[Samples]]  # iterates over batches, displaying progress


def deal_samples(sizes: Sequence[int], *key: Key) -> list[Tensor]:
    """The members of every pseudo-domain, by one keyed permutation of all samples, numbered domain after domain."""
    order = torch.randperm(sum(sizes), generator=generator(*key, "null"), device="cpu")
    return list(torch.split(order, list(sizes)))


def regroup_batches(domains: Batches, *key: Key) -> list[list[Samples]]:
    """Batches of the pseudo-domains, with the numbers and sizes of the real ones. Needs samples of one shape."""
    samples = concatenate([batch for batches in domains for batch in batches])
    members = deal_samples([sum(map(len, batches)) for batches in domains], *key)
    return [
        [samples.take(part.to(samples.tensors()[0].device)) for part in torch.split(chosen, [len(b) for b in batches])]
        for chosen, batches in zip(members, domains, strict=True)
    ]


class PermutationNull:
    """The null of one measurement: in the same pass if the estimator has per-sample squares, else in a second pass."""

    def __init__(self, meter: Meter, f: FunctionOf, domains: Batches, walk: Walk):
        self.meter, self.f, self.walk = meter, f, walk
        self.domains = domains
        self.sizes = [sum(map(len, batches)) for batches in domains]
        ends = torch.cumsum(torch.tensor([0, *self.sizes]), 0)
        pseudo = torch.empty(sum(self.sizes), dtype=torch.long)
        for d, members in enumerate(deal_samples(self.sizes, *meter.key)):
            pseudo[members] = d
        self.pseudo = [
            pseudo[ends[d] : ends[d + 1]].split([len(b) for b in batches]) for d, batches in enumerate(domains)
        ]

    def members(self, d: int, b: int) -> Tensor:
        """Which samples of batch b of domain d are in which pseudo-domain. (D, B)"""
        which = torch.arange(len(self.sizes))[:, None]
        return torch.eq(which, self.pseudo[d][b]).double()

    def second_pass(self) -> list[ParamVector] | None:
        """s of every pseudo-domain by a second pass; None if samples of several shapes cannot be regrouped."""
        try:
            domains = regroup_batches(self.domains, *self.meter.key)
        except RuntimeError as error:
            warnings.warn(f"no null: samples of different shapes cannot be regrouped ({error})", Notice, stacklevel=3)
            return None
        means = []
        for d, (batches, size) in enumerate(zip(domains, self.sizes, strict=True)):
            sums = self.meter.sums()
            for b, samples in enumerate(self.walk(batches, f"measuring null {d + 1}")):
                self.meter.add(self.f(samples, d), samples, sums, d, b, "null")
            means.append(sums.mean(0, size))
        return means
