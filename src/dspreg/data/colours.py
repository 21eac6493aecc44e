"""Brightness, contrast, saturation and hue of an image in memory, byte for byte as Pillow makes them, in less time.

Pillow allocates an image for every operation, and its way to hue and back is a few divisions per pixel. Here the three
colours of an image are rows of one array, which the processor goes through many bytes at a time, in buffers that are
made once. What rounds is done in Pillow's own order and precision; `agrees_with_pillow` looks whether it is so here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageEnhance

Bytes = NDArray[np.uint8]

LUMA = np.array([[19595], [38470], [7471]], np.float32)  # of 65,536: ITU-R 601-2
HALF = np.float32(32768)
TIMES_65536 = np.float32(2**-16)
SIXTHS = (43, 85, 128, 170, 213, 255)  # where the next sixth of the circle of hues begins; the last one closes it


class Colours:
    """Changes images (3, pixels) of one size in place. Not for two threads at a time."""

    def __init__(self, pixels: int) -> None:
        self.values = np.empty((3, pixels), np.float32)
        self.parts = np.empty((3, pixels), np.float32)
        self.grey = np.empty(pixels, np.uint8)
        self.bytes = np.empty((7, pixels), np.uint8)
        self.pairs = np.empty(pixels, np.uint16)
        self.index = np.empty(pixels, np.intp)
        self.flags = np.empty((6, pixels), np.bool_)

    def brighten(self, image: Bytes, factor: float) -> None:
        """As `ImageEnhance.Brightness`: a mixture with black."""
        np.copyto(self.values, image)
        self.values *= np.float32(factor)
        self._put(image, factor)

    def contrast(self, image: Bytes, factor: float) -> None:
        """As `ImageEnhance.Contrast`: a mixture with the mean of all pixels in grey."""
        self._luma(image)
        mean = np.float32(int(int(self.grey.sum(dtype=np.uint64)) / self.grey.size + 0.5))
        self._mix(mean, factor)
        self._put(image, factor)

    def saturate(self, image: Bytes, factor: float) -> None:
        """As `ImageEnhance.Color`: a mixture with the same image in grey."""
        self._luma(image)
        grey = self.parts[0]
        np.copyto(grey, self.grey)
        self._mix(grey, factor)
        self._put(image, factor)

    def remove_colour(self, image: Bytes) -> None:
        """As `convert("L")`, in all three colours."""
        self._luma(image)
        np.copyto(image, self.grey)

    def turn_hue(self, image: Bytes, factor: float) -> None:
        """As torchvision's `adjust_hue`: by way of HSV of 8 bits each, hue shifted by a fraction of the circle."""
        most, middle, least, hue = self.bytes[:4]
        self._hue(image, most, middle, least, hue)
        hue += np.int32(factor * 255).astype(np.uint8)  # beyond the end it starts again
        for flag, first in zip(self.flags, SIXTHS, strict=True):
            np.greater_equal(hue, first, out=flag)
        self._colours(most, middle, least, hue)
        self._arrange(image, most, middle, least)

    def _luma(self, image: Bytes) -> None:
        """Set `values` and `grey`: sums of integers below 2²⁴, which single precision holds exactly."""
        np.copyto(self.values, image)
        np.multiply(self.values, LUMA, out=self.parts)
        total = self.parts[0]
        total += self.parts[1]
        total += self.parts[2]
        total += HALF
        total *= TIMES_65536
        np.copyto(self.grey, total, casting="unsafe")

    def _mix(self, other: NDArray[np.float32] | np.float32, factor: float) -> None:
        self.values -= other
        self.values *= np.float32(factor)
        self.values += other

    def _put(self, image: Bytes, factor: float) -> None:
        if not 0 <= factor <= 1:
            np.clip(self.values, 0, 255, out=self.values)
        np.copyto(image, self.values, casting="unsafe")  # the fraction is cut off

    def _hue(self, image: Bytes, most: Bytes, middle: Bytes, least: Bytes, hue: Bytes) -> None:
        """The largest, middle and smallest colour of every pixel, and its hue.

        That depends on the order of the three and on how far the other two are below the largest.
        """
        red, green, blue = image
        np.maximum(red, green, out=most)
        np.maximum(most, blue, out=most)
        np.minimum(red, green, out=least)
        np.minimum(least, blue, out=least)
        np.bitwise_xor(red, green, out=middle)
        for each in (blue, most, least):  # what is there twice cancels
            middle ^= each
        order, flag = self.bytes[4], self.flags[0]
        np.less(blue, red, out=flag)
        np.copyto(order, flag)
        for one, other in ((green, blue), (red, green)):
            order <<= 1
            np.less(one, other, out=flag)
            order |= flag.view(np.uint8)
        below, spread = self.bytes[5], self.bytes[6]
        np.subtract(most, middle, out=below)
        np.subtract(most, least, out=spread)
        self._pair(spread, below)
        np.copyto(self.index, order)
        self.index <<= 16
        self.index |= self.pairs
        hues().take(self.index, out=hue, mode="clip")

    def _colours(self, most: Bytes, middle: Bytes, least: Bytes, hue: Bytes) -> None:
        """The middle and smallest colour anew, from hue, saturation and the largest.

        The smallest is most · (1 − saturation); the middle one loses a part of the saturation that falls within one
        sixth of the circle and grows within the next. In steps of 1/255, so that all but the quotients are integers
        below 2²⁴, which single precision holds exactly.
        """
        saturation, part, whole = self.bytes[4:7]
        self._pair(whole, most)  # `_hue` has left largest − smallest there
        np.copyto(self.index, self.pairs)
        saturations().take(self.index, out=saturation, mode="clip")
        sixth = whole
        np.multiply(hue, 6, out=part)
        np.copyto(sixth, self.flags[0])
        for flag in self.flags[1:]:
            sixth += flag.view(np.uint8)
        part += sixth  # 6 · hue − 255 · sixth, in bytes
        sixth &= 1
        sixth -= 1  # 255 in every other sixth
        part ^= sixth
        share, amount, value = self.values
        np.copyto(share, saturation)
        np.copyto(amount, part)
        np.copyto(value, most)
        amount *= share
        for lost, full, colour in ((share, np.float32(255), least), (amount, np.float32(255 * 255), middle)):
            np.subtract(full, lost, out=lost)
            lost *= value
            lost /= full
            np.rint(lost, out=lost)
            np.copyto(colour, lost, casting="unsafe")

    def _arrange(self, image: Bytes, most: Bytes, middle: Bytes, least: Bytes) -> None:
        """Which colour is the largest and which the smallest, by the sixth of the circle that the hue lies in."""
        one, two, three, four, five, turned = self.flags.view(np.uint8)
        # where red is the largest: outside of one … five; green; blue; then where they are the smallest
        largest = ((one, five, True), (one, three, False), (three, five, False))
        smallest = ((two, four, False), (four, turned, False), (two, turned, True))
        mask, difference = self.bytes[4:6]
        for colour, *choices in zip(image, largest, smallest, strict=True):
            np.copyto(colour, middle)
            for chosen, (start, stop, outside) in zip((most, least), choices, strict=True):
                np.bitwise_xor(start, stop, out=mask)
                if outside:
                    mask ^= 1
                np.negative(mask, out=mask)  # 0 or 255
                np.bitwise_xor(middle, chosen, out=difference)
                difference &= mask
                colour ^= difference

    def _pair(self, high: Bytes, low: Bytes) -> None:
        np.copyto(self.pairs, high)
        self.pairs <<= 8
        self.pairs |= low


