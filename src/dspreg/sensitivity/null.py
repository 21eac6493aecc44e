"""The floor of c: the same samples, dealt to pseudo-domains that do not differ.

Few samples alone make sensitivities of equal domains differ, and with them c. What c is when nothing differs tells
how much of a measured c to believe. Pseudo-domains have the sizes of the real ones, so their noise is the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dspreg.randomness import Key, generator
from dspreg.sensitivity.samples import Samples

Batches = Sequence[Sequence[Samples]]  # per domain, its batches


def dealt(sizes: Sequence[int], *key: Key) -> Tensor:
    """The pseudo-domain of every sample, samples in the order of their domains. One keyed permutation. (N,)"""
    order = torch.randperm(sum(sizes), generator=generator(*key, "null"))
    pseudo = torch.empty_like(order)
    pseudo[order] = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    return pseudo


def regrouped(domains: Batches, *key: Key) -> list[list[Samples]]:
    """Batches of the pseudo-domains, as many and as large as the real ones. Needs samples of one shape."""
    pool = [batch for batches in domains for batch in batches]
    inputs = [b.inputs if isinstance(b.inputs, dict) else {"": b.inputs} for b in pool]
    joined: dict[str, Tensor] = {k: torch.cat([i[k] for i in inputs]) for k in inputs[0]}
    labels = [b.y for b in pool if b.y is not None]
    every = Samples(joined.get("", joined), torch.cat(labels) if labels else None)

    pseudo = dealt([sum(map(len, batches)) for batches in domains], *key)
    result = []
    for d, batches in enumerate(domains):
        members = torch.nonzero(pseudo == d)[:, 0].to(next(iter(joined.values())).device)
        result.append([every.take(part) for part in members.split([len(b) for b in batches])])
    return result
