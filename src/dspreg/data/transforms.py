"""From a PIL image to what the network sees, as in DomainBed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torchvision.transforms import v2

if TYPE_CHECKING:
    from PIL.Image import Image

Transform = Callable[["Image"], Tensor]


def plain(size: int, mean: Sequence[float], std: Sequence[float]) -> v2.Compose:
    """For evaluation and measuring: resized to size × size whatever the shape, then normalised."""
    return v2.Compose([v2.Resize((size, size)), *_normalised(mean, std)])


def augmented(size: int, mean: Sequence[float], std: Sequence[float]) -> v2.Compose:
    """For training: a crop of 70–100 % of the area, mirrored half of the time, colours changed, one in ten grey.

    Draws from torch's global generator, which the loader seeds for every sample.
    """
    return v2.Compose(
        [
            v2.RandomResizedCrop(size, scale=(0.7, 1.0)),
            v2.RandomHorizontalFlip(),
            v2.ColorJitter(0.3, 0.3, 0.3, 0.3),
            v2.RandomGrayscale(0.1),
            *_normalised(mean, std),
        ]
    )


def _normalised(mean: Sequence[float], std: Sequence[float]) -> list[torch.nn.Module]:
    return [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(list(mean), list(std))]
