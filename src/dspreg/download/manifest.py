"""Which files a data set has: path, size and SHA-256 of each, in a text file that other tools can read.

The first line says what it is, the second holds facts as JSON, then there is a line per file, sorted by path:

    dspreg manifest 1
    {"dataset": "PACS", "made": "at the first verified download", "source": "…"}
    SHA-256<TAB>size<TAB>path
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspreg.errors import IntegrityError
from dspreg.io.atomic_files import read_regular_file, sha256_of_file, write
from dspreg.io.text import join_few, plural

NAME = "manifest.tsv"
FIRST = "dspreg manifest 1"
LINE = re.compile(r"([0-9a-f]{64})\t(\d{1,15})\t([^\t\n\0\\]+)")
LARGEST = 2**28  # bytes of the file; DomainNet's has 70 MB


@dataclass(frozen=True)
class File:
    sha256: str
    size: int


@dataclass(frozen=True)
class Manifest:
    """Files by their paths, which are relative and have slashes.

    Attributes:
        facts: Name of the data set, where it came from, who made the list.
        files: By path, sorted.
    """

    facts: Mapping[str, Any]
    files: Mapping[str, File]

    def text(self) -> str:
        lines = [FIRST, json.dumps(self.facts, ensure_ascii=False, sort_keys=True)]
        lines += [f"{each.sha256}\t{each.size}\t{path}" for path, each in sorted(self.files.items())]
        return "\n".join(lines) + "\n"

    def write(self, path: Path) -> None:
        write(path, self.text().encode())

    def differences(self, other: Manifest) -> list[str]:
        """How `other` differs from this one, in sentences."""
        found = []
        for paths, what in (
            (sorted(self.files.keys() - other.files.keys()), "missing"),
            (sorted(other.files.keys() - self.files.keys()), "too many"),
            (sorted(p for p in self.files.keys() & other.files.keys() if self.files[p] != other.files[p]), "changed"),
        ):
            if paths:
                found.append(f"{plural(len(paths), 'file')} {what}: {join_few(paths, 3)}")
        return found


def take_manifest(folder: Path, facts: Mapping[str, Any]) -> Manifest:
    """Read every file below a folder, but for the list itself."""
    return Manifest(facts, {path: _file(folder / path) for path in paths_below(folder)})


def _file(path: Path) -> File:
    return File(sha256_of_file(path), path.stat().st_size)


def paths_below(folder: Path) -> Iterable[str]:
    """Regular files, sorted, relative to the folder."""
    found = []
    for place, _, names in os.walk(folder):
        found += [Path(place, name).relative_to(folder).as_posix() for name in names]
    return sorted(path for path in found if path != NAME)


def read_manifest(path: Path) -> Manifest:
    """What a file lists.

    Raises:
        IntegrityError: It is damaged, or no manifest.
        FileNotFoundError: It is not there.
    """
    return parse_manifest(read_regular_file(path, limit=LARGEST), path)


def parse_manifest(data: bytes, path: str | Path) -> Manifest:
    try:
        first, facts, *lines = data.decode().removesuffix("\n").split("\n")
        if first != FIRST:
            raise ValueError(f"its first line is not {FIRST!r}")
        files = {}
        for line in lines:
            found = LINE.fullmatch(line)
            if not found or found[3] in files or {"", ".", ".."} & set(found[3].split("/")):
                raise ValueError(f"{line[:100]!r} is no line of a manifest, or is there twice")
            files[found[3]] = File(found[1], int(found[2]))
        about = json.loads(facts)
        if not isinstance(about, dict):
            raise ValueError("its second line is no object of JSON")
        return Manifest(about, files)
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{path} is damaged, or no manifest: {error}") from error


def changed_sizes(folder: Path, manifest: Manifest) -> list[str]:
    """Files of a manifest that are missing or have another size; reads no contents."""
    wrong = []
    for path, each in manifest.files.items():
        try:
            if os.lstat(folder / path).st_size != each.size:
                wrong.append(path)
        except OSError:
            wrong.append(path)
    return wrong
