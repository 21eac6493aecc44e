"""Check every image of a data set: on demand (`verify`), and once before the first training on it."""

from __future__ import annotations

import hashlib
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dspreg.config.reading import Reading
from dspreg.data.annotations import annotations_of
from dspreg.data.base import DomainDataset
from dspreg.data.convert import picture_from
from dspreg.data.decode import BadImage, contents, decode_bytes
from dspreg.data.duplicates import connect, grey_copy, near_pairs
from dspreg.data.findings import Finding, Severity, file_collisions
from dspreg.data.fingerprint import hash_pixels
from dspreg.data.folders import ImageFolders, rare_classes
from dspreg.data.images import THREADS, Images
from dspreg.data.splits import parts_of
from dspreg.errors import ConfigError, DataError
from dspreg.io.text import align_columns, escape_terminal, join_few, plural
from dspreg.io.user_cache import user_cache
from dspreg.kinds import CLASSES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image

    from dspreg.data.cache import Cache

Domain = Sequence[tuple["Image", int]]
TOGETHER = 256  # images handed to the threads at a time, so that a large data set makes no long queue
FORMAT = "dspreg.verification/1"
WIDE = 12  # classes, or domains, that still fit side by side
LONG = 100  # classes below each other
SHOWN = 20  # things that a warning names in the text; all of them are in `Verification`
TORN = "same image under several labels"
NAMED = 5  # bad images that an error names


class Bad(NamedTuple):
    domain: str
    image: str  # its name, relative to the data set
    reason: str
    file: str = ""  # its path, if it is a file


class Cell(NamedTuple):
    domain: str
    class_name: str


@dataclass(frozen=True)
class Verification:
    """What `verify` found.

    Attributes:
        dataset: Its name.
        classes: Names of the labels.
        counts: Images of each class, by domain.
        bad: Images that can't be used, and why.
        mismatches: How the numbers of images differ from the published ones.
        variant: Which of several versions in circulation it is, if there are several.
        missing: Classes without an image in a domain.
        single: Classes with one image in a domain: it is either trained on or held out.
        across: Groups of images with equal pixels in several domains: what is learnt in one is known in the other.
        within: The same within one domain: an image may be both trained on and held out.
        near: Groups of images that are nearly equal, such as one saved again.
        touched: How many images are turned, transparent, of more than 8 bits, of several frames; by names of `TOUCHED`.
        reading: How they were read, which decides what that means.
        notices: What was odd when the files were listed.
        seconds: It took.
        findings: All of it in sentences, errors first: what a training refuses is an error, what it says a warning.
    """

    dataset: str
    classes: tuple[str, ...]
    counts: Mapping[str, tuple[int, ...]]
    bad: tuple[Bad, ...]
    mismatches: tuple[str, ...]
    variant: str
    missing: tuple[Cell, ...]
    single: tuple[Cell, ...]
    across: tuple[tuple[str, ...], ...]
    within: tuple[tuple[str, ...], ...]
    near: tuple[tuple[str, ...], ...]
    touched: Mapping[str, int]
    reading: Reading
    notices: tuple[str, ...]
    seconds: float
    findings: tuple[Finding, ...]

    @property
    def images(self) -> int:
        return sum(map(sum, self.counts.values()))

    @property
    def ok(self) -> bool:
        """No error among the findings."""
        return not any(each.severity == "error" for each in self.findings)

    def text(self) -> str:
        """Counts as a table, then the findings, one per line, and which of them decide."""
        size = f"{plural(self.images, 'image')}, {plural(len(self.counts), 'domain')}, "
        size += plural(len(self.classes), "class", "classes")
        lines = [f"{self.dataset}: {size}", *([f"variant: {self.variant}"] if self.variant else []), ""]
        lines += [*self._table(), "", *self._findings(), self.verdict()]
        return "\n".join(map(escape_terminal, lines))  # names of files, classes and domains may hold anything

    def verdict(self) -> str:
        """The last line: whether it is ok, and what decides."""
        looked = f"{self.images:,} images looked at in {self.seconds:.1f} s"
        of = {severity: [e.title for e in self.findings if e.severity == severity] for severity in ("error", "warning")}
        if of["error"]:
            decides = dict.fromkeys(title.split(": ")[0] for title in of["error"])
            return f"NOT OK, {looked}. What decides: {'; '.join(decides)}"
        more = f"; {plural(len(of['warning']), 'warning')}, which a training gives, too" if of["warning"] else ""
        return f"ok, {looked}{more}"

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        named = {domain: dict(zip(self.classes, numbers, strict=True)) for domain, numbers in self.counts.items()}
        return {
            "format": FORMAT,
            "dataset": self.dataset,
            "ok": self.ok,
            "decided_by": [each.kind for each in self.findings if each.severity == "error"],
            "images": self.images,
            "counts": named,
            "variant": self.variant,
            "findings": [asdict(each) for each in self.findings],
            "bad": [each._asdict() for each in self.bad],
            "seconds": round(self.seconds, 3),
        }

    def _table(self) -> list[str]:
        """Domains below each other; where there are many classes, these, and the domains beside each other."""
        domains, by_domain = [*self.counts], [*self.counts.values()]
        if len(self.classes) <= WIDE:
            rows = [["domain", *self.classes, "all"]]
            rows += [[name, *_numbers(numbers), f"{sum(numbers):,}"] for name, numbers in self.counts.items()]
            sums = [sum(column) for column in zip(*by_domain, strict=True)]
            rows.append(["all", *_numbers(sums), f"{sum(sums):,}"])
        elif len(domains) <= WIDE and len(self.classes) <= LONG:
            rows = [["class", *domains, "all"]]
            for name, numbers in zip(self.classes, zip(*by_domain, strict=True), strict=True):
                rows.append([name, *_numbers(numbers), f"{sum(numbers):,}"])
            sums = [sum(numbers) for numbers in by_domain]
            rows.append(["all", *_numbers(sums), f"{sum(sums):,}"])
        else:
            rows = [["domain", "all"], *([name, f"{sum(n):,}"] for name, n in self.counts.items())]
            rows.append(["all", f"{self.images:,}"])
        lines = list(align_columns([[escape_terminal(cell) for cell in row] for row in rows]))
        if len(rows[0]) == 2 and len(self.classes) > 1:
            lines.append(
                f"{len(self.classes):,} classes are too many for a table: --picture FILE.png draws all, --json has all"
            )
        return lines

    def _findings(self) -> Iterator[str]:
        for each in self.findings:
            yield f"{each.severity}: {each.title}"
            shown = each.items if each.severity == "error" else each.items[:SHOWN]
            if len(shown) == 1 and shown[0] in each.title:  # it is all said
                shown = ()
            yield from (f"  {item}" for item in shown)
            if shown and len(shown) < len(each.items):
                yield f"  and {len(each.items) - len(shown):,} more"
            yield ""


