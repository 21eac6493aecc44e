"""How much each image counts in the loss: the weights of its table, and what makes up for rare classes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from dspreg.errors import DataError


def image_weights(
    labels: Mapping[str, Sequence[int]], weights: Mapping[str, Sequence[float] | None], *, balance: bool
) -> list[Tensor]:
    """The weight in the loss of every image of the sources' training splits, 1 in the mean over what a step draws.

        w_i = v_i / mean_d(v) · b(y_i),  b(c) = 1 / (C · p(c)),  p(c) = 1/D Σ_d share of class c in the weight of d

    v are the weights that are given, or 1. They count within a domain: all domains have as many images in a step, with
    weights and without. b makes the C classes that there are count the same over all domains together; without
    `balance` it is 1.

    Args:
        labels: By domain.
        weights: By domain; None where none are given.
        balance: Whether classes count the same.
    """
    own = {name: _within_domain(name, len(each), weights.get(name)) for name, each in labels.items()}
    of_class: dict[int, float] = defaultdict(lambda: 1.0)
    if balance:
        share: dict[int, float] = defaultdict(float)
        for name, each in labels.items():
            for label, weight in zip(each, own[name].tolist(), strict=True):
                share[label] += weight / len(each) / len(labels)
        present = {label: p for label, p in share.items() if p > 0}
        of_class.update({label: 1 / (len(present) * p) for label, p in present.items()})
    return [
        (own[name] * torch.tensor([of_class[label] for label in each], dtype=torch.float64)).float()
        for name, each in labels.items()
    ]


def _within_domain(name: str, number: int, given: Sequence[float] | None) -> Tensor:
    if given is None:
        return torch.ones(number, dtype=torch.float64)
    weights = torch.tensor(given, dtype=torch.float64)
    if not weights.sum() > 0:
        raise DataError(
            f"all images of the domain {name!r} that are trained on have weight 0; give some a weight above 0"
        )
    return weights / weights.mean()


def positions_by_class(labels: Sequence[int]) -> list[list[int]]:
    """The positions of each class that there is, classes in order."""
    found: dict[int, list[int]] = defaultdict(list)
    for position, label in enumerate(labels):
        found[label].append(position)
    return [found[label] for label in sorted(found)]
