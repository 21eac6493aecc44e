"""From a file to pixels, strictly: the whole image, or a sentence that says why not.

Nothing is repaired. Half a JPEG filled up with grey is another image, and training on it is another experiment.
How it is read is a `Reading`: DomainBed's takes the pixels that the file stores, as RGB.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import threading
import warnings
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from dspreg.config.reading import DOMAINBED_READING, Reading
from dspreg.data.bands import Bands, Picture
from dspreg.data.convert import (
    SAMPLES,
    Touched,
    UnfitImage,
    convert,
    fit_channels,
    is_deep,
    is_transparent,
    orientation_of,
    shrunk,
    turned,
)
from dspreg.data.dicom import decode_dicom, dicom_size, is_dicom
from dspreg.data.tiff import count_channels, is_tiff, read_planes
from dspreg.errors import ConfigError, DataError, ResourceError, missing_resource

if TYPE_CHECKING:
    from PIL.Image import Image

# Pillow's other decoders are many, seldom used, and where its holes are found.
FIRST_FORMATS = ("JPEG", "PNG", "WEBP", "BMP")  # of benchmarks, and of runs that were begun when there were no others
FORMATS = (*FIRST_FORMATS, "TIFF", "GIF", "AVIF", "HEIF")
MAX_PIXELS = 64_000_000  # of all channels that are wanted together
MAX_BYTES = 5 * MAX_PIXELS  # no image of so many pixels needs more, and a huge file must not fill the memory
KEPT_BLOCKS = 8  # pieces of memory, each of one image and at most 16 MB

# Warning filters belong to the process, not to the thread: one image at a time is opened. Decoding is not locked.
_opening = threading.Lock()


def _new_lock() -> None:
    global _opening
    _opening = threading.Lock()


if hasattr(os, "register_at_fork"):  # another thread may have held the lock in that moment
    os.register_at_fork(after_in_child=_new_lock)


@cache
def reuse_memory() -> None:
    """Let Pillow keep the memory of images that are gone for the next ones.

    Otherwise the system hands out every page of every image anew, which takes longer than cutting or mirroring it.
    """
    from PIL import Image

    if "PILLOW_BLOCKS_MAX" not in os.environ:  # which Pillow itself has obeyed
        Image.core.set_blocks_max(KEPT_BLOCKS)  # type: ignore[attr-defined]


class BadImage(DataError):
    """A file is not a usable image. `reason` says why, without the path."""

    reason = ""  # not an argument: a DataLoader re-raises an error of its worker from the message alone

    @classmethod
    def of(cls, path: Path | str, reason: str) -> BadImage:
        error = cls(f"{path} is not a usable image: {reason}. Replace it by an intact copy, or remove it.")
        error.reason = reason
        return error


def decode_image(path: Path | str, reading: Reading = DOMAINBED_READING) -> Picture:
    """All pixels of an image file, read as DomainBed does unless something else is said."""
    return decode_bytes(contents(path), path, reading)


def contents(path: Path | str) -> bytes:
    """The bytes of a regular file. Anything else, such as a pipe, is refused without waiting for it."""
    return stamped_contents(path)[0]


def stamped_contents(path: Path | str) -> tuple[bytes, int]:
    """The same, and a number that is another one once the file was written to or replaced."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise BadImage.of(path, _kind(os.stat(path).st_mode))
        # A pipe put in its place since then still doesn't block.
        with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)), "rb") as file:
            at = os.fstat(file.fileno())
            if at.st_size > MAX_BYTES:
                raise BadImage.of(path, f"the file has {at.st_size:,} bytes, more than the {MAX_BYTES:,} that are read")
            stamp = hash((at.st_dev, at.st_ino, at.st_size, at.st_mtime_ns, at.st_ctime_ns))
            return file.read(MAX_BYTES), stamp
    except OSError as error:
        if missing := missing_resource(error):  # of the machine's: the image may be sound
            raise ResourceError(f"{path} can't be read: {missing}") from error
        raise BadImage.of(path, _why_unreadable(path, error)) from None


def image_size(path: Path | str, reading: Reading = DOMAINBED_READING) -> tuple[int, int]:
    """Width and height that an image file claims to have, without decoding it."""
    content = contents(path)
    try:
        if is_dicom(content, reading):
            return dicom_size(content)
        return _open(content, reading).size
    except ConfigError:
        raise
    except Exception as error:
        raise BadImage.of(path, _why_undecodable(content, error, reading)) from None


