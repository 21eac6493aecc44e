"""Transfer of a run's files between its store and a machine without access to it.

The folder in the store can be resumed after any interruption: a checkpoint is written after the records it refers to,
and older checkpoints are removed after it. Only files that a run has are transferred, under the names they have in its
folder: links that lead out of it are not followed, and other names are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path

from dspreg.errors import IntegrityError
from dspreg.io.atomic_files import read_regular_file, require_folder
from dspreg.launch.messages import Files
from dspreg.runs.folder import OURS, TRACKING, RunFolder

CHECKPOINTS = "checkpoints/step-*.safetensors"
LAST = ("failure.json", "result.json")  # they mark the end of a run
SENT = (*OURS, TRACKING, "tensorboard/*", CHECKPOINTS, *LAST)


class FolderWatch:
    """Tracks which files of a folder changed since they were last packed.

    Args:
        folder: Of one run.
        known: Whether the receiver has the present files already.
    """

    def __init__(self, folder: Path, *, known: bool = False):
        self.folder = folder
        self.seen = {name: _stamp(folder / name) for name in _names(folder)} if known else {}

    def pack_changes(self) -> Files:
        now = {name: _stamp(self.folder / name) for name in _names(self.folder)}
        changed = [name for name, stamp in now.items() if self.seen.get(name) != stamp]
        new = {name: read_regular_file(self.folder / name) for name in changed}
        self.seen = now
        return Files(new, tuple(_checkpoints(self.folder)))

    def has_news(self) -> bool:
        """Whether there is something that must not be lost: a checkpoint, or the key under which trackers know it."""
        keys = [TRACKING] if (self.folder / TRACKING).exists() else []
        return any(name not in self.seen for name in (*keys, *_checkpoints(self.folder)))


def pack(folder: Path) -> Files:
    """All files of a run."""
    RunFolder(folder).check_parts()
    return FolderWatch(folder).pack_changes()


def unpack(files: Files, folder: RunFolder) -> None:
    """Update a folder to the packed state, through its fence.

    Raises:
        IntegrityError: A name is not that of a run's file; nothing was written.
    """
    for name in files.new:
        if not _is_sent(name):
            raise IntegrityError(f"{name[:200]!r} was received for {folder.path}; a run has no such file")
    for name in sorted(files.new, key=_rank):
        folder.write(name, files.new[name])
    for name in _checkpoints(folder.path):
        if name not in files.checkpoints:
            folder.remove(name)
    if not files.checkpoints and (folder / "checkpoints").exists():
        with suppress(OSError):  # it holds files of others
            (folder / "checkpoints").rmdir()


def _rank(name: str) -> tuple[int, str]:
    if name == "run.json":
        return 0, name  # without it a folder is not a run
    if name in LAST:
        return 3, name
    return (2 if name.startswith("checkpoints/") else 1), name


def _is_sent(name: str) -> bool:
    """Whether a name is one of `SENT`; no part of it leads elsewhere."""
    parts = name.split("/")
    if any(part in ("", ".", "..") or "\\" in part or "\0" in part for part in parts):
        return False
    patterns = (pattern.split("/") for pattern in SENT)
    return any(len(each) == len(parts) and all(map(fnmatchcase, parts, each)) for each in patterns)


def _names(folder: Path) -> Iterator[str]:
    for pattern in SENT:
        require_folder((folder / pattern).parent)
        yield from (path.relative_to(folder).as_posix() for path in folder.glob(pattern))


def _checkpoints(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.glob(CHECKPOINTS))


def _stamp(path: Path) -> tuple[int, int, int]:
    about = path.lstat()
    return about.st_ino, about.st_size, about.st_mtime_ns
