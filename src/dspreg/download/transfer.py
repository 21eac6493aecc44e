"""A file over HTTP, resumed where it stopped, under its name only when it is whole and verified.

While it comes it is called `NAME.part`; `NAME.part.json` says which version of the file that is (ETag, length). A run
that was interrupted asks for the rest, on the condition that the host still has the same version. A file with another
checksum than the known one is kept as `NAME.bad`, to be looked at, and never taken for the file. Where no checksum is
known, `.NAME.json` keeps the version: when the file is wanted again, the host is asked whether it has a newer one.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPResponse
from pathlib import Path
from threading import Event
from typing import Any

from dspreg.download.web import BROKEN, Undelivered, host_of, page_title, request
from dspreg.errors import CantWrite, DspregError, IntegrityError
from dspreg.io.atomic_files import (
    make_folder,
    open_for_writing,
    os_errors_as_cant_write,
    read_json,
    sha256_of_file,
    write_json,
)
from dspreg.io.locks import holding

CHUNK = 2**18
LARGEST = 64 * 2**30  # bytes of one file whose size nobody told us
TOGETHER = 4  # files at a time
PAUSES = (1.0, 4.0, 15.0)  # seconds before another try; after so many without a new byte, it is given up
LOOK_AGAIN = 0.1  # seconds until it is looked again whether another has fetched the file
LONGEST_WAIT = 60.0  # seconds, if the host asks for a pause
MOST_TRIES = 200  # of one file, new bytes or not
SPARE = 2**28  # bytes of the disk that stay free

Progress = Callable[[str, int, int | None], None]  # name of the file, bytes of it, bytes of all of it if known


class WrongFile(IntegrityError):
    """Something else was delivered than what is known of the file."""


@dataclass(frozen=True)
class Remote:
    """A file that a host has, and what is known of it.

    Attributes:
        url: Its address.
        name: It gets here; no path.
        size: In bytes.
        sha256: Of its bytes.
        headers: To be sent along; not to another host that it redirects to.
    """

    url: str
    name: str
    size: int | None = None
    sha256: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not is_file_name(self.name):
            raise ValueError(f"{self.name!r} is no name for a file")


def is_file_name(name: str) -> bool:
    """Whether a file may be called so here: no path, nothing hidden, nothing odd."""
    return bool(re.fullmatch(r"[\w.+ =@-]{1,200}", name)) and not name.startswith(".")


def ignore_progress(name: str, done: int, total: int | None) -> None:
    """For callers that do not show any."""


def download_all(
    files: Sequence[Remote], folder: Path, *, together: int = TOGETHER, progress: Progress = ignore_progress
) -> list[Path]:
    """Several files, a few at a time; the first failure stops the others, which can be resumed.

    Raises:
        Undelivered: A host is out of reach, refuses, or has something else.
        WrongFile: A checksum is wrong.
        CantWrite: The disk has too little room.
    """
    make_folder(folder)
    require_space(folder, sum(missing_bytes(each, folder) for each in files))
    stop = Event()
    pool = ThreadPoolExecutor(max(1, min(together, len(files))))
    try:
        running = [pool.submit(download, each, folder, progress=progress, stop=stop) for each in files]
        wait(running, return_when=FIRST_EXCEPTION)
        stop.set()  # the failure's own file is done, and so are all, if there was none
        failed = [error for each in running if (error := each.exception()) is not None]
        if failed:
            raise next((error for error in failed if not isinstance(error, Stopped)), failed[0])
        return [each.result() for each in running]
    finally:
        stop.set()  # after Ctrl-C, too
        pool.shutdown(cancel_futures=True)


class Stopped(DspregError):
    """Another file failed, so that this one is not wanted now."""


def download(file: Remote, folder: Path, *, progress: Progress = ignore_progress, stop: Event | None = None) -> Path:
    """One file, as `download_all`; what is there already and verified is not fetched again.

    Of several that want the same file at once, in this process or another, one fetches it and the others wait.
    """
    transfer = _Transfer(file, folder, progress, stop or Event())
    with holding(folder / f".{file.name}.lock", transfer.wait_for_another):
        if not transfer.is_there():
            _fetch(transfer)
    return transfer.target


def _fetch(transfer: _Transfer) -> None:
    """With as many tries as bring something new, and some more."""
    pauses, tries, most = iter(PAUSES), 0, transfer.received
    while True:
        tries += 1
        try:
            transfer.receive()
            break
        except Undelivered as error:
            if transfer.received > most:  # than ever: what came anew after a part was given up is nothing new
                pauses, most = iter(PAUSES), transfer.received
            if error.unreachable and not transfer.received:  # it never was there: the next place may be
                raise
            pause = next(pauses, None)
            if not error.again or pause is None or tries >= MOST_TRIES or error.wait > LONGEST_WAIT:
                raise
            if transfer.stop.wait(max(pause, error.wait)):
                raise Stopped(f"{transfer.file.name} was stopped") from error
    transfer.finish()


class _Transfer:
    """The state of one file on the disk."""

    def __init__(self, file: Remote, folder: Path, progress: Progress, stop: Event):
        self.file, self.progress, self.stop = file, progress, stop
        self.target = folder / file.name
        self.part = folder / f"{file.name}.part"
        self.note = folder / f"{file.name}.part.json"
        self.version = folder / f".{file.name}.json"  # of the whole file

    @property
    def received(self) -> int:
        with suppress(FileNotFoundError):
            return os.lstat(self.part).st_size
        return 0

    def wait_for_another(self) -> None:
        """Called while another fetches the same file."""
        if self.stop.wait(LOOK_AGAIN):
            raise Stopped(f"{self.file.name} was stopped")

    def is_there(self) -> bool:
        """Whether the file has its name, which it gets when it is whole; its checksum is compared again."""
        if not self.target.is_file():
            return False
        size = self.target.stat().st_size
        if self.file.size not in (None, size) or self.file.sha256 not in (None, sha256_of_file(self.target)):
            self._set_aside(self.target)
            return False
        if self.file.sha256 is None and self._has_newer():
            return False
        self.progress(self.file.name, size, size)
        return True

    def _has_newer(self) -> bool:
        """Whether the host names another version than that of the file; False where it can't be asked."""
        known = self._noted(self.version)
        if known is None:
            return False
        try:
            with request(self.file.url, {**self.file.headers, "Range": "bytes=0-0"}) as response:
                return _version_of(response) not in ("", known["etag"])
        except Undelivered:
            return False

    def receive(self) -> None:
        """Ask for what is missing, and write it as it comes."""
        version = self._version()
        have = self.received if version else 0
        if version and have == version["length"]:
            return
        headers = dict(self.file.headers)
        if version and have:
            headers |= {"Range": f"bytes={have}-", "If-Range": version["etag"]}
        try:
            response = request(self.file.url, headers)
        except Undelivered as error:
            if "answered 416" in str(error) and have:  # what is here does not fit what is there
                self._forget()
                raise Undelivered(str(error), again=True) from error
            raise
        with response:
            start = _start_of(response)
            if start not in (0, have):
                self._forget()
                raise Undelivered(f"{host_of(self.file.url)} sent another part than was asked for", again=True)
            length = _length_of(response, start)
            self._check_length(length)
            if start == 0:
                self._forget()
                self._write_version(response, length)
            self._write(response, start, length)

    def finish(self) -> None:
        """Compare the checksum, and give the file its name."""
        size = self.received
        if self.file.size not in (None, size):
            self._refuse(f"has {size:,} bytes where {self.file.size:,} are known")
        if self.file.sha256 is not None and (found := sha256_of_file(self.part)) != self.file.sha256:
            self._refuse(f"has the SHA-256 {found} where {self.file.sha256} is known")
        with os_errors_as_cant_write(self.target, 0):
            self.version.unlink(missing_ok=True)  # of an earlier file
            os.replace(self.part, self.target)
            if self.file.sha256 is None and self.note.exists():
                os.replace(self.note, self.version)
        self.note.unlink(missing_ok=True)

    def _write(self, response: HTTPResponse, start: int, length: int | None) -> None:
        done = start
        flags = os.O_WRONLY | os.O_CREAT | (0 if start else os.O_TRUNC)
        with os_errors_as_cant_write(self.part, 0), open_for_writing(self.part, flags, "wb") as out:
            out.seek(start)
            for data in self._chunks(response):
                if done == 0 and (title := page_title(data, response.headers.get_content_type())) is not None:
                    raise Undelivered(
                        f"{host_of(self.file.url)} sent a web page ({title!r}) instead of {self.file.name}; such pages "
                        "ask for a click or say that a limit was reached"
                    )
                done += len(data)
                if done > (length or LARGEST):
                    raise Undelivered(f"{host_of(self.file.url)} sent more than {length or LARGEST:,} bytes")
                with os_errors_as_cant_write(self.part, (length or done) - done):
                    out.write(data)
                    out.flush()
                self.progress(self.file.name, done, length)
        if length is not None and done < length:
            raise Undelivered(
                f"{host_of(self.file.url)} ended the connection at {done:,} of {length:,} bytes", again=True
            )
        if length is None:
            self._write_version(response, done)

    def _chunks(self, response: HTTPResponse) -> Iterator[bytes]:
        while True:
            if self.stop.is_set():
                raise Stopped(f"{self.file.name} was stopped")
            try:
                data = response.read1(CHUNK)
            except BROKEN as error:
                says = f"{host_of(self.file.url)} stopped sending ({error or type(error).__name__})"
                raise Undelivered(says, again=True) from error
            if not data:
                return
            yield data

    def _check_length(self, length: int | None) -> None:
        known = self.file.size
        if length is not None and known is not None and length != known:
            raise WrongFile(
                f"{host_of(self.file.url)} has {self.file.name} with {length:,} bytes, where {known:,} are known: "
                "it is another file"
            )
        if (length or 0) > LARGEST:
            raise Undelivered(f"{host_of(self.file.url)} would send {length:,} bytes; at most {LARGEST:,} are taken")
        require_space(self.part.parent, max(0, (length or 0) - self.received))

    def _version(self) -> dict[str, Any] | None:
        """Which version of the file the part is of; None if that is unknown, and it has to start again."""
        return self._noted(self.note) if self.part.is_file() else None

    def _noted(self, note: Path) -> dict[str, Any] | None:
        with suppress(IntegrityError):
            found = read_json(note)
            if (
                isinstance(found, dict)
                and found.get("url") == self.file.url
                and isinstance(found.get("etag"), str)
                and isinstance(found.get("length"), int | None)
            ):
                return found
        return None

    def _write_version(self, response: HTTPResponse, length: int | None) -> None:
        if etag := _version_of(response):
            write_json(self.note, {"url": self.file.url, "etag": etag, "length": length})

    def _forget(self) -> None:
        self.note.unlink(missing_ok=True)  # first: a part without a note is never taken for anything
        self.part.unlink(missing_ok=True)

    def _set_aside(self, path: Path) -> Path:
        aside = self.target.with_name(f"{self.file.name}.bad")
        os.replace(path, aside)
        return aside

    def _refuse(self, fault: str) -> None:
        kept = self._set_aside(self.part)
        self.note.unlink(missing_ok=True)
        raise WrongFile(f"{self.file.name} of {host_of(self.file.url)} {fault}; it is kept as {kept}")


