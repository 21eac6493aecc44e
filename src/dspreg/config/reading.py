"""How image files become pixels. Part of every run's record, and the same wherever its model is used."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dspreg.config.options import Form
from dspreg.io.importing import is_import_path

ALPHA = ("white", "black", "drop")
AUGMENTATIONS = ("domainbed", "none", "light", "trivial", "augmix")
COLOURS = ("domainbed", "trivial", "augmix")  # augmentations that change colours, and need red, green and blue
RESIZE = ("squash", "crop", "pad")
WINDOWS = ("auto", "percentile", "none")
FIRST_KINDS = (".jpg", ".jpeg", ".png", ".bmp", ".webp")
LATER_KINDS = (".tif", ".tiff", ".gif", ".avif", ".heic", ".heif", ".dcm", ".dicom")
FILES = ("exif", "alpha", "window", "channels", "shrink")  # options of a training that say how a file is read
READ = (*FILES, "resize")  # the same, and how it becomes a square
KEPT = 2  # times the size that the network sees: the shorter side of a shrunk image is at least that

# What all runs had before there were these options, and benchmarks have: DomainBed's pixels. And images of one's own.
DOMAINBED: dict[str, Any] = {"exif": False, "alpha": "drop", "window": "none", "resize": "squash", "shrink": False}
OWN: dict[str, Any] = {"exif": True, "alpha": "white", "window": "auto", "resize": "squash", "shrink": True}


def parse_window(text: str) -> tuple[float, float] | None:
    """`"-1000:400"` → (-1000, 400); None of any other text."""
    low, colon, high = text.partition(":")
    try:
        ends = float(low), float(high)
    except ValueError:
        return None
    return ends if colon and all(map(math.isfinite, ends)) and ends[0] < ends[1] else None


WINDOW = Form(
    "|".join(("auto", "percentile", "MIN:MAX", "none")),
    "auto, percentile, MIN:MAX (two numbers, the first one smaller) or none",
    lambda text: text in WINDOWS or parse_window(text) is not None,
)
AUGMENT = Form(
    "|".join((*AUGMENTATIONS, "MODULE.FUNCTION")),
    f"{', '.join(AUGMENTATIONS)} or a function of yours, my_module.f",
    lambda text: text in AUGMENTATIONS or is_import_path(text),
)


@dataclass(frozen=True)
class Reading:
    """How a file is read. As it is made without arguments, pixels are DomainBed's.

    Attributes:
        exif: Whether an image is turned and mirrored as its EXIF orientation says.
        alpha: What is behind a transparent image, `"white"` or `"black"`; `"drop"` shows the colours that it hides.
        window: Which values of more than 8 bits become 0 … 255: `"MIN:MAX"`; `"percentile"`, from the 0.5th to the
            99.5th percentile of each image; `"auto"`, the window that a DICOM file names, else percentiles;
            `"none"` refuses such images.
        channels: 3 for RGB, 1 for grey, or as many as the files have.
        shrink: Shorter side in pixels that images are shrunk to where they are at least twice as large; 0: never.
    """

    exif: bool = False
    alpha: str = "drop"
    window: str = "none"
    channels: int = 3
    shrink: int = 0

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Reading:
        """From the options of a training, all filled in."""
        said = {name: settings[name] for name in FILES}
        return cls(**said | {"shrink": KEPT * settings["image_size"] if settings["shrink"] else 0})

    @property
    def kinds(self) -> tuple[str, ...]:
        """Extensions of the files in a folder that are images. DomainBed's reading leaves out those that came later."""
        return FIRST_KINDS if self == Reading() else FIRST_KINDS + LATER_KINDS

    @property
    def tag(self) -> str:
        """Of what is kept about files that are read so, such as their pixels; empty for DomainBed's."""
        return "" if self == Reading() else hashlib.sha256(repr(asdict(self)).encode()).hexdigest()[:12]


DOMAINBED_READING = Reading()
OWN_READING = Reading(OWN["exif"], OWN["alpha"], OWN["window"])  # where no size is known to shrink to
