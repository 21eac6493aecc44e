"""From a PIL image to bytes in memory: every pixel where it belongs, in small images and large ones."""

import numpy as np
import pytest
from PIL import Image

from dspreg.data.pixels import SMALL, put_pixels

REFUSED = r"shape|longer|shorter|broadcast"  # numpy's and Python's words


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize(("width", "height"), [(5, 7), (63, 64), (64, 64), (64, 65)])
def test_every_pixel_is_where_it_belongs(width, height, mirrored):
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8))
    out = np.full((3, height, width), 7, np.uint8)
    put_pixels(image, out, mirrored=mirrored)
    for y in range(height):
        for x in range(width):
            assert tuple(out[:, y, width - 1 - x if mirrored else x]) == image.getpixel((x, y))


def test_both_ways_are_tried():
    assert 63 * 64 < SMALL <= 64 * 64


@pytest.mark.parametrize("size", [8, 100])
def test_an_image_of_another_size_or_with_other_bands_is_refused(size):
    with pytest.raises(ValueError, match=REFUSED):
        put_pixels(Image.new("RGB", (size, size)), np.zeros((3, size + 1, size), np.uint8))
    with pytest.raises(ValueError, match=REFUSED):
        put_pixels(Image.new("L", (size, size)), np.zeros((3, size, size), np.uint8))