@cache
def hues() -> Bytes:
    """Hue by (blue < red, green < blue, red < green; largest − smallest; largest − middle), made by Pillow."""
    order, spread, below = np.indices((8, 256, 256), np.uint8).reshape(3, -1)
    top = np.full_like(order, 255)
    ranks = {  # (red, green, blue), each one of the three: where orders contradict each other nothing is looked up
        0b100: (0, 1, 2), 0b101: (1, 0, 2), 0b001: (2, 0, 1), 0b011: (2, 1, 0), 0b010: (1, 2, 0), 0b110: (0, 2, 1),
    }  # fmt: skip
    table = np.zeros(order.size, np.uint8)
    for each, places in ranks.items():
        at = order == each
        values = (top[at], 255 - below[at], 255 - spread[at])
        pixels = np.stack([values[place] for place in places], axis=-1)
        table[at] = np.asarray(Image.fromarray(pixels[None]).convert("HSV"))[0, :, 0]
    return table


@cache
def saturations() -> Bytes:
    """Saturation by (largest − smallest; largest), made by Pillow."""
    spread, most = np.indices((256, 256), np.uint8).reshape(2, -1)
    low = np.maximum(most, spread) - spread
    pixels = np.stack([most, low, low], axis=-1)
    return np.asarray(Image.fromarray(pixels[None]).convert("HSV"))[0, :, 1].copy()


@cache
def agrees_with_pillow() -> bool:
    """Whether these are Pillow's bytes here; another Pillow, or one made for another processor, might round otherwise.

    Looked at once, on colours of every kind. Where it isn't so, images are augmented by Pillow itself.
    """
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (3, 3, 48 * 64), np.uint8)
    pixels[1] //= 8  # dark ones: few values, so that many pixels have two or three equal colours
    pixels[2] |= 0xE0
    image = np.concatenate(pixels, axis=1)
    before = Image.fromarray(np.ascontiguousarray(image.T).reshape(3 * 48, 64, 3))
    colours = Colours(image.shape[1])
    by_pillow: dict[Callable[[Bytes, float], None], Callable[[float], Image.Image]] = {
        colours.brighten: lambda factor: ImageEnhance.Brightness(before).enhance(factor),
        colours.contrast: lambda factor: ImageEnhance.Contrast(before).enhance(factor),
        colours.saturate: lambda factor: ImageEnhance.Color(before).enhance(factor),
        colours.turn_hue: lambda factor: _turn_hue(before, factor - 1.0),
        lambda changed, _: colours.remove_colour(changed): lambda _: before.convert("L").convert("RGB"),
    }
    for change, wanted in by_pillow.items():
        for factor in (0.7, 0.8137, 0.9999, 1.0001, 1.1234, 1.3):
            changed = image.copy()
            change(changed, factor - 1.0 if change == colours.turn_hue else factor)
            if not np.array_equal(changed.T.ravel(), np.asarray(wanted(factor)).ravel()):
                return False
    return True


def _turn_hue(image: Image.Image, factor: float) -> Image.Image:
    hue, *others = image.convert("HSV").split()
    turned = Image.fromarray(np.asarray(hue) + np.int32(factor * 255).astype(np.uint8))
    return Image.merge("HSV", (turned, *others)).convert("RGB")
