"""From an image to what the network sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dspreg.config.reading import DOMAINBED_READING, Reading
from dspreg.data.augmentation import put_augmented
from dspreg.data.convert import picture_from
from dspreg.data.decode import reuse_memory
from dspreg.data.pixels import make_square, put_pixels, resize
from dspreg.errors import DataError


@dataclass(frozen=True)
class Transform:
    """Image → tensor (channels, size, size), normalised.

    Plain, for evaluating and measuring: made square and resized. Augmented, for training: changed at random, with
    numbers from torch's global generator, which the loader seeds for every image.

    In two halves, because the second is done for a whole batch at once.

    Attributes:
        size: Height and width of what the network sees.
        mean, std: Of the images it wants, for each channel.
        augment: How an image is changed at random, of `AUGMENTATIONS` or the import path of a function.
        channels_last: How a batch lies in memory.
        resize: How an image becomes a square: `"squash"`, `"crop"` or `"pad"`.
        reading: How an image becomes channels of 8 bits, of a file and of what a caller hands over.
    """

    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: str = "none"
    channels_last: bool = False
    resize: str = "squash"
    reading: Reading = DOMAINBED_READING

    def __call__(self, image: Any) -> Tensor:
        return self.normalise(self.pixels(image))

    @property
    def channels(self) -> int:
        return len(self.mean)

    def pixels(self, image: Any) -> Tensor:
        """(channels, size, size), uint8."""
        made = torch.empty((self.channels, self.size, self.size), dtype=torch.uint8)
        self.put_pixels(image, made)
        return made

    def put_pixels(self, image: Any, out: Tensor) -> None:
        """Write them to `out` (channels, size, size), uint8 and contiguous, such as one image of a batch."""
        reuse_memory()
        # on PIL images, not on tensors: other interpolation and rounding would be other pixels than DomainBed's
        picture = picture_from(image, self.reading)
        if self.augment != "none":
            put_augmented(picture, out.numpy(), self.augment, self.resize)
        else:
            put_pixels(resize(make_square(picture, self.resize), self.size), out.numpy())

    def normalise(self, pixels: Tensor) -> Tensor:
        """(…, channels, size, size), float32. Features, which are numbers already, stay as they are."""
        if pixels.is_floating_point():
            return pixels
        last = self.channels_last and pixels.ndim == 4
        if pixels.device.type == "cpu" and pixels.ndim == 4:
            made = torch.empty(pixels.shape, memory_format=torch.channels_last if last else torch.contiguous_format)
            one = torch.empty(pixels.shape[1:])
            mean, std = (torch.tensor(each).view(-1, 1, 1) for each in (self.mean, self.std))
            for each, x in zip(made, pixels, strict=True):  # one by one, since an image fits into the processor's cache
                room = one if last else each
                room.copy_(x).mul_(1 / 255).sub_(mean).div_(std)
                if last:
                    each.copy_(room)
            return made
        mean, std = (pixels.new_tensor(each, dtype=torch.float32).view(-1, 1, 1) for each in (self.mean, self.std))
        shown = (pixels.to(torch.float32) * (1 / 255) - mean) / std
        return shown.contiguous(memory_format=torch.channels_last) if last else shown


@dataclass(frozen=True)
class Unchanged:
    """What stands in place of a `Transform` where inputs are tensors already: they stay as they are."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    augment = "none"
    reading = DOMAINBED_READING

    def __call__(self, x: Any) -> Tensor:
        """A tensor (…) or an array of it. What has another shape is refused; numbers become float32, or stay whole."""
        given = as_input(x)
        if given.shape != self.shape or given.dtype != self.dtype:
            raise DataError(
                f"an input is {given.dtype} of shape {tuple(given.shape)}; wanted {self.dtype} of shape "
                f"{self.shape}, as the first one of the data set"
            )
        return given

    def normalise(self, x: Tensor) -> Tensor:
        return x


def as_input(x: Any) -> Tensor:
    """An input as the network gets it: float32, or int64 for whole numbers such as those of tokens."""
    tensor = torch.as_tensor(x)
    return tensor.to(torch.float32 if tensor.is_floating_point() else torch.int64)
