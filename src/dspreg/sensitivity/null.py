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


def dealt(sizes: Sequence[int], *key: Key) -> list[Tensor]:
    """The members of every pseudo-domain, by one keyed permutation of all samples, counted domain after domain."""
    order = torch.randperm(sum(sizes), generator=generator(*key, "null"), device="cpu")
    return list(torch.split(order, list(sizes)))


def regrouped(domains: Batches, *key: Key) -> list[list[Samples]]:
    """Batches of the pseudo-domains, as many and as large as the real ones. Needs samples of one shape."""
    pool = [batch for batches in domains for batch in batches]
    inputs = [b.inputs if isinstance(b.inputs, dict) else {"": b.inputs} for b in pool]
    joined: dict[str, Tensor] = {k: torch.cat([i[k] for i in inputs]) for k in inputs[0]}
    labels = [b.y for b in pool if b.y is not None]
    every = Samples(joined.get("", joined), torch.cat(labels) if labels else None)

    members = dealt([sum(map(len, batches)) for batches in domains], *key)
    return [
        [every.take(part.to(every.tensors()[0].device)) for part in torch.split(chosen, [len(b) for b in batches])]
        for chosen, batches in zip(members, domains, strict=True)
    ]
