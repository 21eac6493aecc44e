"""From the folders that an archive unpacks to, to DomainBed's: `domain/class/image`, with the original file names.

DomainBed splits a domain by the position of a file in the sorted list, so that the names decide which images are held
out. Names are never made up here: what has lost them is refused.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from dspreg.config.reading import FIRST_KINDS
from dspreg.data.benchmarks import Benchmark
from dspreg.data.folders import SPLITS
from dspreg.errors import DataError
from dspreg.io.text import join_few, plural

Place = Callable[[Path, Path], object]  # puts a file under another name: a link, or a copy
DEEPEST = 6


def link_file(source: Path, target: Path) -> None:
    """A second name for a file of ours, where the disk can; else a copy."""
    try:
        os.link(source, target)
    except OSError:
        copy_file(source, target)


def copy_file(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)


def arrange_folders(trees: Sequence[Path], made: type[Benchmark], ready: Path, place: Place) -> None:
    """Find the domains below some folders, and put their images where DomainBed has them.

    Domains are known by their names, whatever the spelling (`Real_World`, `RealWorld`), and by the classes in them. A
    level of parts (`train`, `crossval`, `test`) between domain and class is left out.

    Raises:
        DataError: Something is missing, or two parts have different files of one name.
    """
    found = find_domains(trees, made)
    missing = [domain for domain in made.domains if domain not in found]
    if missing:
        raise DataError(
            f"there is no folder {join_few(missing)} with the classes of {made.name} below "
            f"{join_few([str(tree) for tree in trees], 2)}"
        )
    for domain, folders in found.items():
        classes = {plain_name(name): name for name in made.classes}
        for folder in folders:
            for entry in sorted(folder.iterdir()):
                name = classes.get(plain_name(entry.name))
                if name is not None and entry.is_dir():
                    _place_images(entry, ready / domain / name, place)


def find_domains(trees: Sequence[Path], made: type[Benchmark]) -> dict[str, list[Path]]:
    """The folders that contain the classes of each domain."""
    names = {plain_name(domain): domain for domain in made.domains}
    found: dict[str, list[Path]] = {}
    for tree in trees:
        for folder in _folders(tree):
            domain = names.get(plain_name(folder.name))
            if domain is None or _has_classes(folder.parent, made):
                continue
            inside = [folder, *(each for each in sorted(folder.iterdir()) if each.is_dir() and each.name in SPLITS)]
            with_classes = [each for each in inside if _has_classes(each, made)]
            if with_classes and domain in found:
                raise DataError(f"{domain!r} is there twice: {found[domain][0]} and {with_classes[0]}")
            if with_classes:
                found[domain] = [each for each in with_classes if each.name != "full" or len(with_classes) == 1]
    return {domain: found[domain] for domain in made.domains if domain in found}


def _has_classes(folder: Path, made: type[Benchmark]) -> bool:
    here = {plain_name(entry.name) for entry in folder.iterdir() if entry.is_dir()} if folder.is_dir() else set()
    return len(here & {plain_name(name) for name in made.classes}) > len(made.classes) / 2


def _folders(tree: Path) -> Iterator[Path]:
    for place, folders, _ in os.walk(tree):  # which follows no links
        folders.sort()
        if len(Path(place).relative_to(tree).parts) >= DEEPEST:
            folders.clear()
        folders[:] = [name for name in folders if name != "__MACOSX"]
        yield Path(place)


def _place_images(source: Path, target: Path, place: Place) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for file in sorted(source.iterdir()):
        if not file.name.lower().endswith(FIRST_KINDS) or file.name.startswith(".") or not file.is_file():
            continue
        there = target / file.name
        if there.exists():
            if there.read_bytes() != file.read_bytes():
                raise DataError(f"two files are called {target.parent.name}/{target.name}/{file.name}, and differ")
            continue
        place(file, there)


def plain_name(name: str) -> str:
    """Letters and digits alone, for names that are spelt in several ways."""
    return re.sub(r"[^a-z0-9]", "", name.casefold())


def remove_duplicates(ready: Path, listed: Path) -> int:
    """Remove the images that DomainBed leaves out of DomainNet; returns how many.

    Raises:
        DataError: The list is none, or names images that are not there.
    """
    paths = listed.read_text(encoding="utf-8").split()
    bad = [path for path in paths if not re.fullmatch(r"\w+/[\w-]+/[\w.-]+", path)]
    if bad or not paths:
        raise DataError(f"{listed} is no list of images: {join_few(bad, 2) or 'it is empty'}")
    gone = [path for path in paths if not (ready / path).is_file()]
    if gone:
        raise DataError(
            f"{plural(len(gone), 'image')} of {len(paths):,} that {listed.name} names are not there, e.g. {gone[0]}: "
            "it is another version of DomainNet"
        )
    for path in paths:
        (ready / path).unlink()
    return len(paths)


def names_by_content(files: Mapping[str, str]) -> dict[str, list[str]]:
    """Paths by SHA-256, sorted: how images that lost their names get them back."""
    found: dict[str, list[str]] = {}
    for path in sorted(files):
        found.setdefault(files[path], []).append(path)
    return found
