"""Data sets that are folders of images: `root/domain/class/…/image`, and which image files lie below a folder.

Files are in the order of torchvision's `ImageFolder`. The order is part of the protocol, because DomainBed splits a
domain by position.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dspreg.config.dataset_ref import check_group
from dspreg.config.reading import FIRST_KINDS, LATER_KINDS, OWN_READING, Reading
from dspreg.data.annotations import Annotations
from dspreg.data.base import DomainDataset
from dspreg.data.findings import Finding, Severity, name_collisions, odd_labels, refuse, wide_groups
from dspreg.data.images import Images
from dspreg.errors import ConfigError, DataError, Notice, ResourceError, missing_resource
from dspreg.io.text import join_few, path_name, plural

READ = FIRST_KINDS + LATER_KINDS
UNREAD = (
    ".ppm", ".pgm", ".jp2", ".j2k", ".jxl", ".svg", ".eps", ".psd", ".raw", ".cr2", ".nef", ".dng", ".arw", ".exr",
    ".hdr", ".npy", ".nii", ".mha",
)  # fmt: skip
LAYOUT = "Wanted: ROOT/domain/class/image.jpg"
SPLITS = {"train", "training", "val", "valid", "validation", "test", "testing", "crossval", "full"}
LEFT_BEHIND = {  # by systems and programs, in small letters
    "__macosx", ".ds_store", ".appledouble", ".spotlight-v100", ".trashes", ".fseventsd", "thumbs.db", "ehthumbs.db",
    "desktop.ini", "$recycle.bin", "system volume information", "lost+found", "@eadir", ".thumbnails", ".directory",
}  # fmt: skip


class ImageFolders(DomainDataset):
    """`root/domain/class/…/image`, read once at the start.

    There is one list of classes for all domains, so that a class missing in one of them moves no label. Within a
    domain the order is by class, and within a class that of torchvision's `ImageFolder`.

    Attributes:
        folder: The one that contains the domains.
        lenient: Whether what is at fault is left out and kept as `faults`.
    """

    folder: Path
    lenient = False

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
                    below = self._below(folder)
                    found += below
                    files += below.images
                    labels += [label] * len(below.images)
            # Cut from the text, not Path.relative_to: a data set may have half a million files.
            start = len(os.fspath(self.folder / domain)) - len(domain)
            names = [os.fspath(file)[start:].replace(os.sep, "/") for file in files]
            images = Images(files, names, labels, self.classes)
            kept = [i for i, name in enumerate(names) if self._is_sound(check_name, name)]
            self._domains[domain] = images if len(kept) == len(names) else images.select(kept)
            if not kept:
                kinds, others = self.reading.kinds, _others_there(self.folder / domain, self.reading)
                self._at_fault(
                    "empty domain",
                    f"the domain {domain!r} of {self.name} has no images: nothing in {self.folder / domain} ends in "
                    f"{', '.join(kinds)}.{others} {LAYOUT}. Add its images, or remove the folder.",
                )
        if not self.lenient:
            refuse(self.faults)
        self.domains = tuple(name for name in self.domains if len(self._domains[name]) or not self.lenient)
        self.annotate()
        self.findings += tuple(self._oddities(found))
        said = [each.title for each in self.findings]
        self.notices += (*rare_classes(self.in_domains(), self.classes), *said, *self.mismatches())
        for notice in self.notices:
            warnings.warn(f"{self.name}: {notice}", Notice, stacklevel=3)

    def domain(self, name: str) -> Images:
        self.check_domain(name)
        images = self._domains[name]
        images.cache, images.reading = self.cache, self.reading
        return images

    def in_domains(self) -> dict[str, Images]:
        """All images, by domain."""
        return {name: self._domains[name] for name in self.domains}

    def annotate(self) -> None:
        """Say of the images what their names say; nothing here."""

    def _below(self, folder: Path) -> Found:
        """The files of a class; none where they can't be listed, which is a fault."""
        try:
            return images_below(folder, self.reading.kinds, LEFT_BEHIND if self.own else ())
        except DataError as error:
            self._at_fault("folder", str(error))
            return Found()

    def _is_sound(self, check: Callable[[str], None], name: str) -> bool:
        try:
            check(name)
        except DataError as error:
            self._at_fault("name", str(error))
            return False
        return True

    def _at_fault(self, kind: str, title: str) -> None:
        self.faults += (Finding("error", kind, title),)

    def mismatches(self) -> list[str]:
        """How the numbers of images differ from those published, in sentences. Nothing is known here."""
        return []

    def variant(self) -> str:
        """Which of several versions in circulation this is, if there are several."""
        return ""

    def _oddities(self, found: Found) -> Iterator[Finding]:
        unread = f"of a kind that is not read ({count_kinds(found.unread)}; convert to PNG or JPEG)"
        for paths, kind, what in (
            (found.unread, "kind", unread),
            (found.other, "no image", "not images by their extension"),
            (found.hidden, "hidden", "hidden (a name that starts with a dot)"),
            (found.left_behind, "left behind", "that systems and programs leave behind"),
        ):
            if paths:
                names = tuple(path.relative_to(self.folder).as_posix() for path in paths)
                severity: Severity = "warning" if kind == "kind" else "note"
                yield Finding(severity, kind, f"ignored {plural(len(paths), 'file')} {what}, e.g. {names[0]}", names)
        if found.folders:
            names = tuple(path.relative_to(self.folder).as_posix() for path in found.folders)
            yield Finding("note", "folder", f"folders named like images: {join_few(names)}", names)


