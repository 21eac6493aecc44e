"""Unpack a stranger's tar or zip: regular files and folders into a new folder, and nothing anywhere else.

The standard library's own extraction strips, follows or renames where this module refuses. It reads entries one by one
and writes the files itself, by name and content alone: no modes, owners, times, links or devices. Names are checked
before anything is written, numbers and sizes while it is, and the folder gets its name when everything is there.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import shutil
import tarfile
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

from dspreg.download.transfer import SPARE, require_space
from dspreg.errors import CantWrite, ConfigError, IntegrityError
from dspreg.io.atomic_files import make_folder, open_regular_file, os_errors_as_cant_write
from dspreg.io.text import shorten

CHUNK = 2**20
HEADER = 2**20  # bytes that tar may have between two files
EXPANSION = 50  # images hardly shrink, and a list of annotations shrinks twentyfold; a bomb does a thousandfold
SMALL = 2**26  # bytes that any archive may unpack to
LONGEST = 200  # bytes of one part of a name
DEEPEST = 32  # parts of a name
DAMAGED = (
    tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, zlib.error, EOFError, UnicodeError, ValueError,
    OverflowError, NotImplementedError, RuntimeError, gzip.BadGzipFile,
)  # fmt: skip
OPENERS: dict[bytes, Callable[..., Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}
ZIP = (b"PK\3\4", b"PK\5\6")
HEADER_BYTES = 512  # of a file in a tar
SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".zip", ".whl")


@dataclass(frozen=True)
class Limits:
    """What an archive may hold: files and folders together, bytes of one file, bytes of all."""

    entries: int = 2_000_000
    file: int = 2**32
    total: int = 2**37


DEFAULT = Limits()


class Entry(NamedTuple):
    name: str
    is_folder: bool
    size: int  # as the archive says
    open: Callable[[], IO[bytes]]


class Refused(IntegrityError):
    """An archive that is damaged, or holds something that no data set has."""


def is_archive(path: Path) -> bool:
    """Whether a file is named like an archive."""
    return path.name.lower().endswith(SUFFIXES)


def begins_as_archive(path: Path) -> bool:
    """The same by the first bytes, for a file whose address says nothing."""
    with open(open_regular_file(path), "rb") as file:
        start = file.read(HEADER_BYTES)
    return start.startswith((*ZIP, *OPENERS)) or start[257:262] == b"ustar"


def unpack(archive: Path, folder: Path, limits: Limits = DEFAULT) -> None:
    """Write what an archive holds into a new folder, whole or not at all.

    Raises:
        Refused: It is damaged, or has links, devices, names that lead outside or that clash, or too much in it.
        CantWrite: The disk is full.
    """
    if os.path.lexists(folder):
        raise ConfigError(f"{folder} is there already; wanted a new folder")
    unfinished = folder.with_name(f"{folder.name}.unpacking")
    shutil.rmtree(unfinished, ignore_errors=True)  # of a run that was interrupted
    make_folder(unfinished)
    try:
        _write_entries(archive, unfinished, limits)
        with os_errors_as_cant_write(folder, 0):
            os.rename(unfinished, folder)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def _write_entries(archive: Path, folder: Path, limits: Limits) -> None:
    packed = os.stat(archive).st_size
    most = min(limits.total, max(EXPANSION * packed, SMALL))
    names = _Names(archive)
    count = total = 0
    try:
        with _entries(archive, limits, most) as entries:
            for entry in entries:
                count += 1
                if count > limits.entries:
                    raise Refused(f"{archive} holds more than {limits.entries:,} files and folders")
                parts = names.parts(entry.name, entry.is_folder)
                if not parts:
                    continue
                if entry.is_folder:
                    _make_inside(folder, parts)
                    continue
                if entry.size > limits.file or total + entry.size > most:
                    raise Refused(_too_large(archive, packed, most))
                _make_inside(folder, parts[:-1])
                written = _write(folder.joinpath(*parts), entry, archive, min(limits.file, most - total))
                total += written
    except DAMAGED as error:
        raise Refused(f"{archive} is damaged, or no archive: {shorten(error)}") from error
    except OSError as error:
        if isinstance(error, CantWrite):
            raise
        raise Refused(f"{archive} can't be read: {error.strerror or error}") from error


def _write(path: Path, entry: Entry, archive: Path, most: int) -> int:
    written = 0
    with os_errors_as_cant_write(path, 0):
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o644)
        except (FileExistsError, IsADirectoryError, NotADirectoryError):
            raise Refused(f"{archive} holds {shorten(entry.name)} twice, or a file where it has a folder") from None
    with open(handle, "wb") as out, entry.open() as content:
        while data := content.read(CHUNK):
            written += len(data)
            if written > min(most, entry.size):
                raise Refused(f"{archive}: {shorten(entry.name)} is longer than the archive says, or too long")
            with os_errors_as_cant_write(path, len(data)):
                out.write(data)
    if written != entry.size:
        raise Refused(f"{archive}: {shorten(entry.name)} has {written:,} bytes where {entry.size:,} are said")
    return written


def _make_inside(folder: Path, parts: tuple[str, ...]) -> None:
    """A folder below `folder`; the path is resolved, so that nothing can have led it elsewhere."""
    path = folder.joinpath(*parts)
    with os_errors_as_cant_write(path, 0):
        try:
            path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise Refused(f"{shorten('/'.join(parts))} is a folder where the archive has a file") from None
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise Refused(f"{shorten('/'.join(parts))} leads outside of the folder it is unpacked into")


class _Names:
    """What an archive's entries may be called; each of them once, on file systems that ignore case, too."""

    def __init__(self, archive: Path):
        self.archive = archive
        self.files: set[str] = set()
        self.folders: dict[str, str] = {}

    def parts(self, name: str, is_folder: bool) -> tuple[str, ...]:
        fault = self._fault(name)
        if fault:
            raise Refused(f"{self.archive}: {shorten(name)} {fault}")
        parts = tuple(part for part in name.split("/") if part not in ("", "."))
        if not parts and not is_folder:
            raise Refused(f"{self.archive}: {shorten(name)} is no name of a file")
        for depth in range(1, len(parts) + is_folder):
            self._add_folder("/".join(parts[:depth]), name)
        if not is_folder:
            key = _plain("/".join(parts))
            if key in self.files or key in self.folders:
                raise Refused(f"{self.archive} holds {shorten(name)} twice, or so on a disk that ignores case")
            self.files.add(key)
        return parts

    def _add_folder(self, path: str, name: str) -> None:
        key = _plain(path)
        if key in self.files or self.folders.setdefault(key, path) != path:
            raise Refused(f"{self.archive}: the folders of {shorten(name)} are there in another spelling, or as a file")

    def _fault(self, name: str) -> str | None:
        parts = name.split("/")
        if not all(c.isprintable() for c in name):
            return "has characters that can't be printed"
        if name.startswith("/") or "\\" in name or (len(name) > 1 and name[1] == ":"):
            return "is a path from the root of a disk, or Windows's"
        if ".." in parts:
            return "would lie outside of the folder it is unpacked into"
        if len(parts) > DEEPEST or any(len(part.encode()) > LONGEST for part in parts):
            return "is too long or too deep"
        if any(part != "." and part.rstrip(". ") != part for part in parts):
            return "ends in a dot or a blank, which some file systems leave out"
        return None


