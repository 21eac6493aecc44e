"""What stands after `--dataset`: a name, `folder:PATH`, `index:FILE.csv` or `hf:owner/set`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal
from urllib.parse import quote, unquote

from dspreg.errors import ConfigError
from dspreg.io.text import path_name, shorten

Kind = Literal["name", "folder", "index", "hf"]
PATHS: dict[Kind, str] = {"folder": "folder", "index": "file"}  # prefix → what its path leads to
HUB = "hf:"
COLUMNS = ("image", "label", "domain")  # of the hub's data sets
REQUIRED = ("path", "label", "domain")  # columns of an index
OPTIONAL = ("group", "split", "weight")
SAYS: dict[Kind, tuple[str, ...]] = {"folder": ("group",), "index": (*REQUIRED, *OPTIONAL)}  # what may follow a path
ADDED = re.compile(r"\?(?:[a-z]+=[^&/\\]+)(?:&[a-z]+=[^&/\\]+)*$")  # quoted, so that no path has to change


@dataclass(frozen=True)
class DatasetRef:
    """A reference to a data set; whether it exists is for `dspreg.data.registry` to say.

    Attributes:
        kind: `"folder"` and `"index"` are the user's own images, given by a path; `"hf"` is a data set on the Hugging
            Face hub; `"name"` is everything else: a data set we know, or the import path of the user's own class.
        target: The path, or the name; of the hub, `owner/set@revision?label=COLUMN&…`.
        says: Of a path, what follows it as `?group=…&…`: which columns of an index are what, and in a folder the
            expression that finds the group of an image in its name. Part of every record, quoted as in an address.
    """

    kind: Kind
    target: str
    says: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> DatasetRef:
        """From text, such as `"folder:photos"`."""
        for kind, what in PATHS.items():
            if text.startswith(f"{kind}:"):
                path = text.removeprefix(f"{kind}:")
                if not path:
                    raise ConfigError(f"{text!r} names no {what}. Write {kind}:PATH.")
                bare, says = _split_added(kind, path)
                return cls(kind, bare, says)
        if text.startswith(HUB):
            ref = cls("hf", text.removeprefix(HUB))
            if not ref.repo:
                raise ConfigError(f"{text!r} names no data set. Write hf:owner/set, or hf:owner/set@revision.")
            ref.columns()
            return ref
        return cls("name", text)

    def __str__(self) -> str:
        return self.target if self.kind == "name" else f"{self.kind}:{self.target}{self.added}"

    @property
    def added(self) -> str:
        """What is said of a path, as it stands behind it: `?group=…`; nothing if nothing is."""
        text = "&".join(f"{key}={quote(value, safe='')}" for key, value in self.says)
        return f"?{text}" if text else ""

    @property
    def repo(self) -> str:
        """Of the hub: `owner/set`."""
        return self.target.partition("?")[0].partition("@")[0]

    @property
    def revision(self) -> str | None:
        """Of the hub: branch, tag or commit, if one is given."""
        return self.target.partition("?")[0].partition("@")[2] or None

    def columns(self) -> dict[str, str]:
        """Of the hub: which columns are the image, the label and the domain, as far as that is said."""
        found = {}
        for part in filter(None, self.target.partition("?")[2].split("&")):
            key, _, value = part.partition("=")
            if key not in COLUMNS or not value or key in found:
                raise ConfigError(f"{part!r} in {str(self)!r} is none of image=, label= and domain=COLUMN, each once")
            found[key] = unquote(value)
        return found

    def with_columns(self, given: dict[str, str]) -> DatasetRef:
        """The same with the columns that a user gave, which are then part of every record.

        Raises:
            ConfigError: It is no data set of the hub.
        """
        if self.kind != "hf":
            raise ConfigError(f"columns are chosen of data sets of the hub, hf:owner/set, and not of {str(self)!r}")
        columns = {**self.columns(), **given}
        text = "&".join(f"{key}={quote(columns[key], safe='')}" for key in COLUMNS if key in columns)
        return DatasetRef("hf", self.target.partition("?")[0] + (f"?{text}" if text else ""))

    def with_names(self, given: Mapping[str, str]) -> DatasetRef:
        """The same with what a user said about it: names of columns of an index, or the `group` of a folder's images.

        Raises:
            ConfigError: That can't be said of it.
        """
        known = SAYS.get(self.kind, ())
        for key in given:
            if key not in known:
                where = {"path": "index:FILE.csv", "group": "folder:PATH or index:FILE.csv"}.get(key, "index:FILE.csv")
                raise ConfigError(f"{key!r} can be said of {where}, and not of {str(self)!r}")
        every = {**dict(self.says), **given}
        return DatasetRef(self.kind, self.target, tuple((key, every[key]) for key in known if key in every))

    @property
    def is_path(self) -> bool:
        """Whether it is given by a path, and may be given a name of its own."""
        return self.kind in PATHS

    def data_name(self, name: str | None = None) -> str:
        """What the data set is called in records and tables: its own name, or for a path `name` or the path's end."""
        if self.kind == "hf":
            return self.repo
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


def parse_columns(text: str) -> dict[str, str]:
    """`"path=filename,label=class"` → the column of the file that each of ours is."""
    known, found = (*REQUIRED, *OPTIONAL), {}
    for part in text.split(","):
        ours, equals, theirs = (each.strip() for each in part.partition("="))
        if not equals or not theirs or ours not in known or ours in found:
            raise ConfigError(
                f"--columns {shorten(text)}: {part!r} is not understood; wanted OURS=YOURS, each once, with ours one "
                f"of {', '.join(known)}: path=filename,label=class,domain=site"
            )
        found[ours] = theirs
    return found


def check_group(regex: str) -> re.Pattern[str]:
    """The expression that finds an image's group in its name."""
    try:
        return re.compile(regex)
    except (re.error, RecursionError, OverflowError) as error:
        raise ConfigError(f"--group {shorten(regex)} is no regular expression: {error}") from None


def _split_added(kind: Kind, path: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """A path, and what follows it. A question mark that begins nothing of ours belongs to the path."""
    found = ADDED.search(path)
    if found is None:
        return path, ()
    pairs = [part.partition("=")[::2] for part in found[0][1:].split("&")]
    names = [key for key, _ in pairs]
    if not set(names) <= set(SAYS[kind]) or len(set(names)) < len(names) or not path[: found.start()]:
        return path, ()
    return path[: found.start()], tuple((key, unquote(value)) for key, value in pairs)
