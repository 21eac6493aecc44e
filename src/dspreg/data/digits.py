"""Four styles of digits, made on the spot: a small data set with a real shift and nothing to download."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dspreg.data.base import DomainDataset

if TYPE_CHECKING:
    from PIL.Image import Image

Pixels = NDArray[np.float64]  # between 0 and 1
Range = tuple[float, float]

SIDE = 28
CANVAS = 4 * SIDE  # glyphs are drawn and turned at four times the size, then shrunk: smooth edges
TALL = 80  # height in canvas pixels of an 8 in every font, so that fonts don't differ in size
PER_CLASS = 100
LUMINANCE = np.array([0.2126, 0.7152, 0.0722])

# No font is in two domains, so a glyph learnt in one is not met again in another. Monospaced DejaVu is bold or
# absent: the dot in its zero makes the contour look like an 8.
OUTLINE_FONTS = ("DejaVuSans", "DejaVuSans-Oblique", "cmss10", "cmtt10")
PRINT_FONTS = (
    "DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-BoldItalic", "DejaVuSerif-Italic",
    "STIXGeneral", "STIXGeneralBol", "STIXGeneralBolIta", "STIXGeneralItalic", "cmb10", "cmr10",
)  # fmt: skip
SIGN_FONTS = ("DejaVuSans-Bold", "DejaVuSans-BoldOblique", "DejaVuSansMono-Bold", "DejaVuSansMono-BoldOblique")


class Digits(DomainDataset):
    """Handwritten and printed digits.

    Input (x):
        28 × 28 RGB image.

    Label (y):
        The digit, 0 … 9.

    Domain:
        - handwritten: 1,797 digits by 13 people, light on dark, enlarged from 8 × 8
        - outline: contours of sans-serif digits on a rough coloured ground
        - print: serif digits, dark on light paper, slightly turned and blurred
        - sign: bold sans-serif digits, one strong colour on another, turned, of many sizes

    The last three have 1,000 images each, 100 per class. Nothing is downloaded: handwriting is the UCI test set
    "Optical Recognition of Handwritten Digits" within scikit-learn, fonts are matplotlib's. One installation always
    makes the same bytes; another version of Pillow (with FreeType) or NumPy may make slightly different ones.
    """

    name = "digits"
    domains = ("handwritten", "outline", "print", "sign")
    classes = ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9")
    steps = 301
    evaluate_every = 50
    image_size = SIDE
    small = True

    def domain(self, name: str) -> Sequence[tuple[Image, int]]:
        from PIL import Image

        images, labels = self.arrays(name)
        return [(Image.fromarray(x), int(y)) for x, y in zip(images, labels, strict=True)]

    def arrays(self, name: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Images (N, 28, 28, 3) and labels (N,) of one domain."""
        self.check_domain(name)
        images, labels = render_domain(name)
        return images.copy(), labels.copy()  # what the caller does to them is not seen by the next one


