"""From what a decoder found to channels of 8 bits: orientation, transparency, levels, channels, resolution.

Used for files, and for PIL images and tensors that a data set of one's own, or a caller of a model, hands over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dspreg.config.reading import Reading, parse_window
from dspreg.data.bands import Bands, Picture, picture_of
from dspreg.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image

PERCENTILES = (0.5, 99.5)
ROWS = 256  # of an image, whose levels are computed at a time, so that large ones take little memory
ORIENTATION = 274  # the tag of EXIF and TIFF
SAMPLES = 277  # the tag of TIFF that says how many channels there are
DEEP = "a 16-bit or float image"

Touched = set[str]  # names of what was done to an image: turned, transparent, windowed, shrunk, frames


class UnfitImage(DataError):
    """An image that this reading can't make pixels of. The message says why, without the path."""


def is_deep(mode: str) -> bool:
    """Whether pixels of this mode have more than 8 bits."""
    return mode.startswith(("I", "F"))


def convert(image: Image, reading: Reading, touched: Touched | None = None) -> Picture:
    """All that a reading says, of an image whose pixels are loaded."""
    made = fit_channels(image, reading, touched)
    if reading.exif and (turn := orientation_of(image)) != 1:
        made = turned(made, turn)
    return shrunk(made, reading.shrink, touched)


def fit_channels(image: Image, reading: Reading, touched: Touched | None = None) -> Picture:
    """The channels that are wanted, of 8 bits each, on a ground."""
    channels = reading.channels
    bands = len(image.getbands())
    if is_deep(image.mode):
        import numpy as np

        if reading.window == "none":
            raise UnfitImage(
                f"{DEEP} (mode {image.mode}), of which no window to 8 bits is chosen; --window percentile chooses one"
            )
        if channels not in (1, 3):
            raise UnfitImage(f"it has 1 channel; wanted {channels}")
        if touched is not None:
            touched.add("windowed")
        grey = levels(np.asarray(image), reading.window)
        return picture_of(np.stack([grey] * channels))
    if channels not in (1, 3):
        if bands != channels:
            raise UnfitImage(f"it has {bands} channel{'s' * (bands > 1)} (mode {image.mode}); wanted {channels}")
        return Bands(image.split())
    if touched is not None and is_transparent(image):
        touched.add("transparent")
    if reading.alpha != "drop" and has_alpha(image):
        image = flatten(image, reading.alpha)
    else:
        image.info.pop("transparency", None)  # only a warning comes of it: the colours are the same with or without
    made = image.convert("RGB" if channels == 3 else "L")
    made.info = {}  # what was done must not be done again
    return made


def has_alpha(image: Image) -> bool:
    return image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info


def is_transparent(image: Image) -> bool:
    """Whether it lets anything through."""
    if not has_alpha(image):
        return False
    least, _ = with_alpha(image).getchannel("A").getextrema()
    return least != 255


def with_alpha(image: Image) -> Image:
    if image.mode == "La":
        image = image.convert("LA")
    return image if image.mode == "RGBA" else image.convert("RGBA")


def flatten(image: Image, ground: str) -> Image:
    """In front of a ground, white or black."""
    from PIL import Image as Pillow

    front = with_alpha(image)
    return Pillow.alpha_composite(Pillow.new("RGBA", front.size, ground), front)


def orientation_of(image: Image) -> int:
    """1 … 8 as in EXIF; 1, upright, where nothing is said that can be read."""
    try:
        found = image.getexif().get(ORIENTATION, 1)
    except Exception:  # damaged metadata raise nearly anything, and the pixels are sound without
        return 1
    return found if type(found) is int and 1 <= found <= 8 else 1


def turned(picture: Any, orientation: int, *, back: bool = False) -> Any:
    """Upright, of an image stored with this orientation; or `back` again."""
    from PIL.Image import Transpose

    ways = {
        2: Transpose.FLIP_LEFT_RIGHT, 3: Transpose.ROTATE_180, 4: Transpose.FLIP_TOP_BOTTOM, 5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270, 7: Transpose.TRANSVERSE, 8: Transpose.ROTATE_90,
    }  # fmt: skip
    if back:
        orientation = {6: 8, 8: 6}.get(orientation, orientation)
    return picture.transpose(ways[orientation]) if orientation in ways else picture


