"""Files that are whole or absent, and say what they hold: everything that must survive a crash is written here.

A folder may come from a stranger. So nothing is opened here but regular files: a link could lead out of the folder, and
a FIFO would be waited for for ever. Only what a user named is followed, by `write_output` and where `follow` says so.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, Any, NoReturn

from dspreg.errors import CantWrite, ConfigError, IntegrityError, ResourceError, missing_resource

UNFINISHED = ".part"  # a crash may leave such a file; `remove_partial_files` removes it
# Entered around every change of a file that another process may own by now: it raises where nothing may change any
# more. A process that slept too long is stopped at its next file, and half-made files never get their names.
Fence = Callable[[], AbstractContextManager[None]]
JSON_BYTES = 2**26  # of one file; ours have some kilobytes
LINES_BYTES = 2**30
KINDS = {
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}
# Windows has neither of them, nor what they keep from us: no open waits, no program ends with its terminal.
WITHOUT_WAITING = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
OPENS_FOLDERS = os.name == "posix"  # Windows does not, so that only files are synced there
OPENED = re.compile(r"/dev/fd/(\d+)|/proc/self/fd/(\d+)|/dev/std(out|err)")  # names of what is open already


def sha256(data: bytes) -> str:
    """SHA-256, in hex."""
    return hashlib.sha256(data).hexdigest()


def sha256_of_file(path: Path) -> str:
    """SHA-256 of a file, read now.

    Raises:
        IntegrityError: It is no regular file.
    """
    with open(open_regular_file(path), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# Regular files and nothing else.


def open_regular_file(path: str | Path, flags: int = os.O_RDONLY, *, follow: bool = False) -> int:
    """A handle of a regular file, as `os.open` gives it; never waits.

    Args:
        path: Of the file.
        flags: As for `os.open`.
        follow: Take what a link points to; for files that the user named.

    Raises:
        IntegrityError: Something else has the name: a link, a folder, a FIFO, a device.
        ResourceError: There are too few descriptors, or too little memory.
        OSError: Another refusal of the system.
    """
    with suppress(FileNotFoundError):  # looked at before: opening alone makes some devices do things
        _require_regular(path, os.stat(path, follow_symlinks=follow))
    flags |= WITHOUT_WAITING | getattr(os, "O_BINARY", 0) | (0 if follow else getattr(os, "O_NOFOLLOW", 0))
    try:
        handle = os.open(path, flags, 0o666)
    except OSError as error:
        if missing := missing_resource(error):  # nothing is wrong with the file
            raise ResourceError(f"{path} can't be opened: {missing}") from error
        raise
    try:
        _require_regular(path, os.fstat(handle))  # and after: it may have been exchanged meanwhile
    except IntegrityError:
        os.close(handle)
        raise
    return handle


def read_regular_file(path: str | Path, *, limit: int | None = None, follow: bool = False) -> bytes:
    """The contents of a regular file; never waits.

    Args:
        path: Of the file.
        limit: Bytes that it may have.
        follow: Take what a link points to; for files that the user named.

    Raises:
        IntegrityError: Something else has the name, or it is larger.
        OSError: The system's refusal; FileNotFoundError where there is none.
    """
    with open(open_regular_file(path, follow=follow), "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.readall() if limit is None or size <= limit else None
    if limit is not None and max(size, len(data or b"")) > limit:
        raise IntegrityError(f"{path} has {size:,} bytes; wanted at most {limit:,}")
    if data is None:  # a file of the system's that something may be written to later
        raise IntegrityError(f"{path} has nothing to read now; wanted a regular file")
    return data


def holds_file(path: str | Path) -> bool:
    """Whether a regular file has this name; False where nothing has it.

    Raises:
        IntegrityError: Something else has it.
    """
    try:
        _require_regular(path, os.lstat(path))
    except OSError:  # not there, or not to be looked at: who reads it is told why
        return False
    return True


def require_folder(path: str | Path) -> None:
    """Refuse what is there and no folder: above all a link, that would lead out of the folder it is in.

    Raises:
        IntegrityError: It is something else.
    """
    with suppress(FileNotFoundError, NotADirectoryError):
        kind = stat.S_IFMT(os.lstat(path).st_mode)
        if kind != stat.S_IFDIR:
            raise IntegrityError(f"{path} is {KINDS.get(kind, 'a file')}; wanted a folder. Put the folder itself there")


def _require_regular(path: str | Path, about: os.stat_result) -> None:
    if not stat.S_ISREG(about.st_mode):
        kind = KINDS.get(stat.S_IFMT(about.st_mode), "something else")
        way = ". Put the file itself there" if kind == "a link" else ""
        raise IntegrityError(f"{path} is {kind}; wanted a regular file{way}")


def open_for_writing(path: Path, flags: int, mode: str) -> IO[bytes]:
    """The one place where a file of ours is opened for writing."""
    return open(open_regular_file(path, flags), mode)


def canonical_json(value: Any) -> str:
    """The one JSON text of a value: keys sorted, floats to the last bit, no NaN."""
    return json.dumps(value, allow_nan=False, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def write(path: Path, data: bytes, *, fence: Fence = nullcontext) -> None:
    """Replace a file as a whole: after a crash it has its old contents or the new ones."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}{UNFINISHED}")
    with os_errors_as_cant_write(path, len(data)):
        try:
            with _open_new(unfinished) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            with fence():
                os.replace(unfinished, path)
        except Exception:
            unfinished.unlink(missing_ok=True)
            raise
        _sync(path.parent)  # the new name, too, must survive the power going


