"""Transforms against PIL and numpy by hand, and against torchvision's functions with the numbers they draw."""

import multiprocessing.reduction

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from dspreg.data.augmentation import by_torchvision
from dspreg.data.transforms import Transform

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def picture(width=47, height=31, seed=0):
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 9, 3), np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


@pytest.mark.parametrize("size", [(47, 31), (31, 47), (16, 16), (9, 200), (1, 1)])
def test_plain_is_pillows_resize_and_the_normalisation_of_the_paper(size):
    image = picture(*size)
    shown = Transform(16, MEAN, STD)(image)
    pixels = np.asarray(image.resize((16, 16), Image.Resampling.BILINEAR), np.float64) / 255
    expected = (pixels - MEAN) / STD
    assert shown.dtype == torch.float32
    np.testing.assert_allclose(shown.numpy().transpose(1, 2, 0), expected, rtol=0, atol=1e-6)


def test_an_image_of_the_right_size_keeps_its_pixels():
    image = picture(16, 16)
    pixels = Transform(16, MEAN, STD).pixels(image)
    assert pixels.dtype == torch.uint8
    assert np.array_equal(pixels.numpy().transpose(1, 2, 0), np.asarray(image))


def test_height_and_width_are_not_exchanged():
    image = Image.new("RGB", (10, 20))
    image.paste((255, 0, 0), (0, 0, 10, 2))  # a red bar along the top
    pixels = Transform(20, MEAN, STD).pixels(image)
    assert pixels[0, 0].min() == 255
    assert pixels[0, -1].max() == 0
    assert pixels[1:].max() == 0


def test_a_batch_is_normalised_as_its_images_are():
    transform = Transform(12, MEAN, STD)
    images = [picture(seed=n) for n in range(3)]
    together = transform.normalise(torch.stack([transform.pixels(image) for image in images]))
    assert torch.equal(together, torch.stack([transform(image) for image in images]))


def test_a_batch_lies_channels_last_if_wanted_and_is_the_same():
    pixels = torch.stack([Transform(12, MEAN, STD).pixels(picture(seed=n)) for n in range(3)])
    plain, last = (Transform(12, MEAN, STD, channels_last=last).normalise(pixels) for last in (False, True))
    assert torch.equal(plain, last)
    assert (plain.stride(1), last.stride(1)) == (144, 1)


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "1"])
@pytest.mark.parametrize("augment", [False, True])
def test_an_image_of_another_mode_is_seen_in_rgb(mode, augment):
    """A data set of one's own may hand over any PIL image; grey ones would be normalised as three channels unseen."""
    image = picture().convert(mode)
    transform = Transform(12, MEAN, STD, "domainbed" if augment else "none")
    torch.manual_seed(1)
    shown = transform(image)
    torch.manual_seed(1)
    assert torch.equal(shown, transform(image.convert("RGB")))
    assert shown.shape == (3, 12, 12)


# Augmented.


@pytest.mark.parametrize("seed", range(30))
def test_augmented_is_crop_flip_colour_and_grey_in_this_order(seed):
    """torchvision's functions called one by one, with numbers drawn as its own documentation has them."""
    image = picture(60, 40)
    torch.manual_seed(seed)
    shown = Transform(16, MEAN, STD, augment="domainbed").pixels(image)

    torch.manual_seed(seed)
    crop = v2.RandomResizedCrop(16, scale=(0.7, 1.0), ratio=(3 / 4, 4 / 3)).make_params([image])
    box = (crop["left"], crop["top"], crop["left"] + crop["width"], crop["top"] + crop["height"])
    expected = image.crop(box).resize((16, 16), Image.Resampling.BILINEAR)
    if torch.rand(1) < 0.5:
        expected = expected.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    order = torch.randperm(4)
    factors = [float(torch.empty(1).uniform_(low, high)) for low, high in [(0.7, 1.3)] * 3 + [(-0.3, 0.3)]]
    adjust = (functional.adjust_brightness, functional.adjust_contrast, functional.adjust_saturation,
              functional.adjust_hue)  # fmt: skip
    for i in order:
        expected = adjust[i](expected, factors[i])
    if torch.rand(1) < 0.1:
        expected = expected.convert("L").convert("RGB")
    assert np.array_equal(shown.numpy().transpose(1, 2, 0), np.asarray(expected))


def test_crops_hold_70_to_100_percent_and_half_are_mirrored():
    """Each pixel says where it comes from: red is x, green is y."""
    side = 200
    x, y = np.meshgrid(np.arange(side), np.arange(side))
    image = Image.fromarray(np.stack([x, y, 0 * x], -1).astype(np.uint8))
    plain = v2.Compose(by_torchvision("domainbed", side).transforms[:2])  # without the colours
    torch.manual_seed(0)
    areas, flips, shapes = [], 0, []
    for _ in range(400):
        seen = np.asarray(plain(image)).astype(float)
        width, height = np.ptp(seen[..., 0]) + 1, np.ptp(seen[..., 1]) + 1
        areas.append(width * height / side**2)
        shapes.append(width / height)
        flips += seen[100, 0, 0] > seen[100, -1, 0]
        assert seen[0, 100, 1] < seen[-1, 100, 1]  # never upside down
    assert 0.68 < min(areas) < 0.73
    assert 0.97 < max(areas) <= 1
    assert 3 / 4 - 0.02 < min(shapes) < max(shapes) < 4 / 3 + 0.02
    assert 150 < flips < 250


def test_one_in_ten_is_grey():
    image = picture(20, 20)
    transform = Transform(8, MEAN, STD, augment="domainbed")
    torch.manual_seed(0)
    pixels = torch.stack([transform.pixels(image) for _ in range(1000)])
    grey = int((pixels == pixels[:, :1]).flatten(1).all(1).sum())
    assert 70 < grey < 130
    assert len({tuple(p.flatten().tolist()) for p in pixels}) > 990


def test_plain_draws_nothing():
    before = torch.get_rng_state()
    Transform(8, MEAN, STD)(picture())
    assert torch.equal(torch.get_rng_state(), before)


def test_transforms_are_values_that_can_be_sent_to_another_process():
    one, other = Transform(8, MEAN, STD, "domainbed"), Transform(8, MEAN, STD, "domainbed")
    assert one == other != Transform(8, MEAN, STD)
    assert len({one, other}) == 1
    again = multiprocessing.reduction.ForkingPickler.loads(multiprocessing.reduction.ForkingPickler.dumps(one))
    assert again == one
