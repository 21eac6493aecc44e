"""Data sets that are folders of images: `root/domain/class/…/image`, and which image files lie below a folder.

Files are in the order of torchvision's `ImageFolder`. The order is part of the protocol, because DomainBed splits a
domain by position.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dspreg.data.base import DomainDataset
from dspreg.data.images import Images
from dspreg.errors import DataError, Notice, ResourceError, missing_resource
from dspreg.io.text import join_few, path_name, plural

READ = (".jpg", ".jpeg", ".png", ".bmp", ".webp")
UNREAD = (".ppm", ".pgm", ".tif", ".tiff", ".gif", ".heic", ".avif", ".jp2", ".jxl", ".svg")
LAYOUT = "Wanted: ROOT/domain/class/image.jpg"
SPLITS = {"train", "training", "val", "valid", "validation", "test", "testing", "crossval", "full"}


class ImageFolders(DomainDataset):
    """`root/domain/class/…/image`, read once at the start.

    There is one list of classes for all domains, so that a class missing in one of them moves no label. Within a
    domain the order is by class, and within a class that of torchvision's `ImageFolder`.

    Attributes:
        folder: The one that contains the domains.
    """

    folder: Path

    def read(self) -> None:
        """List the files of `domains` and `classes` below `folder`."""
        self._domains: dict[str, Images] = {}
        found = Found()
        for domain in self.domains:
            files: list[Path] = []
            labels: list[int] = []
            for label, name in enumerate(self.classes):
                folder = self.folder / domain / name
                if folder.is_dir():
                    below = images_below(folder)
                    found += below
                    files += below.images
                    labels += [label] * len(below.images)
            # Cut from the text, not Path.relative_to: a data set may have half a million files.
            start = len(os.fspath(self.folder / domain)) - len(domain)
            names = [os.fspath(file)[start:].replace(os.sep, "/") for file in files]
            for name in names:
                check_name(name)
            self._domains[domain] = Images(files, names, labels, self.classes)
            if not files:
                raise DataError(
                    f"the domain {domain!r} of {self.name} has no images: nothing in {self.folder / domain} ends in "
                    f".jpg, .png, .webp or .bmp. {LAYOUT}. Add its images, or remove the folder."
                )
        self.notices += (*rare_classes(self._domains, self.classes), *self._oddities(found), *self.mismatches())
        for notice in self.notices:
            warnings.warn(f"{self.name}: {notice}", Notice, stacklevel=3)

    def domain(self, name: str) -> Images:
        self.check_domain(name)
        images = self._domains[name]
        images.cache = self.cache
        return images

    def mismatches(self) -> list[str]:
        """How the numbers of images differ from those published, in sentences. Nothing is known here."""
        return []

    def variant(self) -> str:
        """Which of several versions in circulation this is, if there are several."""
        return ""

    def _oddities(self, found: Found) -> Iterator[str]:
        for paths, what in (
            (found.unread, "of a kind that is not read (convert to PNG or JPEG)"),
            (found.other, "not images by their extension"),
            (found.hidden, "hidden (a name that starts with a dot)"),
        ):
            if paths:
                first = paths[0].relative_to(self.folder).as_posix()
                yield f"ignored {plural(len(paths), 'file')} {what}, e.g. {first}"
        if found.folders:
            yield "folders named like images: " + join_few(
                [p.relative_to(self.folder).as_posix() for p in found.folders]
            )


class Folder(ImageFolders):
    """Your own images: `folder:PATH`, with `PATH/domain/class/…/image`.

    Input (x):
        JPEG, PNG, WebP or BMP of any size, read as RGB.

    Label (y):
        The folder within the domain. Classes are those of all domains together, sorted by name.

    Domain:
        The sub-directories of PATH, sorted by name. Hidden ones are ignored.

    Args:
        root: PATH.
        name: Of the data set in records and tables; the last part of PATH unless given.
    """

    own = True

    def __init__(self, root: str | Path, name: str | None = None) -> None:
        super().__init__(root)
        self.folder = Path(root)
        self.name = name or path_name(self.folder)
        if not self.folder.is_dir():
            what = "is not a folder" if self.folder.exists() else "does not exist"
            raise DataError(f"{self.folder} {what}. {LAYOUT}; give the path of ROOT.")
        self.domains = tuple(folders_in(self.folder))
        if not self.domains:
            direct = images_in(self.folder)
            lies = f"{plural(len(direct), 'image')} in it directly, e.g. {direct[0]}" if direct else "nothing in it"
            raise DataError(f"{self.folder} has no sub-folders to be domains, and {lies}. {LAYOUT}.")
        self._check_depth()
        with_images, empty = self._classes()
        self.classes = tuple(with_images)
        if empty and with_images:
            self.notices += (f"class folders without an image in any domain are left out: {join_few(empty)}",)
        self._check_nesting()
        self.read()

    def _check_depth(self) -> None:
        loose = {domain: images_in(self.folder / domain) for domain in self.domains}
        loose = {domain: names for domain, names in loose.items() if names}
        if not loose:
            return
        domain, names = next(iter(loose.items()))
        example = self.folder / domain / names[0]
        if not any(folders_in(self.folder / d) for d in self.domains):
            raise DataError(
                f"{self.folder} looks like class/image, one level too few: {example} lies directly in {domain!r}. "
                f"{LAYOUT}. Put {join_few([*self.domains], 3)} into one folder per domain, and give the folder above "
                "those."
            )
        raise DataError(
            f"images without a class: {plural(len(names), 'image')} directly in the domain folder "
            f"{self.folder / domain}, e.g. {names[0]}. {LAYOUT}. Move them into folders of their classes, or away."
        )

    def _classes(self) -> tuple[list[str], list[str]]:
        places: dict[str, list[Path]] = {}
        for domain in self.domains:
            for name in folders_in(self.folder / domain):
                places.setdefault(name, []).append(self.folder / domain / name)
        full = {name: any(images_in(p) or images_below(p).images for p in paths) for name, paths in places.items()}
        return sorted(name for name in full if full[name]), sorted(name for name in full if not full[name])

    def _check_nesting(self) -> None:
        """Is there a folder too many between? Folders within classes are fine, so only clear cases are refused."""
        places = [self.folder / d / c for d in self.domains for c in self.classes if (self.folder / d / c).is_dir()]
        if not places or any(images_in(place) for place in places):
            return
        if len(self.domains) == 1:
            inner = self.folder / self.domains[0]
            raise DataError(
                f"{self.folder} has one level too many: its only sub-folder is {self.domains[0]!r}, and no image lies "
                f"directly in {join_few([*self.classes], 3)}. {LAYOUT}. Did you mean {inner}?"
            )
        if {name.lower() for name in self.classes} <= SPLITS:
            raise DataError(
                f"{self.folder} has one level too many: {join_few([*self.classes])} would be the classes, and look "
                f"like splits. {LAYOUT}. Splits are drawn here, so put the images of all of them together."
            )
        self.notices += (
            f"no image lies directly in a class folder, only deeper. Taken as classes: {join_few([*self.classes])}",
        )


def rare_classes(domains: Mapping[str, Images], classes: Sequence[str]) -> Iterator[str]:
    """Which classes have no image or a single one in a domain, in sentences."""
    for domain, images in domains.items():
        counted = Counter(images.labels)
        for number, what in ((0, "has no images of"), (1, "has a single image of")):
            names = [name for label, name in enumerate(classes) if counted[label] == number]
            if names:
                yield f"the domain {domain!r} {what} {plural(len(names), 'class', 'classes')}: {join_few(names)}"


def check_name(name: str) -> None:
    """Raise a DataError unless a file's name can be written down in records."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise DataError(f"the file name {name!r} is not valid UTF-8. Rename the file.") from None


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
    for place, names in sorted(_walk(folder)):  # by the text of the path, as in torchvision, not by its parts
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


def _walk(folder: Path) -> list[tuple[str, list[str]]]:
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
    if missing := missing_resource(error):
        raise ResourceError(f"the folder {error.filename} can't be read: {missing}") from error
    raise DataError(
        f"the folder {error.filename} can't be read ({error.strerror}). Check that it exists and that you may read it."
    ) from None
