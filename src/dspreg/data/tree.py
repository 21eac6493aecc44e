"""Which image files lie below a folder, in the order of torchvision's `ImageFolder`.

The order is part of the protocol, because DomainBed splits a domain by position.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from dspreg.errors import DataError

READ = (".jpg", ".jpeg", ".png", ".bmp", ".webp")
UNREAD = (".ppm", ".pgm", ".tif", ".tiff", ".gif", ".heic", ".avif", ".jp2", ".jxl", ".svg")


@dataclass
class Found:
    """Files below a folder. What is not an image to us is kept apart by reason."""

    images: list[Path] = field(default_factory=list)
    unread: list[Path] = field(default_factory=list)  # images by extension, of a kind that is not decoded
    other: list[Path] = field(default_factory=list)
    hidden: list[Path] = field(default_factory=list)  # e.g. ._pic.jpg of macOS, .ipynb_checkpoints/pic.jpg
    folders: list[Path] = field(default_factory=list)  # folders named like images

    def __iadd__(self, more: Found) -> Found:
        for kind, paths in vars(more).items():
            getattr(self, kind).extend(paths)
        return self


def images_below(folder: Path) -> Found:
    """All files below `folder`, at any depth."""
    found = Found()
    for place, names in sorted(_walked(folder)):  # by the text of the path, as in torchvision, not by its parts
        hidden = any(part.startswith(".") for part in Path(place).relative_to(folder).parts)
        if Path(place) != folder and place.lower().endswith(READ):
            found.folders.append(Path(place))
        for name in sorted(names):
            kept = found.hidden if hidden or name.startswith(".") else getattr(found, _kind(name))
            kept.append(Path(place, name))
    return found


def _kind(name: str) -> str:
    lower = name.lower()
    return "images" if lower.endswith(READ) else "unread" if lower.endswith(UNREAD) else "other"


def _walked(folder: Path) -> list[tuple[str, list[str]]]:
    seen: set[tuple[int, int]] = set()
    result = []
    for place, _, names in os.walk(folder, onerror=_refuse, followlinks=True):
        at = os.stat(place)
        if (at.st_dev, at.st_ino) in seen:  # links back to a parent would be followed for ever
            raise DataError(
                f"{place} is a link to a folder that was reached before, so that its images would count twice. "
                f"Remove the link."
            )
        seen.add((at.st_dev, at.st_ino))
        result.append((place, names))
    return result


def folders_in(folder: Path) -> list[str]:
    """Names of the sub-directories, sorted, without hidden ones."""
    return sorted(entry.name for entry in _entries(folder) if os.path.isdir(entry) and not entry.name.startswith("."))


def images_in(folder: Path) -> list[str]:
    """Names of the image files that lie directly in a folder, sorted."""
    return sorted(
        entry.name
        for entry in _entries(folder)
        if not os.path.isdir(entry) and not entry.name.startswith(".") and entry.name.lower().endswith(READ)
    )


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        _refuse(error)
        raise


def _refuse(error: OSError) -> None:
    raise DataError(
        f"the folder {error.filename} can't be read ({error.strerror}). Check that it exists and that you may read it."
    ) from None
