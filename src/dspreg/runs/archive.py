"""A store of runs as one file, `*.tar.xz`: packed, and opened for reading. Read without torch.

The same files give the same bytes: names are sorted, and times, owners and modes are left out. An archive holds the
results of the runs, but no leases, locks, checkpoints or half-written files.

Reading trusts nothing. Only plain files below the folder are written, in bounded number and size, and their metadata is
ignored. The folder is handed out only after xz has compared its checksum of all bytes.
"""

from __future__ import annotations

import lzma
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from dspreg.errors import ConfigError, DspregError, IntegrityError, InUse
from dspreg.io.atomic_files import UNFINISHED, make_folder, open_regular_file, os_errors_as_cant_write
from dspreg.runs.folder import KEPT_CHECKPOINT
from dspreg.runs.leases import list_leases
from dspreg.runs.store import RunStore

SUFFIX = ".tar.xz"
MOST_FILES = 1_000_000  # of one archive; ten thousand runs need a tenth of it
MOST_BYTES = 16 * 2**30  # of all files of one archive
HEADER = 2**20  # bytes allowed between two files; ours need 512
CHUNK = 2**20
DAMAGED = (tarfile.TarError, lzma.LZMAError, EOFError, UnicodeError, ValueError, OverflowError)
WORK = ("claims.db", "claims.db-shm", "claims.db-wal", "lock")  # files that running sweeps use


def is_archive(path: str | Path) -> bool:
    """Whether it is a file with the suffix of an archive; its contents are not checked."""
    return str(path).endswith(SUFFIX) and Path(path).is_file()


@contextmanager
def open_store(path: str | Path) -> Iterator[Path]:
    """A folder to read runs from: `path` itself, or what an archive holds, for as long as the block lasts.

        with dspreg.open_store("results.tar.xz") as store:
            profiles = [run.profile() for run in dspreg.load_runs(store) if run.finished]

    `dspreg.report` and `dspreg.load_runs` read an archive as it is; this is for all else that lies beside the records.

    The folder of an archive has its file name. Errors raised inside the block name the archive, because the folder no
    longer exists when they are read.

    Raises:
        IntegrityError: The archive is damaged, or holds something that no store has.
    """
    if not is_archive(path):
        yield Path(path)
        return
    with _temporary_folder() as temporary:
        folder = temporary / Path(path).name
        unpack_store(path, folder)
        try:
            yield folder
        except DspregError as error:
            error.args = tuple(a.replace(str(folder), str(path)) if isinstance(a, str) else a for a in error.args)
            raise


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    with os_errors_as_cant_write(Path(tempfile.gettempdir()), 0):
        folder = tempfile.TemporaryDirectory(prefix="dspreg-")
    with folder as name:
        yield Path(name)


def pack_store(path: str | Path, file: str | Path, *, only_finished: bool = False) -> None:
    """Write a store as one archive, whole or not at all.

    Args:
        path: The store.
        file: The archive, `*.tar.xz`; an existing one is replaced.
        only_finished: Leave unfinished runs out. Without their checkpoints they would start again anyway.

    Raises:
        InUse: A sweep is running in the store.
    """
    store, archive = RunStore(path), Path(os.path.realpath(file))  # of a link, its target is meant
    store.check()
    if not archive.name.endswith(SUFFIX):
        raise ConfigError(f"{archive}: an archive of runs is called *{SUFFIX}")
    if any(lease.alive for lease in list_leases(store.path / "claims.db")):
        raise InUse(f"a sweep is at work in {store.path}; wait for it or stop it")
    unfinished = archive.with_name(f".{archive.name}.{os.getpid()}{UNFINISHED}")
    with os_errors_as_cant_write(archive, 0):
        try:
            with unfinished.open("wb") as raw:
                with (
                    lzma.open(raw, "wb", check=lzma.CHECK_SHA256) as stream,
                    tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as tar,
                ):
                    for name in _names(store.path):
                        if not (only_finished and _is_unfinished(store, name)):
                            _add(tar, name, store.path / name)
                raw.flush()
                os.fsync(raw.fileno())
            os.replace(unfinished, archive)
        finally:
            unfinished.unlink(missing_ok=True)


def _names(root: Path) -> list[str]:
    """The files of a store, by their names in an archive."""
    found: list[str] = []
    for folder, folders, files in os.walk(root, onerror=_refuse):
        links = [Path(folder, name) for name in (*folders, *files) if Path(folder, name).is_symlink()]
        if links:
            raise ConfigError(
                f"{links[0]} is a link, and an archive holds files only; put the file there, or remove it"
            )
        for name in {"checkpoints", KEPT_CHECKPOINT} & {*folders}:
            folders.remove(name)  # results are complete without, and an unfinished run starts again
        kept = [name for name in files if name not in WORK and not Path(name).match(f".*{UNFINISHED}")]
        found += [Path(folder, name).relative_to(root).as_posix() for name in kept]
    return sorted(found)


def _is_unfinished(store: RunStore, name: str) -> bool:
    """Whether a file of a store belongs to a run that has no result."""
    first, *rest = Path(name).parts
    return first == "runs" and len(rest) > 1 and not (store.path / first / rest[0] / "result.json").exists()


