"""Files that are whole or absent, and say what they hold: everything that must survive a crash is written here."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from dspreg.errors import CantWrite, IntegrityError

UNFINISHED = ".part"  # a crash may leave such a file; `remove_partial_files` removes it
# Entered around every change of a file that another process may own by now: it raises where nothing may change any
# more. A process that slept too long is stopped at its next file, and half-made files never get their names.
Fence = Callable[[], AbstractContextManager[None]]


def sha256(data: bytes) -> str:
    """SHA-256, in hex."""
    return hashlib.sha256(data).hexdigest()


def sha256_of_file(path: Path) -> str:
    """SHA-256 of a file, read now."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def canonical_json(value: Any) -> str:
    """The one JSON text of a value: keys sorted, floats to the last bit, no NaN."""
    return json.dumps(value, allow_nan=False, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def write(path: Path, data: bytes, *, fence: Fence = nullcontext) -> None:
    """Replace a file as a whole: after a crash it has its old contents or the new ones."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}{UNFINISHED}")
    with os_errors_as_cant_write(path, len(data)):
        try:
            with unfinished.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            with fence():
                os.replace(unfinished, path)
        except Exception:
            unfinished.unlink(missing_ok=True)
            raise
        _sync(path.parent)  # the new name, too, must survive the power going


def write_json(path: Path, value: Any, *, fence: Fence = nullcontext) -> None:
    """For people too: indented."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=False, indent=1, sort_keys=True)
    write(path, (text + "\n").encode(), fence=fence)


def read_json(path: Path) -> Any:
    try:
        value = parse_json(path, path.read_bytes())
        canonical_json(value).encode()
        return value
    except (ValueError, OSError) as error:
        raise IntegrityError(f"{path} can't be read: {error}") from error


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
        path.mkdir(parents=True, exist_ok=True)


def remove_partial_files(folder: Path, *, fence: Fence = nullcontext) -> None:
    """Remove what a crash left half-written in a folder of ours or below it."""
    for path in folder.rglob(f".*{UNFINISHED}"):
        remove(path, fence=fence)


class Lines:
    """A file of JSON lines that only grows. `mark` says how far it was good, `rewind` goes back there."""

    def __init__(self, path: Path, *, fence: Fence = nullcontext):
        self.path, self.fence = path, fence

    def append(self, value: Any) -> None:
        line = (canonical_json(value) + "\n").encode()
        with os_errors_as_cant_write(self.path, len(line)):
            with self.fence():
                new = not self.path.exists()
                with self.path.open("ab") as file:
                    file.write(line)
            _sync(self.path)  # not inside of the fence: all others would wait for this disk
            if new:
                _sync(self.path.parent)

    def mark(self) -> dict[str, Any]:
        data = self._bytes()
        return {"bytes": len(data), "sha256": sha256(data)}

    def rewind(self, mark: dict[str, Any] | None) -> None:
        """Forget the lines after `mark`, a torn one too; they will be written again. None: all of them."""
        size = mark["bytes"] if mark else 0
        kept = self._bytes()[:size]
        if mark and sha256(kept) != mark["sha256"]:
            raise IntegrityError(f"{self.path} is not what it was when the checkpoint was made")
        if self.path.exists():
            with os_errors_as_cant_write(self.path, 0), self.fence(), self.path.open("r+b") as file:
                file.truncate(size)
                os.fsync(file.fileno())

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
        return self.path.read_bytes() if self.path.exists() else b""


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
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