class Folder(ImageFolders):
    """Your own images: `folder:PATH`, with `PATH/domain/class/…/image`.

    Input (x):
        JPEG, PNG, WebP, BMP, TIFF, GIF (the first frame), AVIF, or DICOM (with pydicom), of any size; turned as EXIF
        says, and on white where they are transparent.

    Label (y):
        The folder within the domain. Classes are those of all domains together, sorted by name.

    Domain:
        The sub-directories of PATH, sorted by name. Hidden ones are ignored, and those that systems leave behind.

    Args:
        root: PATH.
        name: Of the data set in records and tables; the last part of PATH unless given.
        group: A regular expression that finds in an image's path within PATH the group it belongs to (patient, part,
            video): its first group, or all that matches. A group is never on both sides of a split.
        lenient: Leave out what is at fault, and keep it as `faults`.
    """

    own = True
    reading = OWN_READING

    def __init__(
        self, root: str | Path, name: str | None = None, group: str | None = None, *, lenient: bool = False
    ) -> None:
        super().__init__(root)
        self.folder, self.group, self.lenient = Path(root), group, lenient
        self.name = name or path_name(self.folder)
        self._find()

    def read_as(self, reading: Reading) -> None:
        kinds, self.reading = self.reading.kinds, reading
        listed = (Path(name).suffix.lower() for images in self._domains.values() for name in images.names)
        if kinds != reading.kinds and any(suffix in LATER_KINDS for suffix in listed):
            self._find()

    def _find(self) -> None:
        self.notices, self.findings, self.faults = (), (), ()
        if not self.folder.is_dir():
            what = "is not a folder" if self.folder.exists() else "does not exist"
            raise DataError(f"{self.folder} {what}. {LAYOUT}; give the path of ROOT.")
        self.domains = tuple(self._folders_in(self.folder))
        if not self.domains:
            direct = images_in(self.folder, self.reading.kinds)
            lies = f"{plural(len(direct), 'image')} in it directly, e.g. {direct[0]}" if direct else "no image in it"
            others = _others_there(self.folder, self.reading)
            raise DataError(f"{self.folder} has no sub-folders to be domains, and {lies}.{others} {LAYOUT}.")
        self._check_depth()
        with_images, empty = self._classes()
        self.classes = tuple(with_images)
        if empty and with_images:
            title = f"class folders without an image in any domain are left out: {join_few(empty)}"
            self.findings += (Finding("note", "empty class", title, tuple(empty)),)
        self._check_nesting()
        self.read()

    def annotate(self) -> None:
        """Groups, by `group`."""
        if self.group is None:
            return
        finds, nameless = check_group(self.group), []
        for images in self._domains.values():
            found = [finds.search(name) for name in images.names]
            groups = ["" if m is None else (m[1] if finds.groups else m[0]) or "" for m in found]
            nameless += [name for name, group in zip(images.names, groups, strict=True) if not group]
            images.annotations = Annotations(groups=tuple(groups))
        number = sum(map(len, self._domains.values()))
        if len(nameless) == number:
            raise ConfigError(f"--group {self.group!r} finds a group in no path, such as {nameless[0]!r}")
        if nameless:
            title = f"--group finds no group in the path of {plural(len(nameless), 'image')} of {number:,}, e.g. "
            title += f"{nameless[0]}: each stands by itself"
            self.findings += (Finding("warning", "no group", title, tuple(nameless)),)

    def _oddities(self, found: Found) -> Iterator[Finding]:
        places = [self.folder, *(self.folder / domain for domain in self.domains)]
        found.left_behind += [place / entry.name for place in places for entry in _entries(place)
                              if is_left_behind(entry.name)]  # fmt: skip
        yield from super()._oddities(found)
        loose = images_in(self.folder)
        if loose:
            title = f"{plural(len(loose), 'image lies', 'images lie')} directly in {self.folder}, in no domain, and "
            title += f"{'is' if len(loose) == 1 else 'are'} not used: {join_few(loose, 3)}"
            yield Finding("warning", "no domain", title, tuple(loose))
        yield from name_collisions("domain", self.domains)
        yield from name_collisions("class", self.classes)
        yield from odd_labels(self.classes)
        yield from wide_groups(self.in_domains())

    def _folders_in(self, folder: Path) -> list[str]:
        return [name for name in folders_in(folder) if not is_left_behind(name)]

    def _check_depth(self) -> None:
        loose = {domain: images_in(self.folder / domain, self.reading.kinds) for domain in self.domains}
        loose = {domain: names for domain, names in loose.items() if names}
        if not loose:
            return
        if not any(self._folders_in(self.folder / d) for d in self.domains):
            domain, names = next(iter(loose.items()))
            raise DataError(
                f"{self.folder} looks like class/image, one level too few: {self.folder / domain / names[0]} lies "
                f"directly in {domain!r}. {LAYOUT}. Put {join_few([*self.domains], 3)} into one folder per domain, and "
                "give the folder above those."
            )
        for domain, names in loose.items():
            self._at_fault(
                "no class",
                f"images without a class: {plural(len(names), 'image')} directly in the domain folder "
                f"{self.folder / domain}, e.g. {names[0]}. {LAYOUT}. Move them into folders of their classes, or away.",
            )

    def _classes(self) -> tuple[list[str], list[str]]:
        places: dict[str, list[Path]] = {}
        for domain in self.domains:
            for name in self._folders_in(self.folder / domain):
                if self.lenient and not self._is_sound(check_name, name):
                    continue
                places.setdefault(name, []).append(self.folder / domain / name)
        full = {name: any(map(self._has_images, paths)) for name, paths in places.items()}
        return sorted(name for name in full if full[name]), sorted(name for name in full if not full[name])

    def _has_images(self, folder: Path) -> bool:
        kinds = self.reading.kinds
        try:
            return bool(images_in(folder, kinds) or images_below(folder, kinds, LEFT_BEHIND).images)
        except DataError:
            return True  # it is said when they are listed

    def _check_nesting(self) -> None:
        """Is there a folder too many between? Folders within classes are fine, so only clear cases are refused."""
        places = [self.folder / d / c for d in self.domains for c in self.classes if (self.folder / d / c).is_dir()]
        kinds = self.reading.kinds
        if not places or any(images_in(place, kinds) for place in places if os.access(place, os.R_OK)):
            return
        if len(self.domains) == 1:
            inner = self.folder / self.domains[0]
            self._at_fault(
                "level",
                f"{self.folder} has one level too many: its only sub-folder is {self.domains[0]!r}, and no image lies "
                f"directly in {join_few([*self.classes], 3)}. {LAYOUT}. Did you mean {inner}?",
            )
            return
        if {name.lower() for name in self.classes} <= SPLITS:
            self._at_fault(
                "level",
                f"{self.folder} has one level too many: {join_few([*self.classes])} would be the classes, and look "
                f"like splits. {LAYOUT}. Splits are drawn here, so put the images of all of them together; or list the "
                "images in a table with a column `split`, index:FILE.csv.",
            )
            return
        title = "no image lies directly in a class folder, only deeper. Taken as classes: "
        self.findings += (Finding("warning", "level", title + join_few([*self.classes])),)


