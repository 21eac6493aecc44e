"""From a PIL image to bytes in memory, without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image


def resize(image: Image, size: int) -> Image:
    """Brought to size × size, whatever the shape."""
    from PIL import Image as Pillow

    return image if image.size == (size, size) else image.resize((size, size), Pillow.Resampling.BILINEAR)


def put_pixels(image: Image, out: NDArray[np.uint8], *, mirrored: bool = False) -> None:
    """Write the pixels of an RGB image to `out` (3, height, width)."""
    import numpy as np

    for plane, band in zip(out, image.split(), strict=True):
        pixels = np.frombuffer(band.tobytes(), np.uint8).reshape(plane.shape)
        np.copyto(plane, pixels[:, ::-1] if mirrored else pixels)
