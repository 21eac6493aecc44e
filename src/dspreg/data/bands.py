"""Images with any number of channels, as far as cutting and resizing go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Union

from dspreg.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image, Resampling, Transpose

Picture = Union["Image", "Bands"]
Box = tuple[int, int, int, int]  # left, top, right, bottom


class Bands:
    """Channels of which each is a grey image of Pillow's, which has no mode for most numbers of them.

    With those methods of Pillow's images that this package uses.
    """

    def __init__(self, bands: Sequence[Image]) -> None:
        if not bands or any(band.size != bands[0].size or band.mode != "L" for band in bands):
            raise DataError(f"wanted grey images of one size, not {[(b.mode, b.size) for b in bands][:5]}")
        self.bands = tuple(bands)

    @property
    def size(self) -> tuple[int, int]:
        return self.bands[0].size

    def split(self) -> tuple[Image, ...]:
        return self.bands

    def crop(self, box: Box) -> Bands:
        return self._each(lambda band: band.crop(box))

    def resize(self, size: tuple[int, int], resample: Resampling) -> Bands:
        return self._each(lambda band: band.resize(size, resample))

    def reduce(self, factor: int) -> Bands:
        return self._each(lambda band: band.reduce(factor))

    def transpose(self, method: Transpose) -> Bands:
        return self._each(lambda band: band.transpose(method))

    def _each(self, change: Callable[[Image], Image]) -> Bands:
        return Bands([change(band) for band in self.bands])


def picture_of(planes: NDArray[np.uint8]) -> Picture:
    """From (channels, height, width): grey, RGB, or bands."""
    from PIL import Image

    bands = [Image.fromarray(plane) for plane in planes]
    if len(bands) == 3:
        return Image.merge("RGB", bands)
    return bands[0] if len(bands) == 1 else Bands(bands)


def planes_of(picture: Picture) -> NDArray[np.uint8]:
    """(channels, height, width) of what `picture_of` makes."""
    import numpy as np

    return np.stack([np.asarray(band) for band in picture.split()])