def _plain(path: str) -> str:
    return unicodedata.normalize("NFKC", path).casefold()


@contextmanager
def _entries(archive: Path, limits: Limits, most: int) -> Iterator[Iterator[Entry]]:
    with open(open_regular_file(archive, follow=True), "rb") as file:
        start = file.read(8)
        file.seek(0)
        if start.startswith(ZIP):
            with zipfile.ZipFile(file) as packed:
                yield _zip_entries(packed, archive, limits, most)
            return
        opener = next((opener for magic, opener in OPENERS.items() if start.startswith(magic)), None)
        with opener(file) if opener else file as stream:
            meter = _Meter(stream, archive)
            with tarfile.open(fileobj=meter, mode="r|") as tar:  # type: ignore[call-overload]
                yield _tar_entries(tar, meter)


def _zip_entries(packed: zipfile.ZipFile, archive: Path, limits: Limits, most: int) -> Iterator[Entry]:
    infos = packed.infolist()
    if len(infos) > limits.entries:
        raise Refused(f"{archive} holds more than {limits.entries:,} files and folders")
    total = sum(info.file_size for info in infos)
    if total > most:  # before anything is written
        raise Refused(_too_large(archive, os.stat(archive).st_size, most))
    require_space(archive.parent, total)
    for info in infos:
        kind = info.external_attr >> 28  # of Unix: 8 is a file, 4 a folder, 0 unknown
        if kind not in (0, 4, 8) or (kind == 4) > info.is_dir():
            raise Refused(f"{archive}: {shorten(info.filename)} is a link or a device")
        if info.flag_bits & 1:
            raise Refused(f"{archive}: {shorten(info.filename)} is encrypted")
        if info.orig_filename != info.filename:  # zipfile cuts names at NUL, and turns backslashes round
            raise Refused(f"{archive}: {shorten(info.orig_filename)} is no name of a file")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise Refused(f"{archive}: {shorten(info.filename)} is packed in a way that is not read")
        if info.is_dir() and info.file_size:
            raise Refused(f"{archive}: {shorten(info.filename)} is a folder with contents")
        yield Entry(info.filename.removesuffix("/"), info.is_dir(), info.file_size, lambda info=info: packed.open(info))  # type: ignore[misc]


