"""Four made sites, each with a camera of its own, and the inbox of a fifth: what `dspreg estimate` is for.

    python examples/several_sites.py photos inbox
    dspreg estimate folder:photos --out result --new folder:inbox --budget 10min --check

    python examples/several_sites.py photos inbox --objects pictures      # of pictures/class/image.jpg

The digits of scikit-learn, or pictures of your own, each at one site only. A site has its colours, blur, noise and
framing: A scans cleanly, B photographs by bad light, with noise, C is out of focus on yellow paper, D frames badly. The
inbox has no labels; those that are true are in `inbox.csv` beside it, for whoever wants to know afterwards.
"""

import argparse
import csv
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter, ImageOps
from sklearn.datasets import load_digits

SIDE = 32
OBJECTS = 96
SITES = {  # ink, paper, blur in pixels, noise, how far a digit is shifted, and by how much it is smaller
    "A": ((20, 20, 20), (245, 245, 245), 0.0, 4.0, 0, 1.0),
    "B": ((10, 15, 50), (120, 140, 190), 0.6, 24.0, 1, 1.0),
    "C": ((90, 50, 20), (235, 215, 140), 1.5, 8.0, 1, 0.9),
    "D": ((30, 80, 40), (200, 210, 205), 0.4, 10.0, 3, 0.8),
    "inbox": ((120, 30, 60), (215, 190, 200), 1.0, 16.0, 2, 0.9),
}


def photograph(digit: np.ndarray, site: str, random: np.random.Generator) -> Image.Image:
    """A digit (8, 8) of 0 … 16, as a site shows it."""
    ink, paper, blur, noise, shift, scale = SITES[site]
    side = round(24 * scale)
    drawn = Image.fromarray((digit * 15.9).astype(np.uint8)).resize((side, side), Image.Resampling.BICUBIC)
    mask = Image.new("L", (SIDE, SIDE))
    free = (SIDE - side) // 2
    mask.paste(drawn, tuple(free + int(random.integers(-shift, shift + 1)) for _ in range(2)))
    share = np.asarray(mask.filter(ImageFilter.GaussianBlur(blur)), float)[..., None] / 255
    pixels = share * np.array(ink) + (1 - share) * np.array(paper) + random.normal(0, noise, (SIDE, SIDE, 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def photograph_object(path: Path, site: str, random: np.random.Generator) -> Image.Image:
    """A picture, as a site shows it: its paper is the colour of the light."""
    _, paper, blur, noise, shift, scale = SITES[site]
    side, off = round(OBJECTS / scale), 3 * shift  # the smaller a digit, the more is cut off here: both frame badly
    with Image.open(path) as opened:
        picture = ImageOps.fit(opened.convert("RGB"), (side + 2 * off, side + 2 * off))
    left, top = (int(each) for each in random.integers(0, side + 2 * off - OBJECTS + 1, 2))
    seen = picture.crop((left, top, left + OBJECTS, top + OBJECTS)).filter(ImageFilter.GaussianBlur(1.5 * blur))
    pixels = np.asarray(seen, float) * np.array(paper) / 255 + random.normal(0, noise, (OBJECTS, OBJECTS, 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def things(objects: Path | None) -> list[tuple[str, Callable[[str, np.random.Generator], Image.Image]]]:
    """Of each thing its class, and what a site makes of it."""
    if objects is not None:
        return [(path.parent.name, partial(photograph_object, path)) for path in sorted(objects.glob("*/*.*"))]
    digits, labels = load_digits(return_X_y=True)
    return [(str(label), partial(photograph, digit.reshape(8, 8))) for digit, label in zip(digits, labels, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path, help="new folder for the sites: site/class/image.png")
    parser.add_argument("inbox", type=Path, nargs="?", help="new folder for images of a fifth site, without labels")
    parser.add_argument("--images", type=int, default=300, help="of each site (default: 300)")
    parser.add_argument("--sites", type=int, default=4, help="how many (default and most: 4)")
    parser.add_argument("--objects", type=Path, help="folder of class/image.jpg, instead of the digits")
    given = parser.parse_args()
    every, random = things(given.objects), np.random.default_rng(0)
    order = iter(random.permutation(len(every)))
    for site in [*list(SITES)[: min(given.sites, 4)], *(["inbox"] if given.inbox else [])]:
        truth = []
        for n, i in zip(range(given.images), order, strict=False):
            label, shown = every[i]
            path = given.inbox / f"{n:04d}.png" if site == "inbox" else given.photos / site / label / f"{n:04d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            shown(site, random).save(path)
            truth.append((path.name, label))
        if site == "inbox":
            with given.inbox.with_suffix(".csv").open("w", newline="") as file:
                csv.writer(file).writerows([("image", "digit"), *truth])


if __name__ == "__main__":
    main()
