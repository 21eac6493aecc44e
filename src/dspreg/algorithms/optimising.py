"""One optimiser over all parameters of a stack, some of which have options or a loss of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

Optimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def give_gradients(loss: Tensor, parts: nn.Module) -> None:
    """Set `.grad` of these parameters alone, ready for an optimiser's step."""
    params = [p for p in parts.parameters() if p.requires_grad]
    for p, g in zip(params, torch.autograd.grad(loss, params, allow_unused=True), strict=True):
        p.grad = g


def regroup(optimizer: torch.optim.Optimizer, params: Iterable[nn.Parameter], **options: Any) -> None:
    """Give these parameters options of their own; those that the optimiser does not know are left out.

    The network's own parameters stay in the first group.
    """
    moved = list(params)
    ids = {id(p) for p in moved}
    for group in optimizer.param_groups:
        group["params"] = [p for p in group["params"] if id(p) not in ids]
    known = {name: value for name, value in options.items() if name in optimizer.defaults}
    optimizer.add_param_group({"params": moved, **known})
