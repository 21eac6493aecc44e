"""DICOM: stored values to the modality's, those through a window to grey. By pydicom, an extra."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from dspreg.config.reading import Reading, parse_window
from dspreg.data.bands import Picture, picture_of
from dspreg.data.convert import Touched, UnfitImage, linear_levels, percentiles, shrunk
from dspreg.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# What pydicom hands to a decoder: uncompressed, RLE, and JPEG kinds. Deflated files are inflated without a bound.
SYNTAXES = {
    "1.2.840.10008.1.2", "1.2.840.10008.1.2.1", "1.2.840.10008.1.2.2", "1.2.840.10008.1.2.5",
    "1.2.840.10008.1.2.4.50", "1.2.840.10008.1.2.4.51", "1.2.840.10008.1.2.4.57", "1.2.840.10008.1.2.4.70",
    "1.2.840.10008.1.2.4.80", "1.2.840.10008.1.2.4.81", "1.2.840.10008.1.2.4.90", "1.2.840.10008.1.2.4.91",
}  # fmt: skip
LONG = {b"OB", b"OD", b"OF", b"OL", b"OV", b"OW", b"SQ", b"SV", b"UC", b"UN", b"UR", b"UT", b"UV"}  # with long lengths
GREY, COLOUR = ("MONOCHROME1", "MONOCHROME2"), ("RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT")


def is_dicom(content: bytes, reading: Reading) -> bool:
    """Whether it is a DICOM file, and read."""
    return content[128:132] == b"DICM" and reading != Reading()


def dicom_size(content: bytes) -> tuple[int, int]:
    """Width and height that it claims to have."""
    found = _dataset(content)
    return int(found.Columns), int(found.Rows)


def decode_dicom(content: bytes, reading: Reading, most: int, touched: Touched | None = None) -> Picture:
    """The first frame.

    Args:
        content: Of the file.
        reading: Its window counts, its channels, and whether the image is shrunk.
        most: Pixels at most.
        touched: As in `decode_bytes`.
    """
    import numpy as np

    found = _dataset(content)
    from pydicom.pixels import apply_modality_lut, pixel_array

    width, height = int(found.Columns), int(found.Rows)
    samples, kind = int(found.get("SamplesPerPixel", 1)), str(found.PhotometricInterpretation)
    if not 0 < width * height * samples <= most:
        raise UnfitImage(f"{width:,} × {height:,} pixels of {samples} values are more than {most:,}")
    if kind not in GREY + COLOUR:
        raise UnfitImage(f"the photometric interpretation {kind} is not read; {', '.join(GREY + COLOUR)} are")
    if reading.channels not in (1, 3):
        raise UnfitImage(f"it has {samples} channel{'s' * (samples > 1)}; wanted {reading.channels}")
    if touched is not None and int(found.get("NumberOfFrames", 1) or 1) > 1:
        touched.add("frames")
    stored = pixel_array(found, index=0)
    if kind in COLOUR:
        return _of_colours(stored, reading, touched)
    if reading.window == "none":
        raise UnfitImage("a DICOM image, for which no --window to 8 bits is chosen")
    if touched is not None:
        touched.add("windowed")
    values = np.asarray(apply_modality_lut(stored, found), np.float64)
    grey = _grey(values, found, reading.window)
    if kind == "MONOCHROME1":  # the smallest value is white
        grey = 255 - grey
    return shrunk(picture_of(np.stack([grey] * reading.channels)), reading.shrink, touched)


def _of_colours(stored: NDArray[Any], reading: Reading, touched: Touched | None) -> Picture:
    import numpy as np

    if stored.dtype != np.uint8:
        raise UnfitImage(f"colours of {8 * stored.dtype.itemsize} bits are not read")
    made = picture_of(stored.transpose(2, 0, 1))
    return shrunk(made if reading.channels == 3 else made.convert("L"), reading.shrink, touched)  # type: ignore[union-attr]


def _grey(values: NDArray[np.float64], found: Any, window: str) -> NDArray[np.uint8]:
    import numpy as np

    ends = parse_window(window)
    if ends is None and window == "auto" and (named := _window_of(found)) is not None:
        centre, width, function = named
        if function == "SIGMOID":
            return np.rint(255 / (1 + np.exp(-4 * (values - centre) / width))).astype(np.uint8)
        # as in part 3, C.11.2.1.2: the centre lies between two whole numbers, unless the function is exact
        half, centre = (width / 2, centre) if function == "LINEAR_EXACT" else ((width - 1) / 2, centre - 0.5)
        if not half:  # a threshold
            return ((values > centre) * 255).astype(np.uint8)
        ends = centre - half, centre + half
    return linear_levels(values, *(ends or percentiles(values)))


def _window_of(found: Any) -> tuple[float, float, str] | None:
    """Centre, width and function of the first window that the file names."""
    centre, width = found.get("WindowCenter"), found.get("WindowWidth")
    if centre in (None, "") or width in (None, ""):
        return None
    first = [float(each[0]) if hasattr(each, "__len__") and not isinstance(each, str) else float(each)
             for each in (centre, width)]  # fmt: skip
    return (first[0], first[1], str(found.get("VOILUTFunction", "LINEAR"))) if first[1] > 0 else None


def _dataset(content: bytes) -> Any:
    try:
        import pydicom
    except ImportError as missing:
        raise ConfigError("reading DICOM files needs pydicom: pip install 'dspreg[dicom]'") from missing
    named = _transfer_syntaxes(content)  # before pydicom reads on: it inflates a deflated file without a bound
    if len(named) != 1 or named[0] not in SYNTAXES:
        raise UnfitImage(f"the DICOM transfer syntax {', '.join(named) or '(none)'} is not read; write it uncompressed")
    return pydicom.dcmread(io.BytesIO(content))


def _transfer_syntaxes(content: bytes) -> list[str]:
    """All that the file's head names, which should be one."""
    found, at = [], 132
    while content[at : at + 2] == b"\2\0" and at + 12 <= len(content):  # group 2, always explicit and little-endian
        long = content[at + 4 : at + 6] in LONG
        start = at + (12 if long else 8)
        length = int.from_bytes(content[at + 8 : start] if long else content[at + 6 : start], "little")
        if content[at + 2 : at + 4] == b"\x10\0":
            found.append(content[start : start + length][:64].rstrip(b"\0 ").decode("ascii", "replace"))
        at = start + length
    return found
