"""From an image to bytes in memory, without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dspreg.data.bands import Bands, Picture

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LONGEST = 4_096  # pixels of a side that an image may have when it is padded: one of a single row would be squared

SMALL = 64 * 64  # pixels: below, three bands take longer to make than their bytes to put in order


def resize(image: Picture, size: int) -> Picture:
    """Brought to size × size, whatever the shape."""
    from PIL import Image as Pillow

    return image if image.size == (size, size) else image.resize((size, size), Pillow.Resampling.BILINEAR)


def make_square(image: Picture, how: str) -> Picture:
    """The middle of it with `"crop"`, the whole with black beside it with `"pad"`; as it is with `"squash"`."""
    from PIL import Image as Pillow

    width, height = image.size
    if how == "squash" or width == height:
        return image
    if how == "pad" and max(width, height) > LONGEST:
        scale = LONGEST / max(width, height)
        width, height = max(1, round(width * scale)), max(1, round(height * scale))
        image = image.resize((width, height), Pillow.Resampling.BILINEAR)
    side = min(width, height) if how == "crop" else max(width, height)
    left, top = int((width - side) / 2), int((height - side) / 2)  # towards 0: the odd row goes to the right or below
    return image.crop((left, top, left + side, top + side))


def put_pixels(image: Picture, out: NDArray[np.uint8], *, mirrored: bool = False) -> None:
    """Write the pixels of an image to `out` (channels, height, width)."""
    import numpy as np

    width, height = image.size
    if width * height < SMALL and not isinstance(image, Bands):
        pixels = np.frombuffer(image.tobytes(), np.uint8).reshape(height, width, len(out)).transpose(2, 0, 1)
        np.copyto(out, pixels[:, :, ::-1] if mirrored else pixels)
        return
    for plane, band in zip(out, image.split(), strict=True):
        pixels = np.frombuffer(band.tobytes(), np.uint8).reshape(plane.shape)
        np.copyto(plane, pixels[:, ::-1] if mirrored else pixels)
