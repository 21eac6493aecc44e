"""Augmented pixels against torchvision's transforms, Pillow's operations and colorsys: equal bytes, equal draws."""

import colorsys

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from dspreg.data import augmentation
from dspreg.data import colours as colours_module
from dspreg.data.augmentation import change_image, draw_change
from dspreg.data.colours import Colours, agrees_with_pillow, hues, saturations
from dspreg.data.transforms import Transform

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def by_torchvision(size):
    colour = v2.ColorJitter(0.3, 0.3, 0.3, 0.3)
    crop = v2.RandomResizedCrop(size, scale=(0.7, 1.0))
    return v2.Compose([crop, v2.RandomHorizontalFlip(), colour, v2.RandomGrayscale(0.1)])


def some_image(n):
    """Noise, clouds, few colours or grey, of any shape."""
    rng = np.random.default_rng(n)
    width, height = (int(side) for side in rng.integers(1, 180, 2))
    if n % 11 == 0:
        width, height = (3, 160) if n % 2 else (160, 3)  # no crop of a permitted shape is found
    kind = n % 4
    if kind == 0:
        return Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8))
    coarse = Image.fromarray(rng.integers(0, 256, (5, 7, 3), np.uint8))
    clouds = coarse.resize((width, height), Image.Resampling.BICUBIC)
    if kind == 1:
        return clouds
    return clouds.convert("L").convert("RGB") if kind == 2 else clouds.point(lambda value: value // 64 * 85)


@pytest.mark.parametrize("size", [1, 7, 32, 96])
def test_bytes_and_draws_are_torchvisions(size):
    """Also which numbers were drawn: the generator is then in the same state."""
    theirs, ours = by_torchvision(size), Transform(size, MEAN, STD, augment="domainbed")
    for n in range(500):
        image = some_image(n)
        torch.manual_seed(n)
        expected, state = np.asarray(theirs(image)), torch.get_rng_state()
        torch.manual_seed(n)
        assert np.array_equal(ours.pixels(image).numpy().transpose(1, 2, 0), expected), n
        assert torch.equal(torch.get_rng_state(), state), n


def test_every_colour_has_the_hue_and_saturation_that_pillow_gives_it():
    """All 2²⁴ colours through HSV and back, against Pillow's conversion of an image of them, for one shift of hue."""
    colours = Colours(2**20)
    for block in range(16):
        number = np.arange(block << 20, (block + 1) << 20, dtype=np.uint32)
        planes = np.stack([number >> 16, number >> 8, number]).astype(np.uint8)
        image = Image.fromarray(np.ascontiguousarray(planes.T).reshape(1024, 1024, 3))
        expected = np.asarray(functional.adjust_hue(image, -0.123)).reshape(-1, 3).T
        colours.turn_hue(planes, -0.123)
        assert np.array_equal(planes, expected)


@pytest.mark.parametrize("factor", [-0.3, -0.0039, 0.0, 0.1, 0.2999, 0.5])
def test_a_turned_hue_is_that_of_colorsys(factor):
    """By another library, in double precision: within what 8 bits of hue and saturation lose."""
    rng = np.random.default_rng(3)
    before = rng.integers(0, 256, (3, 500), np.uint8)
    after = before.copy()
    Colours(500).turn_hue(after, factor)
    for pixel, shown in zip(before.T / 255, after.T / 255, strict=True):
        hue, saturation, value = colorsys.rgb_to_hsv(*pixel)
        expected = colorsys.hsv_to_rgb((hue + factor) % 1, saturation, value)
        # hue and shift are cut off to 1/255, and 256 is 0: up to 2.5 steps of 6/255
        assert np.abs(shown - expected).max() < 0.07


FACTORS = [0.7, 0.85, 1.0, 1.15, 1.3]


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize(
    ("change", "enhance"),
    [("brighten", ImageEnhance.Brightness), ("contrast", ImageEnhance.Contrast), ("saturate", ImageEnhance.Color)],
)
def test_colours_are_mixed_as_pillow_does(change, enhance, factor):
    for n in range(8):
        image = some_image(n)
        planes = np.asarray(image).reshape(-1, 3).T.copy()
        getattr(Colours(planes.shape[1]), change)(planes, factor)
        assert np.array_equal(planes.T, np.asarray(enhance(image).enhance(factor)).reshape(-1, 3))


def test_what_is_drawn_is_used_in_the_order_drawn():
    image = some_image(1)
    torch.manual_seed(4)
    change = draw_change(*image.size)
    assert sorted(change.order) == [0, 1, 2, 3]
    out = np.empty((3, 24, 24), np.uint8)
    change_image(image, change, out)
    expected = image.crop(change.box).resize((24, 24), Image.Resampling.BILINEAR)
    if change.mirrored:
        expected = expected.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    names = ("adjust_brightness", "adjust_contrast", "adjust_saturation", "adjust_hue")
    for which in change.order:
        expected = getattr(functional, names[which])(expected, change.factors[which])
    assert not change.grey
    assert np.array_equal(out.transpose(1, 2, 0), np.asarray(expected))


def test_where_bytes_are_not_pillows_pillow_is_used(monkeypatch):
    """Another Pillow may round otherwise: then torchvision's own transforms make the pixels, and they are the same."""
    image, transform = some_image(5), Transform(20, MEAN, STD, augment="domainbed")
    torch.manual_seed(1)
    fast = transform.pixels(image)

    def refuse(*_):
        raise AssertionError("not to be called")

    monkeypatch.setattr(augmentation, "agrees_with_pillow", lambda: False)
    monkeypatch.setattr(augmentation, "change_image", refuse)
    torch.manual_seed(1)
    assert torch.equal(transform.pixels(image), fast)


@pytest.mark.parametrize("broken", ["brighten", "contrast", "saturate", "turn_hue", "remove_colour"])
def test_a_difference_from_pillow_is_found(monkeypatch, broken):
    """One pixel that is off by one, in any of the five."""
    assert agrees_with_pillow.__wrapped__()
    right = getattr(Colours, broken)

    def wrong(self, image, *factor):
        right(self, image, *factor)
        image[1, 17] ^= 1

    monkeypatch.setattr(colours_module.Colours, broken, wrong)
    assert not agrees_with_pillow.__wrapped__()


def test_tables_are_bytes_of_every_order():
    assert hues().shape == (8 * 65536,)
    assert saturations()[255 << 8 | 255] == 255
    assert saturations()[0:256].max() == 0
