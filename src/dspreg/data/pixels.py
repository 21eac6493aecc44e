"""From a PIL image to bytes in memory, without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image

SMALL = 64 * 64  # pixels: below, three bands take longer to make than their bytes to put in order


def resize(image: Image, size: int) -> Image:
    """Brought to size × size, whatever the shape."""
    from PIL import Image as Pillow

    return image if image.size == (size, size) else image.resize((size, size), Pillow.Resampling.BILINEAR)


def put_pixels(image: Image, out: NDArray[np.uint8], *, mirrored: bool = False) -> None:
    """Write the pixels of an RGB image to `out` (3, height, width)."""
    import numpy as np

    if image.width * image.height < SMALL:
        pixels = np.frombuffer(image.tobytes(), np.uint8).reshape(image.height, image.width, 3).transpose(2, 0, 1)
        np.copyto(out, pixels[:, :, ::-1] if mirrored else pixels)
        return
    for plane, band in zip(out, image.split(), strict=True):
        pixels = np.frombuffer(band.tobytes(), np.uint8).reshape(plane.shape)
        np.copyto(plane, pixels[:, ::-1] if mirrored else pixels)
