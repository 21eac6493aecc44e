"""DomainBed's random change of a training image: crop, mirror, colours, grey.

The numbers are drawn as torchvision's transforms draw them, in their order and from torch's global generator, and the
pixels are theirs byte for byte: a run that was begun with those goes on with these.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from dspreg.data.colours import Colours
from dspreg.data.pixels import put_pixels, resize

AREA = (0.7, 1.0)  # of the image that a crop covers
SHAPE = (3 / 4, 4 / 3)  # width by height of a crop
LOG_SHAPE = tuple(torch.log(torch.tensor(SHAPE)).tolist())  # in single precision, as in torchvision
TRIES = 10
MIRRORED = 0.5
JITTER = 0.3  # largest change of brightness, contrast, saturation and hue
GREY = 0.1

Box = tuple[int, int, int, int]  # left, top, right, bottom


@dataclass(frozen=True)
class Change:
    """What was drawn for one image."""

    box: Box
    mirrored: bool
    order: tuple[int, ...]  # of brightness (0), contrast (1), saturation (2) and hue (3)
    factors: tuple[float, ...]  # of these four
    grey: bool


def draw_change(width: int, height: int) -> Change:
    """From torch's global generator, for an image of this size."""
    box = draw_box(width, height)
    mirrored = _uniform(0.0, 1.0) < MIRRORED
    order = tuple(torch.randperm(4).tolist())
    factors = tuple(_uniform(middle - JITTER, middle + JITTER) for middle in (1.0, 1.0, 1.0, 0.0))
    return Change(box, mirrored, order, factors, _uniform(0.0, 1.0) < GREY)


def draw_box(width: int, height: int) -> Box:
    """Where an image of this size is cut."""
    area = height * width
    for _ in range(TRIES):
        wanted = area * _uniform(*AREA)
        shape = torch.empty(1).uniform_(*LOG_SHAPE).exp_().item()
        w, h = round(math.sqrt(wanted * shape)), round(math.sqrt(wanted / shape))
        if 0 < w <= width and 0 < h <= height:
            top = int(torch.randint(0, height - h + 1, (1,)).item())
            left = int(torch.randint(0, width - w + 1, (1,)).item())
            return left, top, left + w, top + h
    # of a long image no such part was found: the middle of it
    w = round(height * SHAPE[1]) if width / height > SHAPE[1] else width
    h = round(width / SHAPE[0]) if width / height < SHAPE[0] else height
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def change_image(image: Image.Image, change: Change, out: NDArray[np.uint8]) -> None:
    """Write an RGB image, changed, to `out` (3, size, size), which must be contiguous."""
    size = out.shape[-1]
    put_pixels(resize(image.crop(change.box), size), out, mirrored=change.mirrored)
    flat, colours = out.reshape(3, -1), _colours(size * size)
    adjust = (colours.brighten, colours.contrast, colours.saturate, colours.turn_hue)
    for which in change.order:
        adjust[which](flat, change.factors[which])
    if change.grey:
        colours.remove_colour(flat)


def _uniform(low: float, high: float) -> float:
    return torch.empty(1).uniform_(low, high).item()


_kept = threading.local()


def _colours(pixels: int) -> Colours:
    """Buffers for images of so many pixels: of this thread, and kept until there are others of another size."""
    kept: Colours | None = getattr(_kept, "colours", None)
    if kept is None or kept.grey.size != pixels:
        kept = _kept.colours = Colours(pixels)
    return kept