class Look(NamedTuple):
    label: int | None
    sha: str | None  # of the pixels; None where there are none to be compared
    fault: str | None
    copy: NDArray[np.uint8] | None = None  # small and grey, to find what is nearly equal
    touched: frozenset[str] = frozenset()  # what reading it did, or leaves: names of `TOUCHED`


class Place(NamedTuple):
    """Of one image."""

    domain: str
    name: str
    label: int
    group: str
    part: str


def verify(
    dataset: DomainDataset,
    progress: Callable[[int, int], None] | None = None,
    cache: Cache | None = None,
    *,
    near: bool = True,
) -> Verification:
    """Decode everything, count it, and compare it with what is published and with itself.

    A bad image is named and the next one looked at.

    Args:
        dataset: Of image files, or any other.
        progress: Is called with the number of images done and of all.
        cache: Where images of files are put, since they have been decoded. It is not read.
        near: Also look for images that are nearly equal.

    Raises:
        ConfigError: It is no data set of images and their classes.
    """
    if dataset.tensors or dataset.kind != CLASSES:
        what = "tensors" if dataset.tensors else f"the kind {dataset.kind!r}"
        raise ConfigError(
            f"{dataset.name} is of {what}, and images of classes are verified. A training looks at every sample first"
        )
    started = time.monotonic()
    domains = {name: dataset.domain(name) for name in dataset.domains}
    total, done = sum(len(domain) for domain in domains.values()), 0
    counts: dict[str, Counter[int]] = {name: Counter() for name in domains}
    bad: list[Bad] = []
    equal: dict[str, list[Place]] = defaultdict(list)
    places: list[Place] = []
    copies: list[NDArray[np.uint8]] = []
    pixels: list[str] = []
    touched: Counter[str] = Counter()
    with ThreadPoolExecutor(THREADS) as pool:
        for name, domain in domains.items():
            said = annotations_of(domain)
            parts = parts_of(said, len(domain))
            for i, look in _looks(pool, domain, cache, near, dataset.reading):
                done += 1
                touched.update(look.touched)
                image = domain.names[i] if isinstance(domain, Images) else f"{name}[{i}]"
                fault = look.fault or _wrong_label(look, len(dataset.classes))
                if fault:
                    bad.append(Bad(name, image, fault, str(domain.files[i]) if isinstance(domain, Images) else ""))
                if look.label is not None:
                    counts[name][look.label] += 1
                if look.sha is not None and not look.fault:  # two empty files are two bad files, not twins
                    group = said.groups[i] if said.groups is not None else ""
                    place = Place(name, image, look.label or 0, group, parts[i])
                    equal[look.sha].append(place)
                    if look.copy is not None:
                        places.append(place)
                        copies.append(look.copy)
                        pixels.append(look.sha)
                if progress is not None and (done % TOGETHER == 0 or done == total):
                    progress(done, total)
    table = {name: tuple(counted[label] for label in range(len(dataset.classes))) for name, counted in counts.items()}
    twins = [group for group in equal.values() if len(group) > 1]
    alike, crowded = _near_groups(places, copies, pixels)
    known = dataset if isinstance(dataset, ImageFolders) else None
    found = Verification(
        dataset=dataset.name,
        classes=tuple(dataset.classes),
        counts=table,
        bad=tuple(bad),
        mismatches=tuple(known.mismatches()) if known else (),
        variant=known.variant() if known else "",
        missing=tuple(_cells(table, dataset.classes, 0)),
        single=tuple(_cells(table, dataset.classes, 1)),
        across=tuple(_names_of(g) for g in twins if len({place.domain for place in g}) > 1),
        within=tuple(_names_of(g) for g in twins if len({place.domain for place in g}) == 1),
        near=tuple(map(_names_of, alike)),
        touched=dict(touched),
        reading=dataset.reading,
        notices=dataset.notices,
        seconds=time.monotonic() - started,
        findings=(),
    )
    findings = list(_all_findings(found, dataset, domains, twins, alike, crowded))
    order = ("error", "warning", "note")
    return replace(found, findings=tuple(sorted(findings, key=lambda each: order.index(each.severity))))


