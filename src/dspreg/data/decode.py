"""From a file to pixels, strictly: the whole image in RGB, or a sentence that says why not.

Nothing is repaired. Half a JPEG filled up with grey is another image, and training on it is another experiment.
EXIF rotation is left alone, as in DomainBed: the pixels are those the file stores.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import threading
import warnings
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from dspreg.errors import DataError, ResourceError, missing_resource

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("JPEG", "PNG", "WEBP", "BMP")  # Pillow's other decoders are many, seldom used, and where its holes are found
MAX_PIXELS = 64_000_000
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


def decode_image(path: Path | str) -> Image:
    """All pixels of an image file, as RGB."""
    return decode_bytes(contents(path), path)


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


def image_size(path: Path | str) -> tuple[int, int]:
    """Width and height that an image file claims to have, without decoding it."""
    content = contents(path)
    try:
        return _open(content).size
    except Exception as error:
        raise BadImage.of(path, _why_undecodable(content, error)) from None


def decode_bytes(content: bytes, path: Path | str) -> Image:
    """All pixels of an image in memory, as RGB. `path` is for the message."""
    from PIL import Image, ImageFile

    reuse_memory()
    ImageFile.LOAD_TRUNCATED_IMAGES = False  # some libraries switch it on, for the whole process
    try:
        image = _open(content)
        width, height = image.size
        if width * height > MAX_PIXELS:
            raise BadImage.of(path, f"{width:,} × {height:,} pixels are more than {MAX_PIXELS:,}")
        if image.mode.startswith(("I", "F")):
            raise BadImage.of(path, f"pixels of more than 8 bits (mode {image.mode}) would be clipped; convert it")
        image.load()
        image.info.pop("transparency", None)  # only a warning comes of it: the colours are the same with or without
        return image.convert("RGB")  # a copy also if it is RGB, which lets go of the file's bytes
    except (BadImage, MemoryError):  # the size was looked at: want of memory says nothing about the file
        raise
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        raise BadImage.of(path, f"it claims more than {MAX_PIXELS:,} pixels") from None
    except Exception as error:  # hostile bytes make decoders raise nearly anything
        raise BadImage.of(path, _why_undecodable(content, error)) from None


def _open(content: bytes) -> Image:
    from PIL import Image

    with _opening, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about metadata, which is not used
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        return Image.open(io.BytesIO(content), formats=FORMATS)


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
    b"gif8": "a GIF, whatever the extension says; convert it to PNG",
    b"ii*\0": "a TIFF, whatever the extension says; convert it to PNG",
    b"mm\0*": "a TIFF, whatever the extension says; convert it to PNG",
    b"%pdf": "a PDF",
    b"pk\3\4": "a ZIP archive",
    b"\0\5\x16\7": "metadata of macOS (AppleDouble), not the image it belongs to",
}
SIGNATURES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"RIFF", b"BM")


def _why_undecodable(content: bytes, error: Exception) -> str:
    if not content:
        return "the file is empty"
    start = content.removeprefix(b"\xef\xbb\xbf").lstrip()[:40].lower()
    for known, what in STARTS.items():
        if start.startswith(known):
            return what
    if not any(content):
        return "the file holds nothing but zeros"
    if not content.startswith(SIGNATURES):
        return f"neither JPEG, PNG, WebP nor BMP; the file starts with {content[:12]!r}"
    said = str(error).split("<_io")[0].strip() or type(error).__name__  # Pillow names the buffer, which says nothing
    if isinstance(error, OSError) and "truncated" in said:
        return f"truncated: the file ends too early ({said})"
    return "truncated or damaged" + ("" if said.startswith("cannot identify") else f" ({said})")
