"""Controls: the same coefficients at other parameters.

A method that gives every parameter a coefficient is compared with itself after the coefficients are permuted. What a
control keeps is what the comparison does not test: `shuffle` keeps the values of each tensor, and `shuffle_matched`
also how they go with another quantity, such as the mean sensitivity. c is small where parameters are sensitive, so
plain shuffling changes two things at once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dspreg.devices import send

GROUPS, LEAST = 10, 10  # deciles, or fewer groups where they would have fewer entries than this


def shuffle(values: Tensor, random: torch.Generator) -> Tensor:
    """The values in random order; the same order on every device."""
    order = torch.randperm(values.numel(), generator=random, device="cpu")
    return values.reshape(-1)[send(order, values.device)].view_as(values)


def shuffle_matched(values: Tensor, like: Tensor, random: torch.Generator) -> Tensor:
    """The values in random order within each decile of `like`, by its ranks."""
    flat = values.reshape(-1)
    by_rank = like.reshape(-1).argsort(stable=True)
    groups = max(1, min(GROUPS, len(flat) // LEAST))
    found = torch.empty_like(flat)
    for places in by_rank.tensor_split(groups):
        found[places] = shuffle(flat[places], random)
    return found.view_as(values)


def reverse_ranks(values: Tensor) -> Tensor:
    """The same values, the largest where the smallest was."""
    flat = values.reshape(-1)
    order = flat.argsort(stable=True)
    return torch.empty_like(flat).scatter_(0, order, flat[order].flip(0)).view_as(values)