class _Meter:
    """The stream that tarfile reads, with a limit: a header may claim gigabytes, which it would load at once."""

    def __init__(self, stream: IO[bytes], archive: Path):
        self.stream, self.archive, self.left = stream, archive, HEADER

    def allow(self, size: int) -> None:
        self.left = size + HEADER

    def read(self, size: int) -> bytes:
        data = self.stream.read(min(size, CHUNK) if size >= 0 else CHUNK)
        self.left -= len(data)
        if self.left < 0:
            raise Refused(f"{self.archive} has more than {HEADER:,} bytes between two files")
        return data


def _tar_entries(tar: tarfile.TarFile, meter: _Meter) -> Iterator[Entry]:
    while (entry := tar.next()) is not None:
        tar.members = []  # type: ignore[attr-defined]  # tarfile keeps every header, and none is needed again
        if not (entry.isreg() or entry.isdir()) or entry.issparse():
            raise Refused(f"{meter.archive}: {shorten(entry.name)} is a link or a device; wanted files and folders")
        if entry.isdir() and entry.size:
            raise Refused(f"{meter.archive}: {shorten(entry.name)} is a folder with contents")
        meter.allow(entry.size)
        yield Entry(entry.name, entry.isdir(), entry.size, lambda entry=entry: _content(tar, entry))  # type: ignore[misc]
    _read_to_the_end(tar, meter)


def _content(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> IO[bytes]:
    content = tar.extractfile(entry)
    assert content is not None  # of a plain file
    return content


def _read_to_the_end(tar: tarfile.TarFile, meter: _Meter) -> None:
    """Padding, and nothing else: tarfile takes a damaged header for the end, and a packer's checksum comes last."""
    assert tar.fileobj is not None
    meter.allow(2**30)
    while rest := tar.fileobj.read(CHUNK):
        if rest.strip(b"\0"):
            raise Refused(f"{meter.archive} goes on behind its end, or one of its headers is damaged")
    if isinstance(meter.stream, gzip.GzipFile | bz2.BZ2File | lzma.LZMAFile):
        with suppress(EOFError):
            meter.stream.read(1)


def _too_large(archive: Path, packed: int, most: int) -> str:
    return (
        f"{archive} has {packed:,} bytes and would unpack to more than {most:,}, and is not unpacked. If you know "
        "where it comes from, unpack it yourself and give the folder with --from"
    )


assert SPARE > CHUNK  # what is written between two looks at the disk fits into what stays free