def _near_groups(
    places: Sequence[Place], copies: Sequence[NDArray[np.uint8]], pixels: Sequence[str]
) -> tuple[list[list[Place]], int]:
    """Groups of nearly equal images, of which not all are equal, and how many were not compared with all others."""
    if not copies:
        return [], 0
    import numpy as np

    pairs, crowded = near_pairs(np.stack(copies))
    groups = connect(pairs)
    return [[places[i] for i in group] for group in groups if len({pixels[i] for i in group}) > 1], crowded


def _all_findings(
    found: Verification,
    dataset: DomainDataset,
    domains: Mapping[str, Domain],
    twins: Sequence[Sequence[Place]],
    alike: Sequence[Sequence[Place]],
    crowded: int,
) -> Iterator[Finding]:
    lines = [each.title for each in dataset.faults if each.kind == "line"]
    if len(lines) > 1:  # of a long table there may be thousands
        yield Finding("error", "line", f"{len(lines):,} faults in lines of the table", tuple(lines))
    yield from (each for each in dataset.faults if each.kind != "line" or len(lines) == 1)
    if found.bad:
        items = tuple(f"{b.image}: {b.reason}" for b in found.bad)
        yield Finding("error", "bad image", plural(len(items), "bad image"), items)
    if found.mismatches:
        title = plural(len(found.mismatches), "number that differs", "numbers that differ")
        yield Finding("error", "number of images", title, found.mismatches)
    for cells, what in ((found.missing, "no images of"), (found.single, "a single image of")):
        for domain in found.counts:
            names = [cell.class_name for cell in cells if cell.domain == domain]
            if names:
                yield Finding("warning", f"class with {what}".removesuffix(" of"),
                              f"{domain} has {what}: {join_few(names, 10)}", ())  # fmt: skip
    yield from _duplicates(twins, dataset, same=True)
    yield from _duplicates(alike, dataset, same=False)
    if crowded:
        yield Finding(
            "note", "not compared",
            f"{crowded:,} images are so plain that they were compared with some others only, to find those that are "
            "nearly equal",
        )  # fmt: skip
    files = [each for each in domains.values() if isinstance(each, Images)]
    twice = tuple(" = ".join(group) for images in files for group in file_collisions(images.names))
    if twice:
        title = (
            f"{plural(len(twice), 'file name is', 'file names are')} there several times but for case or Unicode form"
        )
        yield Finding("warning", "file names", f"{title}; some systems keep one file of them", twice)
    yield from dataset.findings
    yield from describe_touched(found.touched, found.reading)
    told = {*found.mismatches, *(each.title for each in dataset.findings), *rare_classes(domains, dataset.classes)}
    for notice in dataset.notices:
        if notice not in told:
            yield Finding("note", "notice", notice)