@cache  # drawing takes a second, and a sweep in one process asks for the same domains again and again
def render_domain(name: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images and labels of one domain, drawn once per process."""
    from dspreg.randomness import seed_for  # here, because it brings torch along

    if name == "handwritten":
        return handwritten()
    draw = {"outline": draw_outline, "print": draw_print, "sign": draw_sign}[name]
    labels = np.arange(10 * PER_CLASS, dtype=np.int64) % 10
    images = [draw(int(y), np.random.default_rng(seed_for(Digits.name, name, i))) for i, y in enumerate(labels)]
    return (255 * np.clip(images, 0, 1)).round().astype(np.uint8), labels


def handwritten() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """scikit-learn's digits: light strokes on a dark ground, enlarged smoothly."""
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.zeros((len(digits.images), SIDE, SIDE, 3), np.uint8)
    for image, strokes in zip(images, digits.images, strict=True):
        ink = Image.fromarray((strokes * (255 / 16)).astype(np.uint8))
        # 24 and a margin of 2, because the original digits touch the frame.
        image[2:-2, 2:-2] = np.asarray(ink.resize((24, 24), Image.Resampling.BICUBIC))[..., None]
    return images, digits.target.astype(np.int64)


def draw_outline(digit: int, rng: np.random.Generator) -> Pixels:
    """Only the contour, on a ground with grain and slow changes of colour."""
    from PIL import Image

    ink = _ink(_contour(digit, str(rng.choice(OUTLINE_FONTS))), rng, height=(18, 22), angle=8, shift=1.5)
    clouds = Image.fromarray(rng.integers(0, 256, (5, 5, 3), np.uint8)).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    ground = 0.5 + 0.4 * (np.asarray(clouds) / 255 - 0.5) + rng.normal(0, 0.06, (SIDE, SIDE, 1))
    return _paint(ink, np.full(3, rng.choice((0.0, 1.0))), ground)


def draw_print(digit: int, rng: np.random.Generator) -> Pixels:
    """Dark ink on light paper, a little askew and out of focus."""
    ink = _ink(_glyph(digit, str(rng.choice(PRINT_FONTS))), rng, height=(14, 22), angle=8, shift=2, blur=(1, 5))
    paper = rng.uniform(0.85, 1) - rng.uniform(0, 0.1, 3) + rng.normal(0, 0.02, (SIDE, SIDE, 1))
    return _paint(ink, rng.uniform(0, 0.25, 3), paper)


def draw_sign(digit: int, rng: np.random.Generator) -> Pixels:
    """One strong colour on another, the dark one or the light one in front."""
    ink = _ink(_glyph(digit, str(rng.choice(SIGN_FONTS))), rng, height=(14, 24), angle=20, shift=2)
    front, back = _colour(rng), _colour(rng)
    while abs((front - back) @ LUMINANCE) < 0.4:  # red on green of equal brightness can hardly be read
        front, back = _colour(rng), _colour(rng)
    return _paint(ink, front, back)


def _paint(ink: Pixels, front: Pixels, back: Pixels) -> Pixels:
    return ink[..., None] * front + (1 - ink[..., None]) * back


def _colour(rng: np.random.Generator) -> Pixels:
    return np.array(colorsys.hsv_to_rgb(rng.uniform(), rng.uniform(0.5, 1), rng.uniform(0.3, 1)))


def _ink(
    glyph: Image, rng: np.random.Generator, *, height: Range, angle: float, shift: float, blur: Range = (0, 0)
) -> Pixels:
    """How much of each pixel (28, 28) the glyph covers, after a random size, turn, shift and blur.

    Args:
        glyph: From `_glyph` or `_contour`.
        rng: Source of all four.
        height: Smallest and largest height in pixels.
        angle: Largest turn, in degrees.
        shift: Largest shift, in pixels.
        blur: Smallest and largest radius, in canvas pixels.
    """
    from PIL import Image, ImageFilter

    scale = TALL / (CANVAS / SIDE) / rng.uniform(*height)
    turn = np.deg2rad(rng.uniform(-angle, angle))
    inverse = scale * np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    # Pillow asks where in the glyph each point of the result comes from.
    origin = CANVAS / 2 - inverse @ (CANVAS / 2 + rng.uniform(-shift, shift, 2) * (CANVAS / SIDE))
    affine = (*inverse[0], origin[0], *inverse[1], origin[1])
    moved = glyph.transform(glyph.size, Image.Transform.AFFINE, affine, Image.Resampling.BILINEAR)
    soft = moved.filter(ImageFilter.GaussianBlur(rng.uniform(*blur)))
    return np.asarray(soft.resize((SIDE, SIDE), Image.Resampling.BOX)) / 255


@cache
def _glyph(digit: int, font: str, stroke: int = 0) -> Image:
    """A white digit in the middle of a black canvas, its outline pushed out by `stroke` pixels."""
    import matplotlib
    from PIL import Image, ImageDraw, ImageFont

    file = Path(matplotlib.get_data_path(), "fonts", "ttf", f"{font}.ttf")
    _, top, _, bottom = ImageFont.truetype(file, 100).getbbox("8")
    face = ImageFont.truetype(file, 100 * TALL / (bottom - top))
    left, top, right, bottom = face.getbbox(str(digit))
    image = Image.new("L", (CANVAS, CANVAS))
    middle = (CANVAS - left - right) / 2, (CANVAS - top - bottom) / 2
    ImageDraw.Draw(image).text(middle, str(digit), fill=255, font=face, stroke_width=stroke)
    return image


@cache
def _contour(digit: int, font: str) -> Image:
    from PIL import ImageChops

    return ImageChops.subtract(_glyph(digit, font, stroke=5), _glyph(digit, font, stroke=1))
