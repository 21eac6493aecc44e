"""What is wrong or odd about a data set, in sentences: said by a training, and listed by `dspreg data verify`."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dspreg.data.annotations import annotations_of
from dspreg.errors import DataError
from dspreg.io.text import join_few, plural

Severity = Literal["error", "warning", "note"]
SHOWN = 5  # faults that a refusal names; all of them are in a verification
LISTS = re.compile(r"[|;]|,\s*")  # between labels, where one cell holds several


@dataclass(frozen=True)
class Finding:
    """One thing that was found.

    Attributes:
        severity: `"error"`: no training on it; `"warning"`: a training says it and goes on; `"note"`: nothing to mend.
        kind: In a word or two, for programs: `"bad image"`.
        title: In a sentence.
        items: What it is about, one by one: files, lines, groups.
    """

    severity: Severity
    kind: str
    title: str
    items: tuple[str, ...] = ()


def refuse(faults: Sequence[Finding]) -> None:
    """Raise a DataError that names the first of them, if there are any."""
    if not faults:
        return
    if len(faults) == 1:
        raise DataError(faults[0].title)
    named = "\n".join(f"  {fault.title}" for fault in faults[:SHOWN])
    more = f"\n  and {len(faults) - SHOWN:,} more" if len(faults) > SHOWN else ""
    raise DataError(f"{len(faults):,} faults:\n{named}{more}\n`dspreg data verify` lists all there is")


def name_collisions(what: str, names: Iterable[str]) -> Iterator[Finding]:
    """Names that people take for one, and a computer for several."""
    groups = collisions(names)
    if groups:
        items = tuple(" = ".join(map(_show_difference(group), group)) for group in groups)
        many = f"{what}es" if what.endswith("s") else f"{what}s"
        yield Finding(
            "warning", f"{what} names",
            f"{plural(sum(map(len, groups)), what, many)} differ by case, spaces or Unicode form only: "
            f"{join_few(items)}. They count as different",
            items,
        )  # fmt: skip


def _show_difference(group: Sequence[str]) -> Callable[[str], str]:
    """`repr`, unless they would look the same: then with the numbers of their characters."""
    looks = {unicodedata.normalize("NFC", name) for name in group}
    return repr if len(looks) == len(group) else ascii


def collisions(names: Iterable[str]) -> list[tuple[str, ...]]:
    """Groups of names that are equal but for case, spaces at the ends and Unicode form."""
    alike: dict[str, list[str]] = defaultdict(list)
    for name in names:
        alike[_simplest(name)].append(name)
    return [tuple(group) for group in alike.values() if len(group) > 1]


def file_collisions(names: Iterable[str]) -> list[tuple[str, ...]]:
    """The same of files in one folder; folders that are alike are told as such."""
    alike: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name in names:
        folder, _, last = name.rpartition("/")
        alike[folder, _simplest(last)].append(name)
    return [tuple(group) for group in alike.values() if len(group) > 1]


def _simplest(name: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold()).strip()


def odd_labels(classes: Sequence[str]) -> Iterator[Finding]:
    """Labels that look like quantities, or like several labels in one."""
    numbers = [name for name in classes if _is_fraction(name)]
    if numbers and all(_is_fraction(name) or name.removeprefix("-").isdecimal() for name in classes):
        yield Finding(
            "warning", "labels",
            f"the labels are numbers with fractions ({join_few(numbers, 3)}): is it a quantity? Each of the "
            f"{len(classes):,} different numbers is taken for a class of its own",
        )  # fmt: skip
    parts = {name: [part.strip() for part in LISTS.split(name) if part.strip()] for name in classes}
    counted = Counter(part for each in parts.values() for part in each)
    lists = [
        name
        for name, each in parts.items()  # a comma may belong to a name, unless a part of it is a label, too
        if len(each) > 1 and ("|" in name or any(counted[part] > 1 for part in each))
    ]
    if lists:
        yield Finding(
            "warning", "labels",
            f"{plural(len(lists), 'label looks', 'labels look')} like several in one ({join_few(lists, 3)}): has an "
            "image more than one? Each such text is taken for a class of its own",
            tuple(lists),
        )  # fmt: skip


def _is_fraction(text: str) -> bool:
    try:
        return not float(text).is_integer()
    except (ValueError, OverflowError):  # a word; nan and inf are words, too
        return False


def wide_groups(domains: Mapping[str, Sequence[Any]]) -> Iterator[Finding]:
    """Groups that are in several domains: held out in one, and trained on in another."""
    places: dict[str, list[str]] = defaultdict(list)
    for name, images in domains.items():
        for group in dict.fromkeys(annotations_of(images).groups or ()):
            if group:
                places[group].append(name)
    wide = {group: names for group, names in places.items() if len(names) > 1}
    if wide:
        items = tuple(f"{group!r} in {join_few(names)}" for group, names in wide.items())
        yield Finding(
            "warning", "group in several domains",
            f"{plural(len(wide), 'group is', 'groups are')} in several domains, e.g. {items[0]}: held out in one, it "
            "is trained on in another, so that accuracies are too good",
            items,
        )  # fmt: skip


def torn_groups(domains: Mapping[str, Sequence[Any]]) -> Iterator[Finding]:
    """Groups that the column of parts puts on both sides of a split."""
    parts: dict[str, dict[str, str]] = defaultdict(dict)
    for images in domains.values():
        said = annotations_of(images)
        if said.groups is None or said.parts is None:
            continue
        names = getattr(images, "names", [str(i) for i in range(len(images))])
        for group, part, name in zip(said.groups, said.parts, names, strict=True):
            if group and part:
                parts[group].setdefault(part, name)
    torn = {group: by_part for group, by_part in parts.items() if len(by_part) > 1}
    if torn:
        items = tuple(
            f"{group!r}: {', '.join(f'{part} ({name})' for part, name in by_part.items())}"
            for group, by_part in torn.items()
        )
        yield Finding(
            "error", "group on both sides",
            f"{plural(len(torn), 'group is', 'groups are')} on both sides of the split that is given, e.g. {items[0]}. "
            "Give all images of a group one part",
            items,
        )  # fmt: skip