def _duplicates(groups: Sequence[Sequence[Place]], dataset: DomainDataset, *, same: bool) -> Iterator[Finding]:
    """Groups of equal images, or of nearly equal ones, by what they do to a training, each where it does most."""
    kinds: dict[str, list[Sequence[Place]]] = {"labels": [], "parts": [], "domains": [], "domain": []}
    for group in groups:
        if len({place.label for place in group}) > 1:
            kinds["labels"].append(group)
        elif len({place.part for place in group if place.part}) > 1:
            kinds["parts"].append(group)
        elif len({place.domain for place in group}) > 1:
            kinds["domains"].append(group)
        elif len({place.group or place.name for place in group}) > 1:  # those of one group stay together
            kinds["domain"].append(group)
    near = "" if same else "nearly equal "
    which = near or "same "
    torn: Severity = "error" if same and dataset.own else "warning"
    says: dict[str, tuple[Severity, str, str, str]] = {
        "labels": (torn, f"{which}image under several labels", "image under several labels",
                   "images under several labels"),
        "parts": ("warning", f"{which}image on both sides", "image on both sides of the split that is given",
                  "images on both sides of the split that is given"),
        "domains": ("warning", f"{which}image in several domains", "image in several domains",
                    "images in several domains"),
        "domain": ("warning", f"{which}image several times", "image several times in a domain",
                   "images several times in a domain"),
    }  # fmt: skip
    for kind, (severity, slug, one, many) in says.items():
        if not kinds[kind]:
            continue
        several = len(kinds[kind]) != 1
        title = f"{len(kinds[kind]):,} {near}{many if several else one}"
        if kind == "domain" and not same:
            title += ", which a split may put on both sides"
        yield Finding(severity, slug, title, tuple((" = " if same else " ~ ").join(_names_of(g)) for g in kinds[kind]))


def _names_of(group: Sequence[Place]) -> tuple[str, ...]:
    return tuple(place.name for place in group)


def check_once(
    dataset: DomainDataset,
    fingerprints: Iterable[str],
    progress: Callable[[int, int], None] | None = None,
    cache: Cache | None = None,
    *,
    begun: bool = False,
) -> None:
    """Decode all files of a data set before the first training on it, unless the same files were found sound before.

    So a bad image is found now, rather than hours into a run.

    Args:
        dataset: What is trained on.
        fingerprints: Of its domains, in their order.
        progress: Is called with the number of images done and of all.
        cache: Where the decoded images are kept, if anywhere.
        begun: Whether a training on them was begun before; it goes on as it is.

    Raises:
        DataError: Some can't be decoded, or one's own are there under several labels; names the first and how to see
            all.
    """
    fingerprints = [*fingerprints, *filter(None, [dataset.reading.tag])]  # another reading may refuse other images
    if _stamp(fingerprints).exists():
        return
    found = verify(dataset, progress, cache, near=False)
    if found.bad:
        named = "\n".join(f"  {bad.image}: {bad.reason}" for bad in found.bad[:NAMED])
        more = f"\n  and {len(found.bad) - NAMED} more" if len(found.bad) > NAMED else ""
        raise DataError(
            f"{plural(len(found.bad), 'image')} of {dataset.name} can't be used:\n{named}{more}\n"
            f"Mend or remove them; `dspreg data verify` names all of them"
        )
    torn = [each for each in found.findings if each.kind == TORN and each.severity == "error"]
    if torn and not begun:
        raise DataError(
            f"{torn[0].title}, to the pixel, e.g. {torn[0].items[0]}. One of the labels is wrong. Remove the others; "
            "`dspreg data verify` names all of them. --check-images never trains on them as they are"
        )
    mark_sound(fingerprints)


def mark_sound(fingerprints: Iterable[str]) -> None:
    """Remember that `check_once` need not look at the domains with these fingerprints."""
    stamp = _stamp(fingerprints)
    with suppress(OSError):  # a reminder, nothing more: without it the images are looked at again next time
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.touch()


def _stamp(fingerprints: Iterable[str]) -> Path:
    return stamps() / hashlib.sha256("".join(fingerprints).encode()).hexdigest()