def rare_classes(domains: Mapping[str, Sequence[Any]], classes: Sequence[str]) -> Iterator[str]:
    """Which classes have no image or a single one in a domain, in sentences."""
    for domain, images in domains.items():
        counted = Counter(getattr(images, "labels", ()))
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
    left_behind: list[Path] = field(default_factory=list)  # e.g. Thumbs.db
    folders: list[Path] = field(default_factory=list)  # folders named like images

    def __iadd__(self, more: Found) -> Found:
        for kind, paths in vars(more).items():
            getattr(self, kind).extend(paths)
        return self


def _others_there(folder: Path, reading: Reading) -> str:
    """How many files of kinds that are not read lie there, for a message; nothing if there are none."""
    try:
        found = images_below(folder, reading.kinds)
    except DataError:  # which is said elsewhere
        return ""
    others = [*found.unread, *found.other]
    return f" Not read there: {plural(len(others), 'file')} ({count_kinds(others)})." if others else ""


def count_kinds(paths: Iterable[Path]) -> str:
    """How many files there are of each extension: `"40 .svg, 2 .psd"`."""
    counted = Counter(path.suffix.lower() or "without an extension" for path in paths)
    return join_few([f"{number:,} {suffix}" for suffix, number in counted.most_common()])


def images_below(folder: Path, kinds: tuple[str, ...] = READ, leave_out: Collection[str] = ()) -> Found:
    """All files below `folder`, at any depth, but for folders named as in `leave_out`, in small letters.

    Images are those of some kinds, by their extensions.
    """
    found = Found()
    for place, names in sorted(_walk(folder)):  # by the text of the path, as in torchvision, not by its parts
        parts = Path(place).relative_to(folder).parts
        hidden = any(part.startswith(".") for part in parts)
        if any(part.lower() in leave_out for part in parts):
            found.left_behind += [Path(place, name) for name in sorted(names)]
            continue
        if Path(place) != folder and place.lower().endswith(kinds):
            found.folders.append(Path(place))
        for name in sorted(names):
            kept = found.hidden if hidden or name.startswith(".") else getattr(found, _kind(name, kinds))
            if not hidden and is_left_behind(name):
                kept = found.left_behind
            kept.append(Path(place, name))
    return found


def is_left_behind(name: str) -> bool:
    """Whether a system or a program has left it: never an image that is meant."""
    return name.lower() in LEFT_BEHIND or name.startswith("._")


def _kind(name: str, kinds: tuple[str, ...]) -> str:
    lower = name.lower()
    return "images" if lower.endswith(kinds) else "unread" if lower.endswith(READ + UNREAD) else "other"


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


def images_in(folder: Path, kinds: tuple[str, ...] = READ) -> list[str]:
    """Names of the image files that lie directly in a folder, sorted."""
    return sorted(
        entry.name
        for entry in _entries(folder)
        if not os.path.isdir(entry) and not entry.name.startswith(".") and entry.name.lower().endswith(kinds)
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