def _open_new(path: Path) -> IO[bytes]:
    """A file that was not there: one that was, and be it a link to something dear, is not written to."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        return open_for_writing(path, flags, "wb")
    except (FileExistsError, IntegrityError):  # a process of the same number crashed, or a stranger made it
        path.unlink()
        return open_for_writing(path, flags, "wb")


def write_json(path: Path, value: Any, *, fence: Fence = nullcontext) -> None:
    """For people too: indented."""
    write(path, format_json(value), fence=fence)


def format_json(value: Any) -> bytes:
    """What `write_json` writes."""
    return (json.dumps(value, allow_nan=False, ensure_ascii=False, indent=1, sort_keys=True) + "\n").encode()


def read_json(path: Path, *, limit: int = JSON_BYTES) -> Any:
    """What a file holds, checked to be what `write_json` could have written."""
    try:
        text = read_regular_file(path, limit=limit).decode()
        value = STRICT_JSON.decode(text)
        if "\\u" in text:  # halves of characters, which only escapes can hold
            canonical_json(value).encode()
        return value
    except (ValueError, RecursionError, OSError) as error:
        raise IntegrityError(f"{path} can't be read: {error}") from error


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")


def _parse_finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is out of range")
    return value


# Refuses what Python reads beyond JSON while it reads; writing the value again to find out takes as long as reading it.
STRICT_JSON = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_parse_finite)


def parse_json(path: str | Path, data: bytes) -> Any:
    """What a file holds. Python reads NaN, 1e999 and halves of characters, too, which are never written here: a caller
    that does not put the value through `canonical(…).encode()`, to compare its SHA-256, has to do so as a check.
    """
    try:
        return json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{path} can't be read: {error}") from error


def remove(path: Path, *, fence: Fence = nullcontext) -> None:
    with os_errors_as_cant_write(path, 0), fence():
        path.unlink(missing_ok=True)


def make_folder(path: Path) -> None:
    """A folder and those above it, where they are missing."""
    with os_errors_as_cant_write(path, 0):
        missing = [each for each in (path, *path.parents) if not each.exists()]
        path.mkdir(parents=True, exist_ok=True)
        for each in reversed(missing):
            _sync(each.parent)  # else all that is synced inside of it would go with its name


def remove_partial_files(folder: Path, *, fence: Fence = nullcontext) -> None:
    """Remove what a crash left half-written in a folder of ours or below it."""
    for place, _, names in os.walk(folder):  # which follows no links
        for name in names:
            if name.startswith(".") and name.endswith(UNFINISHED):
                remove(Path(place, name), fence=fence)


# What a user named.


def write_output(path: str | Path, data: bytes) -> None:
    """Write to what a user named, and mean what a shell's `>` means.

    A regular file is replaced as a whole, and so is a new one. Of a link it is the target that is written. A FIFO or a
    character device is opened and written to; so is what is open already, such as /dev/stdout or the /dev/fd/63 of a
    shell's `>(…)`. "-" is standard output.

    Raises:
        ConfigError: It is a folder, a disk or a socket.
        CantWrite: The system refused, or nobody reads the FIFO.
    """
    with os_errors_as_cant_write(Path(path), len(data)):
        if (number := _open_number(path)) is not None:
            _write_open(number, data)
        elif (kind := _kind(path)) == stat.S_IFREG:
            write(Path(os.path.realpath(path)), data)
        elif kind in (stat.S_IFIFO, stat.S_IFCHR):
            with open(_open_special(path), "wb") as stream:
                stream.write(data)
        else:
            what = "a disk" if kind == stat.S_IFBLK else KINDS.get(kind, "something else")
            raise ConfigError(f"{path} is {what}; wanted a file")


def is_standard_output(path: str | Path) -> bool:
    """Whether `write_output` would write where `print` does."""
    return _open_number(path) == 1


def _open_number(path: str | Path) -> int | None:
    """The number of what is open already, by one of its names."""
    if str(path) == "-":
        return 1
    if not (found := OPENED.fullmatch(str(path))):
        return None
    return {"out": 1, "err": 2}[found[3]] if found[3] else int(found[1] or found[2])


def _write_open(number: int, data: bytes) -> None:
    sys.stdout.flush()  # what was printed before comes before
    if number == 1 and hasattr(sys.stdout, "buffer"):  # where standard output was redirected by Python itself, too
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
        return
    with open(os.dup(number), "wb") as stream:
        stream.write(data)


def _kind(path: str | Path) -> int:
    """Of what is there, links followed; what is not there will be a regular file."""
    try:
        return stat.S_IFMT(os.stat(path).st_mode)
    except FileNotFoundError:
        return stat.S_IFREG


def _open_special(path: str | Path) -> int:
    try:
        handle = os.open(path, os.O_WRONLY | WITHOUT_WAITING)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        raise CantWrite(f"{path} can't be written: no process reads this FIFO; start its reader first") from error
    os.set_blocking(handle, True)  # from here on waiting is right: the reader is there, and may be slow
    return handle


class Lines:
    """A file of JSON lines that only grows. `mark` says how far it was good, `rewind` goes back there."""

    def __init__(self, path: Path, *, fence: Fence = nullcontext):
        self.path, self.fence = path, fence
        self._written: bytes | None = None  # all that stands there, if it was written or verified by us

    @property
    def written(self) -> bytes:
        """What stands in it by all that we know: not read again, where damage would be taken for truth."""
        if self._written is None:
            self._written = self._bytes()
        return self._written

    def append(self, value: Any) -> None:
        line = (canonical_json(value) + "\n").encode()
        before = self.written
        with os_errors_as_cant_write(self.path, len(line)):
            with self.fence():
                new = not self.path.exists()
                self._unshare()
                with open_for_writing(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, "ab") as file:
                    file.write(line)
            _sync(self.path)  # not inside of the fence: all others would wait for this disk
            if new:
                _sync(self.path.parent)
        self._written = before + line

    def mark(self) -> dict[str, Any]:
        return {"bytes": len(self.written), "sha256": sha256(self.written)}

    def rewind(self, mark: dict[str, Any] | None) -> None:
        """Forget the lines after `mark`, a torn one too; they will be written again. None: all of them."""
        size = mark["bytes"] if mark else 0
        kept = self._bytes()[:size]
        if mark and sha256(kept) != mark["sha256"]:
            raise IntegrityError(f"{self.path} is not what it was when the checkpoint was made")
        if self.path.exists():
            with os_errors_as_cant_write(self.path, 0), self.fence():
                self._unshare()
                with open_for_writing(self.path, os.O_RDWR, "r+b") as file:
                    file.truncate(size)
                    os.fsync(file.fileno())
        self._written = kept

    def restore(self, data: bytes) -> None:
        """Write all of it again, as it is known to have been."""
        write(self.path, data, fence=self.fence)
        self._written = data

    def __iter__(self) -> Iterator[Any]:
        """What was written, without a torn last line: that one was never finished."""
        for number, line in enumerate(self._bytes().split(b"\n")[:-1], 1):
            yield self._value(number, line)

    def of(self, data: bytes) -> list[Any]:
        """The same of bytes that were read and verified before, in one go: quicker, and its keys are shared."""
        lines = data.split(b"\n")[:-1]
        try:
            found = json.loads(b"[%b]" % b",".join(lines))
        except (ValueError, RecursionError):
            found = []
        if len(found) == len(lines):
            return list(found)
        return [self._value(number, line) for number, line in enumerate(lines, 1)]  # says which one is damaged

    def _value(self, number: int, line: bytes) -> Any:
        try:
            return json.loads(line)
        except (ValueError, RecursionError) as error:
            raise IntegrityError(f"{self.path}, line {number}, is damaged: {error}") from error

    def _bytes(self) -> bytes:
        try:
            return read_regular_file(self.path, limit=LINES_BYTES)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise IntegrityError(f"{self.path} can't be read: {error.strerror}") from error

    def _unshare(self) -> None:
        """A file of several names is changed under all of them: a copy made with `cp -al`, or a stranger's trap."""
        with suppress(FileNotFoundError):
            about = os.lstat(self.path)
            if stat.S_ISREG(about.st_mode) and about.st_nlink > 1:
                write(self.path, self._bytes())


@contextmanager
def os_errors_as_cant_write(path: Path, size: int) -> Iterator[None]:
    """The system's refusal as an error that says what was wanted and what there is."""
    try:
        yield
    except OSError as error:
        raise CantWrite(f"{path} can't be written: {error.strerror or error}{_room(path, size)}") from error


def _room(path: Path, size: int) -> str:
    if not size:
        return ""
    for there in path.absolute().parents:
        with suppress(OSError):  # not there, or not to be looked into: the folder above it is on the same disk or near
            return f"; {size:,} bytes wanted, {shutil.disk_usage(there).free:,} free"
    return f"; {size:,} bytes wanted"


def _sync(path: Path) -> None:
    """A file or a folder."""
    if not OPENS_FOLDERS and path.is_dir():
        return
    handle = os.open(path, os.O_RDONLY if OPENS_FOLDERS else os.O_RDWR)  # Windows syncs what may be written to
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