def find_leaks(domains: Mapping[str, Domain], targets: Sequence[str]) -> Iterator[str]:
    """Equal files that make an accuracy mean less than it says, in at most two sentences, each with one example.

    From the hashes of the fingerprints, so that nothing is read for it. Of data sets of image files alone.

    Args:
        domains: By name.
        targets: Those that are held out.
    """
    equal: dict[str, list[tuple[str, int, str]]] = defaultdict(list)
    for domain, images in domains.items():
        if isinstance(images, Images):
            for name, label, sha in zip(images.names, images.labels, images.hashes, strict=True):
                equal[sha].append((domain, label, name))
    groups = [group for group in equal.values() if len(group) > 1]
    unseen = [[name for domain, _, name in group if domain in targets] for group in groups]
    seen = [[name for domain, _, name in group if domain not in targets] for group in groups]
    leaks = [pair for pair in zip(unseen, seen, strict=True) if all(pair)]
    if leaks:
        count = sum(len(here) for here, _ in leaks)
        example = " = ".join(names[0] for names in leaks[0])
        yield (
            f"{plural(count, 'image')} of the target {'is' if count == 1 else 'are'} in a source, too, byte for byte, "
            f"e.g. {example}: what was trained on is not unseen"
        )
    torn = [{label: name for _, label, name in reversed(group)} for group in groups]  # the first of each label
    torn = [by_label for by_label in torn if len(by_label) > 1]
    if torn:
        example = " = ".join(sorted(torn[0].values())[:2])
        yield (
            f"{plural(len(torn), 'image')} {'is' if len(torn) == 1 else 'are'} there under two labels, byte for byte, "
            f"e.g. {example}"
        )


def stamps() -> Path:
    """The folder that remembers which files were found sound, by their contents."""
    return user_cache("sound")


def _looks(
    pool: ThreadPoolExecutor, domain: Domain, cache: Cache | None, near: bool, reading: Reading
) -> Iterator[tuple[int, Look]]:
    def look(i: int) -> Look:
        if isinstance(domain, Images):
            return _look_at_file(domain, i, cache, near)
        return _look_at_item(domain, i, near, reading)

    for start in range(0, len(domain), TOGETHER):
        at = range(start, min(start + TOGETHER, len(domain)))
        yield from zip(at, pool.map(look, at), strict=True)


def _look_at_file(images: Images, i: int, cache: Cache | None, near: bool) -> Look:
    """From the file itself, never from a cache: a cached image says nothing about its file."""
    touched: set[str] = set()
    try:
        content = contents(images.files[i])
        image = decode_bytes(content, images.files[i], images.reading, touched)
        if cache is not None:
            sha = hashlib.sha256(content).hexdigest()
            if not cache.contains(sha, images.reading):
                cache.write(sha, image, images.reading)
    except BadImage as error:
        return Look(images.labels[i], None, error.reason)
    return Look(images.labels[i], hash_pixels(image), None, grey_copy(image) if near else None, frozenset(touched))


def _look_at_item(domain: Domain, i: int, near: bool, reading: Reading) -> Look:
    try:
        image, label = domain[i]
        picture = picture_from(image, reading)
        return Look(int(label), hash_pixels(picture), None, grey_copy(picture) if near else None)
    except Exception as error:  # the user's own code, which may raise anything
        return Look(None, None, f"{type(error).__name__}: {error}")


TOUCHED = {  # name → what is counted, what is done to it, and what is done where the reading leaves it alone
    "turned": ("stored sideways (EXIF)", "turned upright", "left as it is stored, as DomainBed does"),
    "transparent": ("transparent", "shown on {alpha}", "shown without its transparency, as DomainBed does"),
    "windowed": ("of more than 8 bits", "brought to 8 bits by the window {window}", ""),
    "frames": ("of several frames or pages", "read as its first one", ""),
}


def describe_touched(touched: Mapping[str, int], reading: Reading) -> Iterator[Finding]:
    """How many images are not simply as they are stored, and what is made of them."""
    does = {"turned": reading.exif, "transparent": reading.alpha != "drop"}
    for name, (what, done, left) in TOUCHED.items():
        if touched.get(name):
            says = done.format(alpha=reading.alpha, window=reading.window) if does.get(name, True) else left
            yield Finding("note", name, f"{plural(touched[name], 'image')} {what}: {says}")


def _wrong_label(look: Look, classes: int) -> str | None:
    if look.label is None or 0 <= look.label < classes:
        return None
    return f"its label is {look.label}, outside 0 … {classes - 1}"


def _cells(counts: dict[str, tuple[int, ...]], classes: Sequence[str], wanted: int) -> Iterator[Cell]:
    for domain, numbers in counts.items():
        yield from (Cell(domain, name) for name, n in zip(classes, numbers, strict=True) if n == wanted)


def _numbers(values: Sequence[int]) -> list[str]:
    return [f"{value:,}" for value in values]
