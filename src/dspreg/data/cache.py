"""Decoded images kept on disk or in memory, so that an image is decoded once and not once per epoch.

Originals are kept, before any transform, by the hash of the file; and images that were only resized, as evaluation sees
them every time. Nothing random is kept. Pixels are bitwise identical with and without a cache, and several runs and
data sets may share one. A missing or damaged entry is made again.
"""

from __future__ import annotations

import os
import shutil
import stat
import struct
import tempfile
import warnings
import zlib
from collections.abc import Collection
from contextlib import AbstractContextManager, suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dspreg.config.reading import DOMAINBED_READING, Reading
from dspreg.data.bands import Bands, picture_of, planes_of
from dspreg.errors import ConfigError, DataError, Notice, ResourceError, missing_resource
from dspreg.io.locks import waiting_for

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dspreg.data.bands import Picture

Kind = Literal["none", "disk", "ram"]
GIGABYTE = 10**9
DISK_LIMIT = 20 * GIGABYTE
SHARED_MEMORY = Path("/dev/shm")

HEADER = struct.Struct("<4sIIII")  # magic, decoder, width, height, CRC-32 of the rest
MAGIC = b"dspr"
PLANES = b"dspc"  # of an image that is not RGB: channel after channel
LEDGER = "used"  # the file that says how many bytes all entries have
RESIZED = b"dspz"  # the same of an image that was resized: all of red, then all of green, then all of blue


class Cache:
    """Decoded images in a folder: `<directory>/<aa>/<sha>.rgb`, a header and the raw bytes; resized, `<sha>.224.rgb`.

    Of files that are read otherwise than DomainBed reads them, the tag of the reading stands after `<sha>`.

    Reading takes no lock. Writing takes one, so that runs at the same time never exceed the limit together.

    Args:
        directory: Created if missing. Anyone with write permission there can change what you train on.
        limit: Bytes of all entries. At opening the oldest are dropped until they fit; later, when it is full, nothing
            more is added.
    """

    def __init__(self, directory: str | Path, limit: int) -> None:
        self.directory, self.limit = Path(directory), limit
        self._full = False
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.directory):
                pass
            self._make_room()
        except OSError as error:
            if missing := missing_resource(error):  # of the machine's, such as descriptors: nothing else will open
                raise ResourceError(f"the image cache {self.directory} can't be opened: {missing}") from error
            raise DataError(
                f"the image cache {self.directory} can't be written ({error.strerror or error}). Set DSPREG_CACHE to a "
                f"folder you may write, or train without a cache."
            ) from None

    def read(self, sha: str, reading: Reading = DOMAINBED_READING) -> Picture | None:
        """The image of a file by the SHA-256 of its bytes; None if it isn't there, is damaged or of another decoder."""
        from PIL import Image

        try:
            entry = self._place(sha, reading.tag).read_bytes()
            magic, by, width, height, crc = HEADER.unpack_from(entry)
        except (OSError, struct.error):
            return None
        pixels = memoryview(entry)[HEADER.size :]
        kind = MAGIC if reading.channels == 3 else PLANES
        sound = (magic, by, len(pixels)) == (kind, decoder(), reading.channels * width * height)
        if not sound or crc != _checksum(width, height, pixels):
            return None
        if kind == MAGIC:
            return Image.frombytes("RGB", (width, height), pixels)
        import numpy as np

        return picture_of(np.frombuffer(pixels, np.uint8).reshape(reading.channels, height, width))

    def write(self, sha: str, image: Picture, reading: Reading = DOMAINBED_READING) -> None:
        """Keep an image. If that fails, training continues without."""
        if self._full:
            return
        width, height = image.size
        place = self._place(sha, reading.tag)
        if reading.channels == 3 and not isinstance(image, Bands):
            self._keep(place, MAGIC, width, height, image.tobytes())
        else:
            self._keep(place, PLANES, width, height, planes_of(image).tobytes())

    def contains(self, sha: str, reading: Reading = DOMAINBED_READING) -> bool:
        """Whether there is an entry of this file, sound or not."""
        return self._place(sha, reading.tag).exists()

    def read_resized(
        self, sha: str, out: NDArray[np.uint8], reading: Reading = DOMAINBED_READING, how: str = "squash"
    ) -> bool:
        """Write an image of the size of `out` (channels, height, width), contiguous, to it.

        Returns:
            False if there is no sound one, made square in this way.
        """
        _, height, width = out.shape
        into = out.reshape(-1).data
        try:
            with open(self._place(sha, reading.tag, width, how), "rb", buffering=0) as file:
                magic, by, *size, crc = HEADER.unpack(file.read(HEADER.size))
                sound = file.readinto(into) == len(into) and not file.read(1)
        except (OSError, struct.error):
            return False
        sound = sound and (magic, by, size) == (RESIZED, decoder(), [width, height])
        return sound and bool(crc == _checksum(width, height, into))

    def write_resized(
        self, sha: str, pixels: NDArray[np.uint8], reading: Reading = DOMAINBED_READING, how: str = "squash"
    ) -> None:
        """Keep what `read_resized` is to give. If that fails, training continues without."""
        if not self._full:
            _, height, width = pixels.shape
            self._keep(self._place(sha, reading.tag, width, how), RESIZED, width, height, pixels.tobytes())

    def _keep(self, place: Path, magic: bytes, width: int, height: int, pixels: bytes) -> None:
        entry = HEADER.pack(magic, decoder(), width, height, _checksum(width, height, pixels)) + pixels
        try:
            with self._locked():
                before = place.stat().st_size if place.exists() else 0
                used = self._used() + len(entry) - before
                if used > self.limit:
                    self._stop(f"is full ({self.limit:,} bytes)")
                    return
                self._ledger.write_text(str(used))  # first: a crash in between may count too much, never too little
                self._put(place, entry)
        except OSError as error:
            self._stop(f"can't be written ({error.strerror or error})")

    def _put(self, place: Path, entry: bytes) -> None:
        place.parent.mkdir(exist_ok=True)
        temporary = place.with_suffix(f".{os.getpid()}.tmp")  # nobody else writes: we hold the lock
        try:
            temporary.write_bytes(entry)
            os.replace(temporary, place)  # a reader sees the old entry or the new one, never half
        except OSError:
            temporary.unlink(missing_ok=True)
            raise

    def make_room(self, wanted: int, keep: Collection[str]) -> None:
        """Where these files (SHA-256), which take so many bytes, would not fit, drop the oldest entries of others."""
        with suppress(OSError):  # then it is full, which is told when it is
            if self._used() + wanted > self.limit:
                self._make_room(wanted, frozenset(keep))

    def _make_room(self, wanted: int = 0, keep: Collection[str] = ()) -> None:
        """Count the entries, dropping the oldest beyond the limit and what crashed writers left behind."""
        with self._locked():
            entries = []
            for path in self.directory.glob("??/*"):
                if path.suffix == ".tmp":
                    path.unlink(missing_ok=True)  # we hold the lock, so no process is writing it
                elif path.suffix == ".rgb":
                    at = path.stat()
                    entries.append((at.st_mtime_ns, at.st_size, path))
            used = sum(size for _, size, _ in entries)
            others = [entry for entry in entries if entry[2].name.partition(".")[0] not in keep]
            more = max(0, wanted - (used - sum(size for _, size, _ in others)))
            for _, size, path in sorted(others):
                if used + more <= self.limit:
                    break
                path.unlink(missing_ok=True)
                used -= size
            self._ledger.write_text(str(used))

    def _used(self) -> int:
        return kept_bytes(self.directory)

    @property
    def _ledger(self) -> Path:
        return self.directory / LEDGER

    def _place(self, sha: str, tag: str = "", size: int | None = None, how: str = "squash") -> Path:
        parts = [sha, tag, "" if how == "squash" else how, "" if size is None else str(size), "rgb"]
        return self.directory / sha[:2] / ".".join(filter(None, parts))

    def _locked(self) -> AbstractContextManager[None]:
        return waiting_for(self.directory / "lock")

    def _stop(self, why: str) -> None:
        self._full = True
        warnings.warn(
            f"the image cache {self.directory} {why}; further images are decoded each time", Notice, stacklevel=4
        )


