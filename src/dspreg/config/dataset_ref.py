"""What stands after `--dataset`: a name, `folder:PATH` or `index:FILE.csv`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal

from dspreg.errors import ConfigError
from dspreg.io.text import path_name

Kind = Literal["name", "folder", "index"]
PATHS: dict[Kind, str] = {"folder": "folder", "index": "file"}  # prefix → what its path leads to


@dataclass(frozen=True)
class DatasetRef:
    """A reference to a data set; whether it exists is for `dspreg.data.registry` to say.

    Attributes:
        kind: `"folder"` and `"index"` are the user's own images, given by a path; `"name"` is everything else: a
            data set we know, or the import path of the user's own class.
        target: The path, or the name.
    """

    kind: Kind
    target: str

    @classmethod
    def parse(cls, text: str) -> DatasetRef:
        """From text, such as `"folder:photos"`."""
        for kind, what in PATHS.items():
            if text.startswith(f"{kind}:"):
                path = text.removeprefix(f"{kind}:")
                if not path:
                    raise ConfigError(f"{text!r} names no {what}. Write {kind}:PATH.")
                return cls(kind, path)
        return cls("name", text)

    def __str__(self) -> str:
        return self.target if self.kind == "name" else f"{self.kind}:{self.target}"

    @property
    def is_path(self) -> bool:
        """Whether it is given by a path, and may be given a name of its own."""
        return self.kind != "name"

    def data_name(self, name: str | None = None) -> str:
        """What the data set is called in records and tables: its own name, or for a path `name` or the path's end."""
        if not self.is_path:
            return self.target
        last = path_name(self.target)
        return name or (PurePath(last).stem if self.kind == "index" else last)

    def check_name(self, name: str | None) -> None:
        """Raise a ConfigError if `name` is given to a data set that has its own."""
        if name is not None and not self.is_path:
            raise ConfigError(
                f"only folder:PATH and index:FILE take a name, and {self.target!r} has its own. Leave it out."
            )
