"""Random changes of a training image: DomainBed's (crop, mirror, colours, grey), and others by name or function.

The numbers are drawn as torchvision's transforms draw them, in their order and from torch's global generator, and the
pixels are theirs byte for byte: a run that was begun with those goes on with these.
"""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from dspreg.config.reading import Reading
from dspreg.data.bands import Bands, Box, Picture, planes_of
from dspreg.data.colours import Colours, agrees_with_pillow
from dspreg.data.convert import picture_from
from dspreg.data.pixels import make_square, put_pixels, resize
from dspreg.errors import ConfigError, DataError
from dspreg.io.importing import Trust, import_object, is_import_path
from dspreg.randomness import untouched

AREA = (0.7, 1.0)  # of the image that a crop covers
SHAPE = (3 / 4, 4 / 3)  # width by height of a crop
LOG_SHAPE = tuple(torch.log(torch.tensor(SHAPE)).tolist())  # in single precision, as in torchvision
TRIES = 10
MIRRORED = 0.5
JITTER = 0.3  # largest change of brightness, contrast, saturation and hue
GREY = 0.1


@dataclass(frozen=True)
class Change:
    """What was drawn for one image."""

    box: Box
    mirrored: bool
    order: tuple[int, ...]  # of brightness (0), contrast (1), saturation (2) and hue (3)
    factors: tuple[float, ...]  # of these four
    grey: bool


def put_augmented(image: Picture, out: NDArray[np.uint8], augment: str, how: str) -> None:
    """Write an image, changed at random, to `out` (channels, size, size), which must be contiguous.

    Args:
        image: With the wanted channels.
        out: Where to.
        augment: One of `AUGMENTATIONS` but `"none"`, or the import path of a function.
        how: As in `make_square`.
    """
    size = out.shape[-1]
    if is_import_path(augment):
        image = apply_function(augment, image, len(out))
        put_pixels(resize(make_square(image, how), size), out)
        return
    image = make_square(image, how)
    if augment == "light":
        box = draw_box(*image.size)
        put_pixels(resize(image.crop(box), size), out, mirrored=_uniform(0.0, 1.0) < MIRRORED)
    elif isinstance(image, Bands):
        raise ConfigError(f"augment={augment} changes colours, which images of {len(out)} channels don't have")
    elif augment == "domainbed" and agrees_with_pillow():
        change_image(image, draw_change(*image.size), out)
    else:
        put_pixels(by_torchvision(augment, size)(image), out)


@cache
def by_torchvision(augment: str, size: int) -> Callable[[Image.Image], Image.Image]:
    """By torchvision itself, whose import takes seconds; `"domainbed"` is what `change_image` does faster."""
    from torchvision.transforms import v2

    steps = [v2.RandomResizedCrop(size, scale=AREA), v2.RandomHorizontalFlip()]
    if augment == "domainbed":
        steps += [v2.ColorJitter(JITTER, JITTER, JITTER, JITTER), v2.RandomGrayscale(GREY)]
    else:
        steps.append({"trivial": v2.TrivialAugmentWide, "augmix": v2.AugMix}[augment]())
    return cast("Callable[[Image.Image], Image.Image]", v2.Compose(steps))


@cache
def import_augmentation(path: str, trust: Trust = None) -> Callable[[Any], Any]:
    """A function of the user's by its import path.

    Raises:
        ConfigError: There is none, or it can't be called.
        IntegrityError: A file holds the name, and its module is not trusted.
    """
    found = import_object(path, trust)
    if not callable(found) or isinstance(found, type):
        kind = "a class; give a function, such as an object of it" if isinstance(found, type) else type(found).__name__
        raise ConfigError(f"augment={path} is {kind}; wanted a function from a PIL image to a PIL image")
    return cast("Callable[[Any], Any]", found)


def require_augmentation(augment: str, trust: Trust = None) -> None:
    """Refuse a function that can't be imported, before anything is trained; names of ours are fine."""
    if is_import_path(augment):
        import_augmentation(augment, trust if trust is None else tuple(trust))


def apply_function(path: str, image: Picture, channels: int) -> Picture:
    """What a function of the user's makes of an image: a PIL image, or a tensor for other channels than 1 and 3.

    Random numbers of torch, numpy and Python are those of the image's key: drawn from torch's global generator.
    """
    given = image if channels in (1, 3) else torch.from_numpy(planes_of(image))
    seed = int(torch.randint(2**32, (1,)).item())
    with untouched():
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        made = import_augmentation(path)(given)
    try:
        return picture_from(made, Reading(channels=channels))
    except DataError as error:
        raise DataError(f"augment={path}: {error}") from None


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