def _refuse(error: OSError) -> None:
    """A folder that can't be listed would be left out silently."""
    raise IntegrityError(f"{error.filename} can't be read: {error.strerror}") from error


def _add(tar: tarfile.TarFile, name: str, path: Path) -> None:
    """One file, without its time, owner and mode."""
    try:
        file = os.fdopen(open_regular_file(path), "rb")
    except OSError as error:
        raise IntegrityError(f"{path} can't be read: {error.strerror}") from error
    with file:
        entry = tarfile.TarInfo(name)
        entry.size = os.fstat(file.fileno()).st_size
        tar.addfile(entry, file)


def unpack_store(file: str | Path, folder: str | Path) -> None:
    """Write what an archive holds into a new folder, whole or not at all.

    tarfile's extraction filters are not strict enough: they strip or follow where we refuse, and the first releases of
    Python 3.11 have none. So this function writes the files itself, by name and content alone.

    Raises:
        IntegrityError: The archive is damaged, or has links, devices, names outside the folder or too much in it.
    """
    archive, target = Path(file), Path(folder)
    if target.exists():
        raise ConfigError(f"{target} is there already; give a new folder")
    unfinished = target.with_name(f".{target.name}.{os.getpid()}{UNFINISHED}")
    make_folder(unfinished)
    try:
        _unpack(archive, unfinished)
        with os_errors_as_cant_write(target, 0):
            os.rename(unfinished, target)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _unpack(archive: Path, folder: Path) -> None:
    try:
        with lzma.open(archive) as stream:
            meter = _Meter(stream, archive)
            with tarfile.open(fileobj=meter, mode="r|") as tar:  # type: ignore[call-overload]
                _write_files(tar, meter, folder)
                _read_to_the_end(tar)
    except DAMAGED as error:
        raise IntegrityError(f"{archive} is damaged, or no archive of runs: {error}") from error
    except OSError as error:
        raise IntegrityError(f"{archive} can't be read: {error}") from error


class _Meter:
    """The stream that tarfile reads from, with a limit: a header may claim to be gigabytes long, and tarfile would load
    it before we could refuse it."""

    def __init__(self, stream: IO[bytes], archive: Path):
        self.stream, self.archive, self.left = stream, archive, HEADER

    def allow(self, size: int) -> None:
        self.left = size

    def read(self, size: int) -> bytes:
        data = self.stream.read(size)
        self.left -= len(data)
        if self.left < 0:
            raise IntegrityError(f"{self.archive} has more than {HEADER:,} bytes between two files")
        return data


def _write_files(tar: tarfile.TarFile, meter: _Meter, target: Path) -> None:
    number = total = 0
    while (entry := tar.next()) is not None:
        tar.members = []  # type: ignore[attr-defined]  # tarfile keeps every header, and none is needed again
        number, total = number + 1, total + entry.size
        if number > MOST_FILES or total > MOST_BYTES:
            raise IntegrityError(
                f"{meter.archive} holds more than {MOST_FILES:,} files or {MOST_BYTES:,} bytes, and is not unpacked; "
                "if you know where it comes from, unpack it with tar and give the folder"
            )
        path = target / _relative_path(entry, meter.archive)
        if entry.isdir():
            continue
        content = tar.extractfile(entry)
        assert content is not None  # of a plain file
        meter.allow(entry.size + HEADER)
        _write(path, content, meter.archive)
        meter.allow(HEADER)


def _relative_path(entry: tarfile.TarInfo, archive: Path) -> Path:
    """Where an entry goes: a plain file or a folder, inside the folder that the archive is unpacked into."""
    path = Path(entry.name)
    if not (entry.isreg() or entry.isdir()) or entry.issparse():
        raise IntegrityError(f"{archive}: {entry.name!r} is a link or a device; an archive of runs has only files")
    if path.drive or path.root or ".." in path.parts or (entry.isreg() and not path.parts):
        raise IntegrityError(f"{archive}: {entry.name!r} would lie outside of the folder it is unpacked into")
    return path


def _write(path: Path, content: IO[bytes], archive: Path) -> None:
    with os_errors_as_cant_write(path, 0):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("xb")
        except (FileExistsError, NotADirectoryError):
            raise IntegrityError(f"{archive} holds {path.name!r} twice, or a file where it has a folder") from None
    with file:
        while data := content.read(CHUNK):
            with os_errors_as_cant_write(path, len(data)):
                file.write(data)


def _read_to_the_end(tar: tarfile.TarFile) -> None:
    """Read to the end. tarfile stops at the first block that is no header, so damage there would look like the end, and
    xz compares its checksum only at the last byte."""
    assert tar.fileobj is not None
    rest = tar.fileobj.read(tarfile.BLOCKSIZE)  # tarfile has already read the first of the two blocks of zeros
    ended = len(rest) == tarfile.BLOCKSIZE
    while rest:
        if rest.strip(b"\0"):
            raise tarfile.ReadError("there is something behind its end, or one of its headers is damaged")
        rest = tar.fileobj.read(CHUNK)
    if not ended:
        raise tarfile.ReadError("its end is missing")
