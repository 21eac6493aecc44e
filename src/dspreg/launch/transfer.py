"""The files of a run on their way between its store and a machine that has no access to it.

Whatever is interrupted, the folder at home can be resumed from: a checkpoint is written after the records it marks, and
what it replaces is removed after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from dspreg.launch.messages import Files
from dspreg.runs.folder import OURS, RunFolder

CHECKPOINTS = "checkpoints/step-*.safetensors"
LAST = ("failure.json", "result.json")  # they say that a run has ended
SENT = (*OURS, "tensorboard/*", CHECKPOINTS, *LAST)


class FolderWatch:
    """What has changed in a folder since it was last packed.

    Args:
        folder: Of one run.
        known: What it holds now needs no packing.
    """

    def __init__(self, folder: Path, *, known: bool = False):
        self.folder = folder
        self.seen = {name: _stamp(folder / name) for name in _names(folder)} if known else {}

    def pack_changes(self) -> Files:
        now = {name: _stamp(self.folder / name) for name in _names(self.folder)}
        new = {name: (self.folder / name).read_bytes() for name, stamp in now.items() if self.seen.get(name) != stamp}
        self.seen = now
        return Files(new, tuple(_checkpoints(self.folder)))

    def has_new_checkpoint(self) -> bool:
        return any(name not in self.seen for name in _checkpoints(self.folder))


def pack(folder: Path) -> Files:
    """All of a run."""
    return FolderWatch(folder).pack_changes()


def unpack(files: Files, folder: RunFolder) -> None:
    """Bring a folder to where the packed one was, through its fence."""
    for name in sorted(files.new, key=_rank):
        folder.write(name, files.new[name])
    for name in _checkpoints(folder.path):
        if name not in files.checkpoints:
            folder.remove(name)
    if not files.checkpoints and (folder / "checkpoints").exists():
        with suppress(OSError):  # it holds a file that is not ours
            (folder / "checkpoints").rmdir()


def _rank(name: str) -> tuple[int, str]:
    if name == "run.json":
        return 0, name  # without it a folder is no run's
    if name in LAST:
        return 3, name
    return (2 if name.startswith("checkpoints/") else 1), name


def _names(folder: Path) -> Iterator[str]:
    for pattern in SENT:
        yield from (path.relative_to(folder).as_posix() for path in folder.glob(pattern))


def _checkpoints(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.glob(CHECKPOINTS))


def _stamp(path: Path) -> tuple[int, int, int]:
    about = path.stat()
    return about.st_ino, about.st_size, about.st_mtime_ns
