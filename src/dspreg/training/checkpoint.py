"""Checkpoints: the state of a run after some step, verified when read.

The name of a file contains its SHA-256, so one rename makes it both present and verifiable: neither `.pt` nor
safetensors detects a flipped bit. The file also names the run and the step it belongs to.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from dspreg.errors import IntegrityError, Notice
from dspreg.io.atomic_files import (
    Fence,
    make_folder,
    read_regular_file,
    remove,
    remove_partial_files,
    require_folder,
    sha256,
    write,
)
from dspreg.training.serialization import pack, unpack

FORMAT = "dspreg.checkpoint/1"
KEPT = 2  # the newest, and the previous one in case the newest is damaged


class Checkpoints:
    """The checkpoints of one run.

    Args:
        folder: Created with the first checkpoint.
        run: Id of the run; files of other runs are refused.
        fence: Entered around every change of a file; the fence of the run's folder.
    """

    def __init__(self, folder: Path, run: str, *, fence: Fence = nullcontext):
        self.folder, self.run, self.fence = folder, run, fence

    def save(self, step: int, state: Any) -> None:
        """Write a checkpoint, and only then remove older ones, and damaged ones of later steps."""
        require_folder(self.folder)
        make_folder(self.folder)
        data = pack(state, format=FORMAT, run=self.run, step=str(step))
        new = self.folder / f"step-{step:08d}-{sha256(data)}.safetensors"
        write(new, data, fence=self.fence)
        others = [path for path in self.files() if path != new]
        older = [path for path in others if path.name < f"step-{step:08d}-"]
        useless = [path for path in others if path not in older]  # including one of the same step before its evaluation
        for path in [*useless, *older[KEPT - 1 :]]:
            remove(path, fence=self.fence)

    def files(self) -> list[Path]:
        """Newest first. A folder that is a link would be another run's, and its files removed."""
        require_folder(self.folder)
        return sorted(self.folder.glob("step-*.safetensors"), reverse=True)

    def good(self) -> Iterator[tuple[int, Any]]:
        """Step and state of every intact checkpoint, newest first; damaged ones are reported and skipped."""
        require_folder(self.folder)
        if self.folder.exists():
            remove_partial_files(self.folder, fence=self.fence)
        for path in self.files():
            try:
                yield self.read(path)
            except IntegrityError as error:
                warnings.warn(f"{error}; trying the checkpoint before it", Notice, stacklevel=2)

    def read(self, path: Path) -> tuple[int, Any]:
        """The state in a file, or an IntegrityError."""
        try:
            number, expected = path.stem.split("-")[1:]
            step = int(number)
            data = read_regular_file(path)
        except (ValueError, OSError) as error:
            raise IntegrityError(f"{path} can't be read: {error}") from error
        if sha256(data) != expected:
            raise IntegrityError(f"{path} is damaged: its SHA-256 is not the one in its name")
        state, about = unpack(data, str(path))
        if about.get("format") != FORMAT:
            raise IntegrityError(f"{path} has the format {about.get('format')!r}; this version reads {FORMAT!r}")
        if about.get("run") != self.run or about.get("step") != str(step):
            raise IntegrityError(f"{path} belongs to another run or step")
        return step, state

    def clear(self) -> None:
        """Remove all checkpoints of a finished run."""
        for path in self.files():
            remove(path, fence=self.fence)
        if self.folder.exists():
            remove_partial_files(self.folder, fence=self.fence)
            with suppress(OSError):  # it holds files of others; the run is finished nevertheless
                self.folder.rmdir()