def kept_bytes(directory: Path) -> int:
    """Of all entries of a cache."""
    with suppress(OSError, ValueError):
        return int((directory / LEDGER).read_text())
    return sum(path.stat().st_size for path in directory.glob("??/*.rgb"))


def _checksum(width: int, height: int, pixels: bytes | memoryview) -> int:
    return zlib.crc32(pixels, zlib.crc32(struct.pack("<II", width, height)))


@lru_cache(maxsize=1)
def decoder() -> int:
    """What makes pixels of a file: another Pillow or libjpeg may round otherwise, and a run records its own."""
    import PIL
    from PIL import features

    parts = [PIL.__version__, features.version_codec("jpg"), features.version_feature("libjpeg_turbo")]
    return zlib.crc32(" ".join(map(str, parts)).encode())


def cache_directory() -> Path:
    """Where decoded images are kept on disk: `$DSPREG_CACHE`, or a folder of this user's caches."""
    return Path(os.environ.get("DSPREG_CACHE") or Path.home() / ".cache" / "dspreg" / "images")


def open_cache(kind: Kind) -> Cache | None:
    """The cache of this user.

    Args:
        kind: `"none"`; `"disk"`, in `$DSPREG_CACHE` or `~/.cache/dspreg/images`, at most 20 GB; `"ram"`, in shared
            memory, at most half of what is free there, until the machine restarts.
    """
    if kind == "none":
        return None
    if kind == "disk":
        return Cache(cache_directory(), DISK_LIMIT)
    if kind == "ram":
        return _in_memory()
    raise ConfigError(f"unknown cache {kind!r}. Known: none, disk, ram.")


def _in_memory() -> Cache:
    if not SHARED_MEMORY.is_dir():
        raise DataError(f"a cache in memory needs {SHARED_MEMORY}, which this machine lacks. Use 'disk' instead.")
    directory = SHARED_MEMORY / f"dspreg-{os.getuid()}"
    try:
        with suppress(FileExistsError):
            directory.mkdir(mode=0o700)
        at = directory.lstat()
    except OSError as error:
        raise DataError(f"{directory} can't be made ({error.strerror}). Use 'disk' instead.") from None
    # Anybody may make folders there: one made by another user could hold other pixels than ours.
    if not stat.S_ISDIR(at.st_mode) or at.st_uid != os.getuid() or at.st_mode & 0o077:
        raise DataError(
            f"{directory} is not a folder that only you may use (owner {at.st_uid}, mode {at.st_mode & 0o777:o}). "
            f"Remove it, or use 'disk' instead."
        )
    own = sum(path.stat().st_size for path in directory.glob("??/*.rgb"))
    return Cache(directory, (shutil.disk_usage(directory).free + own) // 2)