def _version_of(response: HTTPResponse) -> str:
    """What a host calls the version that it sends; "" if nothing."""
    etag: str = response.headers.get("ETag", "")
    if etag.startswith("W/") or not etag:  # a weak tag says nothing about bytes
        etag = response.headers.get("Last-Modified", "")
    return etag


def _start_of(response: HTTPResponse) -> int:
    """The position of the first byte that a response holds."""
    if response.status != 206:
        return 0
    found = re.fullmatch(r"bytes (\d{1,15})-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
    return int(found[1]) if found else -1


def _length_of(response: HTTPResponse, start: int) -> int | None:
    """Bytes of the whole file, if the host says so."""
    said = response.headers.get("Content-Length", "")
    return start + int(said) if said.isdecimal() and len(said) < 16 else None


def missing_bytes(file: Remote, folder: Path) -> int:
    """How much of a file of known size is still to come."""
    have = [os.lstat(p).st_size for p in (folder / file.name, folder / f"{file.name}.part") if p.is_file()]
    return max(0, (file.size or 0) - max(have, default=0))


def require_space(folder: Path, size: int) -> None:
    """Refuse before anything is written where the disk has too little room.

    Raises:
        CantWrite: Says how much is wanted and how much there is.
    """
    there = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    free = shutil.disk_usage(there).free
    if size + SPARE > free:
        raise CantWrite(
            f"the disk of {folder} has too little room: {size / 1e9:,.1f} GB are wanted and {SPARE / 1e9:.1f} GB are "
            f"to stay free, but there are {free / 1e9:,.1f} GB. Make room, or choose another disk with --root"
        )
