"""From a PIL image to what the network sees, as in DomainBed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from dspreg.data.augmentation import change_image, draw_change
from dspreg.data.colours import agrees_with_pillow
from dspreg.data.decode import reuse_memory
from dspreg.data.pixels import put_pixels, resize

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True)
class Transform:
    """PIL image, seen in RGB → tensor (3, size, size), normalised.

    Plain, for evaluating and measuring: resized to size × size whatever the shape. Augmented, for training: a crop of
    70–100 % of the area, mirrored half of the time, colours changed, one in ten grey; drawn from torch's global
    generator, which the loader seeds for every image.

    In two halves, because the second is done for a whole batch at once.
    """

    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: bool = False
    channels_last: bool = False  # how a batch lies in memory

    def __call__(self, image: Image) -> Tensor:
        return self.normalise(self.pixels(image))

    def pixels(self, image: Image) -> Tensor:
        """(3, size, size), uint8."""
        made = torch.empty((3, self.size, self.size), dtype=torch.uint8)
        self.put_pixels(image, made)
        return made

    def put_pixels(self, image: Image, out: Tensor) -> None:
        """Write them to `out` (3, size, size), uint8 and contiguous, such as one image of a batch."""
        reuse_memory()
        if image.mode != "RGB":  # a data set of one's own may hand over any PIL image
            image = image.convert("RGB")
        # on PIL images, not on tensors: other interpolation and rounding would be other pixels than DomainBed's
        if self.augment and agrees_with_pillow():
            change_image(image, draw_change(*image.size), out.numpy())
            return
        shown = torchvision_augmentation(self.size)(image) if self.augment else resize(image, self.size)
        put_pixels(shown, out.numpy())

    def normalise(self, pixels: Tensor) -> Tensor:
        """(…, 3, size, size), float32. Features, which are numbers already, stay as they are."""
        if pixels.is_floating_point():
            return pixels
        last = self.channels_last and pixels.ndim == 4
        if pixels.device.type == "cpu" and pixels.ndim == 4:
            made = torch.empty(pixels.shape, memory_format=torch.channels_last if last else torch.contiguous_format)
            one = torch.empty(pixels.shape[1:])
            mean, std = (torch.tensor(each).view(3, 1, 1) for each in (self.mean, self.std))
            for each, x in zip(made, pixels, strict=True):  # one by one, since an image fits into the processor's cache
                room = one if last else each
                room.copy_(x).mul_(1 / 255).sub_(mean).div_(std)
                if last:
                    each.copy_(room)
            return made
        mean, std = (pixels.new_tensor(each, dtype=torch.float32).view(3, 1, 1) for each in (self.mean, self.std))
        shown = (pixels.to(torch.float32) * (1 / 255) - mean) / std
        return shown.contiguous(memory_format=torch.channels_last) if last else shown


@cache
def torchvision_augmentation(size: int) -> Callable[[Image], Image]:
    """What `augmentation` does faster, by torchvision itself, whose import takes seconds."""
    from torchvision.transforms import v2

    crop, flip = v2.RandomResizedCrop(size, scale=(0.7, 1.0)), v2.RandomHorizontalFlip()
    colour, grey = v2.ColorJitter(0.3, 0.3, 0.3, 0.3), v2.RandomGrayscale(0.1)
    return cast("Callable[[Image], Image]", v2.Compose([crop, flip, colour, grey]))
