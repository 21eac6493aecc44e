"""A model of a disk: every change of a file below one folder is recorded, can be refused, and can be replayed in part.

What is patched are Python's own doors to the system (`os`, `io.open`), so that it does not matter which module goes
through them. SQLite goes past them: its files are left out by name.
"""

from __future__ import annotations

import builtins
import hashlib
import io
import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = ""  # the folder itself, as a relative path


@dataclass(frozen=True)
class Operation:
    """One change that a crash may come before, after, or in the middle of."""

    kind: str  # create, write, truncate, sync, sync folder, replace, unlink, mkdir, rmdir
    path: str  # relative
    file: int = -1  # which one, whatever its name
    at: int = 0  # where in the file; the new size of one that is truncated
    data: bytes = b""
    to: str = ""  # the new name


@dataclass
class Fault:
    """An error that the system gives at one operation, or from then on."""

    number: int
    error: int
    persistent: bool = False
    given: int = 0

    def __call__(self, number: int, operation: Operation) -> None:
        if number == self.number or (self.persistent and number > self.number):
            self.given += 1
            raise OSError(self.error, os.strerror(self.error), operation.path)


class RecordedDisk:
    """Records what is done below `root` while it is patched in.

    Args:
        root: The folder.
        before: Called before each operation with its number and itself; may raise.
        unseen: Names that start so are left out: SQLite's.
    """

    def __init__(
        self, root: Path, before: Callable[[int, Operation], None] = lambda *_: None, unseen: str = "claims.db"
    ):
        self.root, self.before, self.unseen = root.resolve(), before, unseen
        self.operations: list[Operation] = []
        self.ids: dict[str, int] = {}
        self.open: dict[int, tuple[int, str, bool]] = {}  # descriptor → file, path, whether it appends
        self.made = 0

    def _inside(self, path: Any, dir_fd: int | None = None) -> str | None:
        if isinstance(path, int):
            return None
        text = os.fsdecode(path)
        if dir_fd is not None and not os.path.isabs(text):
            text = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), text)
        found = os.path.join(os.path.realpath(os.path.dirname(os.path.abspath(text))), os.path.basename(text))
        if os.path.realpath(found) == str(self.root):
            return ROOT
        if not found.startswith(f"{self.root}{os.sep}") or os.path.basename(found).startswith(self.unseen):
            return None
        return os.path.relpath(found, self.root)

    def _do(self, operation: Operation, act: Callable[[], Any]) -> Any:
        self.before(len(self.operations), operation)
        result = act()
        self.operations.append(operation)
        return result

    def _id(self, path: str) -> int:
        if path not in self.ids:
            self.ids[path], self.made = self.made, self.made + 1
        return self.ids[path]

    def _opening(self, path: str, act: Callable[[], Any], *, creates: bool, truncates: bool) -> Any:
        """Open for writing: a file may be made or emptied by that."""
        there = os.path.exists(self.root / path)
        if there and truncates:
            return self._do(Operation("truncate", path, self._id(path)), act)
        if not there and creates:
            return self._do(Operation("create", path, self._id(path)), act)
        return act()

    # The doors.

    @contextmanager
    def recorded(self) -> Iterator[RecordedDisk]:
        real = {
            name: getattr(os, name)
            for name in (
                "open", "close", "write", "fsync", "fdatasync", "replace", "rename", "unlink", "remove", "mkdir",
                "rmdir", "truncate", "ftruncate",
            )
        }  # fmt: skip
        real_open = io.open

        def os_open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            inside = self._inside(path, dir_fd)
            act = lambda: real["open"](path, flags, mode, dir_fd=dir_fd)  # noqa: E731
            if inside is None or flags & os.O_DIRECTORY:
                return act()
            fd = self._opening(inside, act, creates=bool(flags & os.O_CREAT), truncates=bool(flags & os.O_TRUNC))
            if not os.path.isdir(self.root / inside):
                self.open[fd] = (self._id(inside), inside, bool(flags & os.O_APPEND))
            return fd

        def io_open(file: Any, mode: str = "r", *rest: Any, **more: Any) -> Any:
            inside = self._inside(file)
            if isinstance(file, int) and file in self.open:
                return Handle(self, real_open(file, mode, *rest, **more))
            if inside is None or not set(mode) & set("wax+"):
                return real_open(file, mode, *rest, **more)
            act = lambda: real_open(file, mode, *rest, **more)  # noqa: E731
            handle = self._opening(inside, act, creates="r" not in mode, truncates="w" in mode)
            self.open[handle.fileno()] = (self._id(inside), inside, "a" in mode)
            return Handle(self, handle)

        def close(fd: int) -> None:
            self.open.pop(fd, None)
            real["close"](fd)

        def write(fd: int, data: Any) -> int:
            if fd not in self.open:
                return real["write"](fd, data)
            return self.write(fd, bytes(data), os.lseek(fd, 0, os.SEEK_CUR), lambda: real["write"](fd, data))

        def sync(name: str) -> Callable[[Any], None]:
            def synced(fd: Any) -> None:
                number = fd if isinstance(fd, int) else fd.fileno()
                if number in self.open:
                    file, path, _ = self.open[number]
                    return self._do(Operation("sync", path, file), lambda: real[name](number))
                folder = self._inside(os.readlink(f"/proc/self/fd/{number}"))
                if folder is None:
                    return real[name](number)
                return self._do(Operation("sync folder", folder), lambda: real[name](number))

            return synced

        def rename(name: str) -> Callable[..., None]:
            def renamed(a: Any, b: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
                old, new = self._inside(a, src_dir_fd), self._inside(b, dst_dir_fd)
                act = lambda: real[name](a, b, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)  # noqa: E731
                if old is None or new is None:
                    return act()
                self._do(Operation("replace", old, self._id(old), to=new), act)
                self.ids[new] = self.ids.pop(old)

            return renamed

        def plain(name: str, kind: str) -> Callable[..., None]:
            def done(path: Any, *rest: Any, dir_fd: int | None = None, **more: Any) -> None:
                inside = self._inside(path, dir_fd)
                act = lambda: real[name](path, *rest, dir_fd=dir_fd, **more)  # noqa: E731
                if inside is None or os.path.lexists(self.root / inside) == (kind == "mkdir"):
                    return act()  # not ours, or it will fail
                if kind == "rmdir" and os.listdir(self.root / inside):
                    return act()
                self._do(Operation(kind, inside, self.ids.get(inside, -1)), act)
                self.ids.pop(inside, None)

            return done

        def truncate(path: Any, length: int) -> None:
            if isinstance(path, int):
                return ftruncate(path, length)
            inside = self._inside(path)
            act = lambda: real["truncate"](path, length)  # noqa: E731
            return act() if inside is None else self._do(Operation("truncate", inside, self._id(inside), length), act)

        def ftruncate(fd: int, length: int) -> None:
            if fd not in self.open:
                return real["ftruncate"](fd, length)
            file, path, _ = self.open[fd]
            return self._do(Operation("truncate", path, file, length), lambda: real["ftruncate"](fd, length))

        doors = {
            "open": os_open, "close": close, "write": write, "fsync": sync("fsync"), "fdatasync": sync("fdatasync"),
            "replace": rename("replace"), "rename": rename("rename"), "unlink": plain("unlink", "unlink"),
            "remove": plain("remove", "unlink"), "mkdir": plain("mkdir", "mkdir"), "rmdir": plain("rmdir", "rmdir"),
            "truncate": truncate, "ftruncate": ftruncate,
        }  # fmt: skip
        with ExitStack() as patches:
            for name, door in doors.items():
                patches.enter_context(mock.patch.object(os, name, door))
            patches.enter_context(mock.patch.object(io, "open", io_open))
            patches.enter_context(mock.patch.object(builtins, "open", io_open))
            yield self

    def write(self, fd: int, data: bytes, at: int, act: Callable[[], Any]) -> Any:
        file, path, appends = self.open[fd]
        at = os.fstat(fd).st_size if appends else at
        return self._do(Operation("write", path, file, at, data), act)


class Handle:
    """A file that is open for writing: what is written reaches the system at once."""

    def __init__(self, disk: RecordedDisk, handle: Any):
        self.disk, self.handle = disk, handle

    def write(self, data: Any) -> int:
        self.handle.flush()
        written = data.encode() if isinstance(data, str) else bytes(data)

        def act() -> int:
            count = self.handle.write(data)
            self.handle.flush()
            return count

        return self.disk.write(self.handle.fileno(), written, self.handle.tell(), act)

    def truncate(self, size: int | None = None) -> int:
        self.handle.flush()
        length = self.handle.tell() if size is None else size
        file, path, _ = self.disk.open[self.handle.fileno()]
        return self.disk._do(Operation("truncate", path, file, length), lambda: self.handle.truncate(length))

    def close(self) -> None:
        if not self.handle.closed:
            self.disk.open.pop(self.handle.fileno(), None)
        self.handle.close()

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __iter__(self) -> Any:
        return iter(self.handle)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.handle, name)


