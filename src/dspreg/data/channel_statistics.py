"""Mean and standard deviation of each channel of images."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch


def channel_statistics(batches: Iterable[torch.Tensor]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of values 0 … 1 for each channel of uint8 images (B, channels, H, W).

    1 instead of a deviation of 0: a channel of one value is left at 0.
    """
    total, squares, pixels = torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), 0
    for x in batches:
        values = x.transpose(0, 1).flatten(1).to(torch.int64)
        total = values.sum(1) + (total if pixels else 0)
        squares = values.square().sum(1) + (squares if pixels else 0)
        pixels += values.shape[1]
    sums = list(zip(total.tolist(), squares.tolist(), strict=True))
    mean = tuple(s / pixels / 255 for s, _ in sums)
    std = tuple(math.sqrt(pixels * q - s * s) / pixels / 255 or 1.0 for s, q in sums)  # whole numbers under the root
    return mean, std
