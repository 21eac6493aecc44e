"""TIFF with any number of channels, which Pillow reads as colours or not at all.

Strips and tiles, together or channel by channel, of 8, 16 or 32 bits, whole numbers or floats, as they are or deflated.
"""

from __future__ import annotations

import io
import zlib
from typing import TYPE_CHECKING, Any

from dspreg.config.reading import Reading
from dspreg.data.bands import Picture, picture_of
from dspreg.data.convert import ORIENTATION, Touched, UnfitImage, levels, shrunk, turned

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

STARTS = (b"II*\0", b"MM\0*")
WIDTH, HEIGHT, BITS, COMPRESSION, SAMPLES, ROWS_PER_STRIP, PLANAR, PREDICTOR, FORMAT = (
    256, 257, 258, 259, 277, 278, 284, 317, 339,
)  # fmt: skip
STRIP_OFFSETS, STRIP_COUNTS, TILE_WIDTH, TILE_HEIGHT, TILE_OFFSETS, TILE_COUNTS = 273, 279, 322, 323, 324, 325
PLAIN, DEFLATE = (1,), (8, 32946)
KINDS = {1: "u", 2: "i", 3: "f"}
MAX_SAMPLES = 64_000_000
MAX_PIECES = 1_000_000


def is_tiff(content: bytes) -> bool:
    return content.startswith(STARTS)


def count_channels(content: bytes) -> int:
    """That the first image of a TIFF has."""
    return int(_tags(content).get(SAMPLES, 1))


def read_planes(content: bytes, reading: Reading, touched: Touched | None = None) -> Picture | None:
    """The image where the file has exactly the wanted channels; None where it has others, for others to say so."""
    tags = _tags(content)
    if tags.get(SAMPLES, 1) != reading.channels:
        return None
    planes = _samples(content, tags)
    if planes.dtype != "u1":
        if reading.window == "none":
            raise UnfitImage(f"channels of {8 * planes.dtype.itemsize} bits, for which no --window to 8 bits is chosen")
        if touched is not None:
            touched.add("windowed")
    import numpy as np

    made = np.stack([p if p.dtype == np.uint8 else levels(p, reading.window) for p in planes])
    turn = tags.get(ORIENTATION, 1)
    if turn != 1 and touched is not None:
        touched.add("turned")
    picture = turned(picture_of(made), turn) if reading.exif else picture_of(made)
    return shrunk(picture, reading.shrink, touched)


def _tags(content: bytes) -> dict[int, Any]:
    """Of the first image, single numbers as numbers and others as tuples."""
    from PIL.TiffImagePlugin import ImageFileDirectory_v2

    file = io.BytesIO(content)
    directory = ImageFileDirectory_v2(file.read(8))
    file.seek(directory.next)
    directory.load(file)
    wanted = (WIDTH, HEIGHT, BITS, COMPRESSION, SAMPLES, ROWS_PER_STRIP, PLANAR, PREDICTOR, FORMAT, STRIP_OFFSETS,
              STRIP_COUNTS, TILE_WIDTH, TILE_HEIGHT, TILE_OFFSETS, TILE_COUNTS, ORIENTATION)  # fmt: skip
    return {tag: directory[tag] for tag in wanted if tag in directory}


def _samples(content: bytes, tags: dict[int, Any]) -> NDArray[Any]:
    """(channels, height, width), in numbers of the file's own kind."""
    import numpy as np

    width, height, channels = tags[WIDTH], tags[HEIGHT], tags[SAMPLES]
    if not 0 < width * height * channels <= MAX_SAMPLES:
        raise UnfitImage(f"{width:,} × {height:,} pixels in {channels} channels are more than {MAX_SAMPLES:,} values")
    dtype = _dtype(content, tags)
    apart = tags.get(PLANAR, 1) == 2
    tiled = TILE_OFFSETS in tags
    high = tags[TILE_HEIGHT] if tiled else min(tags.get(ROWS_PER_STRIP, height), height)
    wide = tags[TILE_WIDTH] if tiled else width
    offsets, counts = (
        found if isinstance(found, tuple) else (found,)
        for found in ((tags[TILE_OFFSETS], tags[TILE_COUNTS]) if tiled else (tags[STRIP_OFFSETS], tags[STRIP_COUNTS]))
    )
    across, down = -(-width // wide), -(-height // high)
    pieces = across * down * (channels if apart else 1)
    together = 1 if apart else channels
    padded = pieces * high * wide * together  # with what tiles have beyond the edges
    if len(offsets) != pieces or len(counts) != pieces or pieces > MAX_PIECES or padded > 4 * MAX_SAMPLES:
        raise UnfitImage(f"damaged: {len(offsets)} and {len(counts)} parts of it where there should be {pieces}")
    made = np.empty((channels, height, width), dtype.newbyteorder("="))
    for n, (offset, count) in enumerate(zip(offsets, counts, strict=True)):
        plane, rest = divmod(n, across * down)
        top, left = rest // across * high, rest % across * wide
        rows = high if tiled else min(high, height - top)
        piece = _piece(content[offset : offset + count], (rows, wide, together), dtype, tags)
        kept = piece[: height - top, : width - left]
        box = np.s_[top : top + kept.shape[0], left : left + kept.shape[1]]
        if apart:
            made[plane][box] = kept[..., 0]
        else:
            for channel in range(channels):
                made[channel][box] = kept[..., channel]
    return made


def _dtype(content: bytes, tags: dict[int, Any]) -> np.dtype[Any]:
    import numpy as np

    bits, kind = _same(tags.get(BITS, 1), "bits"), _same(tags.get(FORMAT, 1), "kinds of numbers")
    if bits not in (8, 16, 32) or kind not in KINDS or (kind == 3 and bits != 32):
        raise UnfitImage(f"channels of {bits} bits (kind {kind}) are not read; 8, 16 and 32 bits are")
    return np.dtype(("<" if content[:2] == b"II" else ">") + KINDS[kind] + str(bits // 8))


def _same(value: Any, what: str) -> int:
    values = set(value) if isinstance(value, tuple) else {value}
    if len(values) != 1 or type(found := values.pop()) is not int:
        raise UnfitImage(f"channels of different {what} are not read")
    return found


def _piece(content: bytes, shape: tuple[int, int, int], dtype: np.dtype[Any], tags: dict[int, Any]) -> NDArray[Any]:
    import numpy as np

    size = int(np.prod(shape)) * dtype.itemsize
    compression, predictor = tags.get(COMPRESSION, 1), tags.get(PREDICTOR, 1)
    if compression in DEFLATE:
        content = zlib.decompressobj().decompress(content, size)
    elif compression not in PLAIN:
        raise UnfitImage(f"compression {compression} of so many channels is not read; write it deflated or plain")
    if len(content) < size:
        raise UnfitImage(f"truncated: a part of it has {len(content):,} of {size:,} bytes")
    found = np.frombuffer(content[:size], dtype).reshape(shape)
    if predictor == 1:
        return found
    if predictor == 2 and dtype.kind != "f":
        return np.cumsum(found, axis=1, dtype=dtype.newbyteorder("="))  # differences along a row, modulo 2 ** bits
    raise UnfitImage(f"predictor {predictor} is not read; write it without one")