Entry = int | None  # the file of a name; None is a folder
Tree = dict[str, bytes | None]  # path → contents; None is a folder


@dataclass
class Folder:
    """Names in a folder that are safe, and changes of them that are not yet."""

    safe: dict[str, Entry] = field(default_factory=dict)
    pending: list[dict[str, Entry | str]] = field(default_factory=list)  # name → file, or GONE

    def after(self, count: int) -> dict[str, Entry]:
        """Its names with the first so many of the changes: a file system writes them in their order."""
        names: dict[str, Any] = dict(self.safe)
        for change in self.pending[:count]:
            names.update(change)
        return {name: entry for name, entry in names.items() if entry != GONE}


GONE = "gone"


class Replay:
    """A disk after some operations: what it shows, and what it would show after a power cut."""

    def __init__(self) -> None:
        self.folders: dict[str, Folder] = {ROOT: Folder()}
        self.contents: dict[int, bytearray] = {}
        self.synced: dict[int, bytes] = {}

    def apply(self, op: Operation, *, torn: bool = False) -> None:
        """Do one operation; a torn write leaves one half."""
        where, name = os.path.split(op.path)
        if op.kind == "create":
            self.contents[op.file] = bytearray()
            self.folders[where].pending.append({name: op.file})
        elif op.kind == "write":
            data = op.data[: len(op.data) // 2] if torn else op.data
            self.contents[op.file][op.at : op.at + len(data)] = data
        elif op.kind == "truncate":
            del self.contents[op.file][op.at :]
        elif op.kind == "sync":
            self.synced[op.file] = bytes(self.contents[op.file])
        elif op.kind == "sync folder":
            folder = self.folders[op.path]
            folder.safe, folder.pending = folder.after(len(folder.pending)), []
        elif op.kind == "replace":
            assert where == os.path.dirname(op.to), "a rename from folder to folder is not modelled"
            self.folders[where].pending.append({name: GONE, os.path.basename(op.to): op.file})
        elif op.kind == "mkdir":
            self.folders[op.path] = Folder()
            self.folders[where].pending.append({name: None})
        else:
            self.folders[where].pending.append({name: GONE})
            if op.kind == "rmdir":
                del self.folders[op.path]

    def tree(self) -> Tree:
        """What a process that comes next sees."""
        return self._tree(lambda folder: len(folder.pending), lambda file: bytes(self.contents[file]))

    def after_power_cut(self, names: str, chance: random.Random | None = None) -> Tree:
        """What is there when the power is back.

        Args:
            names: Of the changes of names that were not synced, "none" is there, "all" are, or "some". Of contents that
                were not synced nothing is there, or, with "some", at times a part.
            chance: For "some".
        """

        def contents(file: int) -> bytes:
            safe, now = self.synced.get(file, b""), bytes(self.contents[file])
            if names == "some" and chance is not None:
                part = now[: (len(safe) + len(now)) // 2] if now.startswith(safe) else now
                return chance.choice((safe, now, part))
            return safe

        def count(folder: Folder) -> int:
            if names == "some" and chance is not None:
                return chance.randint(0, len(folder.pending))
            return len(folder.pending) if names == "all" else 0

        return self._tree(count, contents)

    def _tree(self, count: Callable[[Folder], int], contents: Callable[[int], bytes]) -> Tree:
        found: Tree = {}

        def walk(path: str) -> None:
            folder = self.folders.get(path)
            if folder is None:  # removed since; its name is still there
                return
            for name, entry in sorted(folder.after(count(folder)).items()):
                place = os.path.join(path, name)
                found[place] = None if entry is None else contents(entry)
                if entry is None:
                    walk(place)

        walk(ROOT)
        return found


def write_tree(tree: Tree, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for path, contents in tree.items():
        if contents is None:
            (folder / path).mkdir(parents=True, exist_ok=True)
        else:
            (folder / path).write_bytes(contents)


def read_tree(folder: Path, unseen: str = "claims.db") -> Tree:
    return {
        str(p.relative_to(folder)): None if p.is_dir() else p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if not p.name.startswith(unseen)
    }


def digest(tree: Tree) -> str:
    found = hashlib.sha256()
    for path, contents in sorted(tree.items()):
        found.update(f"{path}\0{-1 if contents is None else len(contents)}\0".encode())
        found.update(contents or b"")
    return found.hexdigest()