def decode_bytes(
    content: bytes, path: Path | str, reading: Reading = DOMAINBED_READING, touched: Touched | None = None
) -> Picture:
    """All pixels of an image in memory.

    Args:
        content: Of the file.
        path: For the message.
        reading: How it is read.
        touched: Gets the names of what was done to it, or what there was to be done where the reading leaves it.
    """
    from PIL import Image, ImageFile, UnidentifiedImageError

    reuse_memory()
    ImageFile.LOAD_TRUNCATED_IMAGES = False  # some libraries switch it on, for the whole process
    try:
        if is_dicom(content, reading):
            return decode_dicom(content, reading, MAX_PIXELS, touched)
        if is_tiff(content) and reading.channels not in (1, 3) and (planes := read_planes(content, reading, touched)):
            return planes
        try:
            image = _open(content, reading)
        except UnidentifiedImageError:
            if reading != DOMAINBED_READING and is_tiff(content) and (stored := count_channels(content)) > 1:
                raise _other_channels(stored, reading) from None
            raise
        width, height = image.size
        if width * height > MAX_PIXELS:
            raise BadImage.of(path, f"{width:,} × {height:,} pixels are more than {MAX_PIXELS:,}")
        if reading == DOMAINBED_READING:
            return _as_domainbed(image, touched)
        return _as_read(image, reading, touched)
    except (BadImage, MemoryError, ConfigError):  # the size was looked at: want of memory says nothing about the file
        raise
    except UnfitImage as error:
        raise BadImage.of(path, str(error)) from None
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        raise BadImage.of(path, f"it claims more than {MAX_PIXELS:,} pixels") from None
    except Exception as error:  # hostile bytes make decoders raise nearly anything
        raise BadImage.of(path, _why_undecodable(content, error, reading)) from None


def _as_domainbed(image: Image, touched: Touched | None) -> Image:
    if is_deep(image.mode):
        raise UnfitImage(f"pixels of more than 8 bits (mode {image.mode}) would be clipped; convert it")
    turn = 1 if touched is None else orientation_of(image)
    image.load()
    if touched is not None:
        touched.update(["turned"] * (turn != 1) + ["transparent"] * is_transparent(image))
    image.info.pop("transparency", None)  # only a warning comes of it: the colours are the same with or without
    return image.convert("RGB")  # a copy also if it is RGB, which lets go of the file's bytes


def _as_read(image: Image, reading: Reading, touched: Touched | None) -> Picture:
    is_a_tiff = image.format == "TIFF"
    if is_a_tiff:
        _require_all_channels(image, reading)
    frames = 1 if image.format == "MPO" else getattr(image, "n_frames", 1)  # a phone's JPEG may hold previews
    turn = orientation_of(image)  # before loading, which turns a TIFF
    if reading.shrink and image.format in ("JPEG", "MPO"):
        full = image.size
        image.draft(image.mode, (reading.shrink, reading.shrink))
        if touched is not None and image.size != full:
            touched.add("shrunk")
    image.load()
    if touched is not None:
        touched.update(["turned"] * (turn != 1) + ["frames"] * (frames > 1))
    if is_a_tiff and not reading.exif:
        image = turned(image, turn, back=True)
    if is_a_tiff and frames == reading.channels and frames not in (1, 3) and len(image.getbands()) == 1:
        return _of_pages(image, frames, reading, touched)
    return convert(image, reading, touched)


def _require_all_channels(image: Image, reading: Reading) -> None:
    """Of a TIFF with more channels than colours Pillow hands over the colours alone."""
    stored = image.tag_v2.get(SAMPLES, 1)  # type: ignore[attr-defined]
    if stored != len(image.getbands()):
        raise _other_channels(stored, reading)


def _other_channels(stored: int, reading: Reading) -> UnfitImage:
    wanted = "as RGB or grey" if reading.channels in (1, 3) else f"as {reading.channels} channels"
    return UnfitImage(f"it has {stored} channels, which can't be read {wanted}; --channels {stored} reads them")


