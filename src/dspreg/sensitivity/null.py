"""The floor of c: the same samples, dealt to pseudo-domains that do not differ.

Few samples alone make sensitivities of equal domains differ, and with them c. What c is when nothing differs tells
how much of a measured c to believe. Pseudo-domains have the sizes of the real ones, so their noise is the same.
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
FunctionOf = Callable[[Samples, int], Function]  # what is measured on a batch of the domain at this position
Walk = Callable[[Iterable[Samples], str], Iterable[Samples]]  # goes through batches, showing how far it is


def deal_samples(sizes: Sequence[int], *key: Key) -> list[Tensor]:
    """The members of every pseudo-domain, by one keyed permutation of all samples, counted domain after domain."""
    order = torch.randperm(sum(sizes), generator=generator(*key, "null"), device="cpu")
    return list(torch.split(order, list(sizes)))


def regroup_batches(domains: Batches, *key: Key) -> list[list[Samples]]:
    """Batches of the pseudo-domains, as many and as large as the real ones. Needs samples of one shape."""
    every = concatenate([batch for batches in domains for batch in batches])
    members = deal_samples([sum(map(len, batches)) for batches in domains], *key)
    return [
        [every.take(part.to(every.tensors()[0].device)) for part in torch.split(chosen, [len(b) for b in batches])]
        for chosen, batches in zip(members, domains, strict=True)
    ]


class PermutationNull:
    """The null of one measurement: in the same pass where per-sample squares are at hand, in a second one otherwise."""

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

    def again(self) -> list[ParamVector] | None:
        """s of every pseudo-domain by a second pass, or None if samples cannot be dealt anew."""
        try:
            again = regroup_batches(self.domains, *self.meter.key)
        except RuntimeError as error:
            warnings.warn(f"no null: samples of different shapes cannot be dealt anew ({error})", Notice, stacklevel=3)
            return None
        found = []
        for d, (batches, size) in enumerate(zip(again, self.sizes, strict=True)):
            sums = self.meter.sums()
            for b, samples in enumerate(self.walk(batches, f"measuring null {d + 1}")):
                self.meter.add(self.f(samples, d), samples, sums, d, b, "null")
            found.append(sums.mean(0, size))
        return found
