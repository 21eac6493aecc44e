"""Checkpoints: a run as it was after some step, verified when read.

The name of a file carries its SHA-256, so that one rename makes it both present and complete: neither `.pt` nor
safetensors notices a flipped bit by itself. Inside stands which run and step it belongs to.
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
KEPT = 2  # the newest, and the one before in case the newest is damaged


class Checkpoints:
    """Those of one run.

    Args:
        folder: Made when the first is saved.
        run: Identifies the run; a file of another one is refused.
        fence: Entered around every change of a file; that of the run's folder.
    """

    def __init__(self, folder: Path, run: str, *, fence: Fence = nullcontext):
        self.folder, self.run, self.fence = folder, run, fence

    def save(self, step: int, state: Any) -> None:
        """Write the new one, and only then drop old ones; those of later steps too, passed over as damaged."""
        require_folder(self.folder)
        make_folder(self.folder)
        data = pack(state, format=FORMAT, run=self.run, step=str(step))
        new = self.folder / f"step-{step:08d}-{sha256(data)}.safetensors"
        write(new, data, fence=self.fence)
        others = [path for path in self.files() if path != new]
        older = [path for path in others if path.name < f"step-{step:08d}-"]
        useless = [path for path in others if path not in older]  # the same step before its evaluation among them
        for path in [*useless, *older[KEPT - 1 :]]:
            remove(path, fence=self.fence)

    def files(self) -> list[Path]:
        """Newest first. A folder that is a link would be another run's, and its files removed."""
        require_folder(self.folder)
        return sorted(self.folder.glob("step-*.safetensors"), reverse=True)

    def good(self) -> Iterator[tuple[int, Any]]:
        """Step and state of every sound checkpoint, newest first; damaged ones are named and passed over."""
        require_folder(self.folder)
        if self.folder.exists():
            remove_partial_files(self.folder, fence=self.fence)
        for path in self.files():
            try:
                yield self.read(path)
            except IntegrityError as error:
                warnings.warn(f"{error}; trying the checkpoint before it", Notice, stacklevel=2)

    def read(self, path: Path) -> tuple[int, Any]:
        """One file, or an IntegrityError."""
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
        """The run is complete: nothing to resume."""
        for path in self.files():
            remove(path, fence=self.fence)
        if self.folder.exists():
            remove_partial_files(self.folder, fence=self.fence)
            with suppress(OSError):  # it holds a file that is not ours; the run is complete all the same
                self.folder.rmdir()