def _of_pages(image: Image, pages: int, reading: Reading, touched: Touched | None) -> Picture:
    """The pages of a TIFF as channels, as microscopes write them."""
    grey = replace(reading, channels=1, shrink=0)
    width, height = image.size
    if width * height * pages > MAX_PIXELS:
        raise UnfitImage(f"{pages} pages of {width:,} × {height:,} pixels are more than {MAX_PIXELS:,}")
    bands = []
    for page in range(pages):
        if page:
            image.seek(page)
            if image.size != (width, height):
                raise UnfitImage(f"its pages, which are its channels, differ in size: the {page + 1}th is {image.size}")
            image.load()
        bands.append(fit_channels(image.copy(), grey, touched).split()[0])
    if touched is not None:
        touched.discard("frames")
    return shrunk(Bands(bands), reading.shrink, touched)


@cache
def _add_heif() -> None:
    """Let Pillow read HEIC, if its plugin is there."""
    if find_spec("pillow_heif") is not None:
        import pillow_heif

        pillow_heif.register_heif_opener()


def _open(content: bytes, reading: Reading) -> Image:
    from PIL import Image

    formats: tuple[str, ...] = FIRST_FORMATS
    if reading != DOMAINBED_READING:
        _add_heif()
        formats = tuple(name for name in FORMATS if name != "HEIF" or name in Image.OPEN)
    with _opening, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about metadata, which is not used
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        return Image.open(io.BytesIO(content), formats=formats)


def _kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "it is a folder, not a file"
    return "it is a pipe, not a file" if stat.S_ISFIFO(mode) else "it is a device or socket, not a file"


def _why_unreadable(path: Path | str, error: OSError) -> str:
    if error.errno == errno.ELOOP:
        return "a symbolic link that leads back to itself"
    if error.errno == errno.ENOENT:
        return f"a symbolic link to {os.readlink(path)!r}, which is missing" if os.path.islink(path) else "no such file"
    return f"the file can't be read ({error.strerror or error})"


STARTS = {
    b"version https://git-lfs": "a git-LFS pointer, not the image it stands for; run `git lfs pull`",
    b"<!doctype html": "an HTML page, probably an error message of the server it was downloaded from",
    b"<html": "an HTML page, probably an error message of the server it was downloaded from",
    b"<?xml": "an XML or SVG text",
    b"<svg": "an XML or SVG text",
    b"%pdf": "a PDF",
    b"pk\3\4": "a ZIP archive",
    b"\0\5\x16\7": "metadata of macOS (AppleDouble), not the image it belongs to",
}
LATER_STARTS = {  # of kinds that DomainBed's reading leaves alone
    b"gif8": "a GIF",
    b"ii*\0": "a TIFF",
    b"mm\0*": "a TIFF",
}
SIGNATURES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"RIFF", b"BM")
LATER_SIGNATURES = (b"GIF8", b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
HEIC = {b"ftyp" + brand for brand in (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")}


def _why_undecodable(content: bytes, error: Exception, reading: Reading) -> str:
    if not content:
        return "the file is empty"
    start = content.removeprefix(b"\xef\xbb\xbf").lstrip()[:40].lower()
    for known, what in STARTS.items():
        if start.startswith(known):
            return what
    if not any(content):
        return "the file holds nothing but zeros"
    signatures: tuple[bytes, ...] = SIGNATURES if reading == DOMAINBED_READING else SIGNATURES + LATER_SIGNATURES
    if reading == DOMAINBED_READING:
        for known, what in LATER_STARTS.items():
            if start.startswith(known):
                return f"{what}, whatever the extension says; convert it to PNG"
    elif content[4:12] in HEIC and find_spec("pillow_heif") is None:
        return "a HEIC, which needs a plugin of Pillow: pip install 'dspreg[heic]'"
    elif content[4:8] == b"ftyp" or is_dicom(content, reading):
        signatures = (content[:8],)
    if not content.startswith(signatures):
        others = " nor BMP" if reading == DOMAINBED_READING else ", BMP, TIFF, GIF, AVIF nor DICOM"
        return f"neither JPEG, PNG, WebP{others}; the file starts with {content[:12]!r}"
    said = str(error).split("<_io")[0].strip() or type(error).__name__  # Pillow names the buffer, which says nothing
    if isinstance(error, OSError) and "truncated" in said:
        return f"truncated: the file ends too early ({said})"
    return "truncated or damaged" + ("" if said.startswith("cannot identify") else f" ({said})")