def shrunk(picture: Picture, least: int, touched: Touched | None = None) -> Picture:
    """By a whole factor, so that the shorter side is at least `least`; as it is where that is 0."""
    factor = min(picture.size) // least if least else 1
    if factor < 2:
        return picture
    if touched is not None:
        touched.add("shrunk")
    return picture.reduce(factor)


def levels(values: NDArray[Any], window: str) -> NDArray[np.uint8]:
    """Values of any kind (height, width) to 0 … 255: linear between the ends of the window, and clipped outside."""
    return linear_levels(values, *(parse_window(window) or percentiles(values)))


def percentiles(values: NDArray[Any]) -> tuple[float, float]:
    """The 0.5th and the 99.5th; of an image that has hardly anything between them, its smallest and largest value."""
    import numpy as np

    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise UnfitImage("it has pixels that are not finite (NaN or infinity)")
    low, high = (float(np.percentile(values, each)) for each in PERCENTILES)
    return (low, high) if low < high else (float(values.min()), float(values.max()))


def linear_levels(values: NDArray[Any], low: float, high: float) -> NDArray[np.uint8]:
    import numpy as np

    made = np.zeros(values.shape, np.uint8)
    if not low < high:  # all of one value
        return made
    for start in range(0, len(values), ROWS):
        rows = values[start : start + ROWS].astype(np.float64)
        if not np.isfinite(rows).all():
            raise UnfitImage("it has pixels that are not finite (NaN or infinity)")
        made[start : start + ROWS] = np.rint(((rows - low) / (high - low)).clip(0, 1) * 255)
    return made


def picture_from(value: Any, reading: Reading) -> Picture:
    """What a data set of one's own, or a caller of a model, hands over: a PIL image, or a tensor of pixels.

    A tensor or array (channels, height, width), or (height, width), of uint8, or of floats from 0 to 1, which become
    the nearest of 256 levels.

    Raises:
        DataError: It is something else, or has other channels.
    """
    from PIL.Image import Image as PillowImage

    if isinstance(value, Bands):
        made: Picture = value
    elif isinstance(value, PillowImage):
        if value.mode == ("RGB" if reading.channels == 3 else "L" if reading.channels == 1 else "") and not value.info:
            made = value
        else:
            value.load()
            made = convert(value, reading)
    else:
        made = picture_of(pixels_of(value))
    if (found := len(made.split())) == reading.channels:
        return made
    if found == 1 and reading.channels == 3:
        return made.convert("RGB")  # type: ignore[union-attr]
    raise DataError(
        f"an image has {found} channels where {reading.channels} are wanted. Give --channels {found}, or let the data "
        f"set say so: channels = {found}"
    )


def pixels_of(value: Any) -> NDArray[np.uint8]:
    """(channels, height, width) of a tensor or array of a data set of one's own; a DataError if it is none."""
    import numpy as np

    try:
        found = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    except Exception as error:
        raise DataError(f"{_wanted(type(value).__name__)} ({error})") from None
    if found.ndim == 2:
        found = found[None]
    shape = f"a {type(value).__name__} of {found.dtype} {tuple(found.shape)}"
    if found.ndim != 3 or 0 in found.shape:
        raise DataError(_wanted(shape))
    if found.shape[2] in (1, 3, 4) and found.shape[0] > 256:
        raise DataError(f"{_wanted(shape)}; channels come first")
    if found.dtype == np.uint8:
        return found
    if found.dtype.kind != "f":
        raise DataError(_wanted(shape))
    if not (found.min() >= 0 and found.max() <= 1):  # NaN, too
        raise DataError(f"{_wanted(shape)}; its values go from {found.min():g} to {found.max():g}")
    return np.rint(found.astype(np.float64) * 255).astype(np.uint8)


def _wanted(came: str) -> str:
    return f"an image is {came}; wanted a PIL image, or a tensor (channels, height, width) of uint8 or of floats 0 … 1"
