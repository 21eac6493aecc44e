"""Check every image of a data set: on demand (`verify`), and once before the first training on it."""

from __future__ import annotations

import hashlib
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dspreg.data.base import DomainDataset
from dspreg.data.decode import BadImage, contents, decode_bytes
from dspreg.data.folders import ImageFolders
from dspreg.data.images import THREADS, Images
from dspreg.errors import ConfigError, DataError
from dspreg.io.text import align_columns, escape_terminal, join_few, plural
from dspreg.io.user_cache import user_cache
from dspreg.kinds import CLASSES

if TYPE_CHECKING:
    from PIL.Image import Image

    from dspreg.data.cache import Cache

Domain = Sequence[tuple["Image", int]]
TOGETHER = 256  # images handed to the threads at a time, so that a large data set makes no long queue
WIDE = 12  # classes that still fit side by side
SHOWN = 20  # groups of equal images in the text; all of them are in `Verification`
NAMED = 5  # bad images that an error names


class Bad(NamedTuple):
    domain: str
    image: str  # its name, relative to the data set
    reason: str


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
        across: Groups of images with equal bytes in several domains: what is learnt in one is known in the other.
        within: The same within one domain: an image may be both trained on and held out.
        notices: What was odd when the files were listed.
        seconds: It took.
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
    notices: tuple[str, ...]
    seconds: float

    @property
    def images(self) -> int:
        return sum(map(sum, self.counts.values()))

    @property
    def ok(self) -> bool:
        """No bad image, no number that differs and no missing class. Equal images are in published sets too."""
        return not (self.bad or self.mismatches or self.missing)

    def text(self) -> str:
        """Counts as a table, then the findings, one per line."""
        size = f"{plural(self.images, 'image')}, {plural(len(self.counts), 'domain')}, "
        size += plural(len(self.classes), "class", "classes")
        lines = [f"{self.dataset}: {size}", *([f"variant: {self.variant}"] if self.variant else []), ""]
        lines += [*self._table(), "", *self._findings()]
        lines.append(f"{'ok' if self.ok else 'NOT OK'}, {self.images:,} images looked at in {self.seconds:.1f} s")
        return "\n".join(map(escape_terminal, lines))  # names of files, classes and domains may hold anything

    def _table(self) -> list[str]:
        by_class = len(self.classes) <= WIDE
        rows = [["domain", *(self.classes if by_class else ()), "all"]]
        columns = list(self.counts.values())
        rows += [
            [domain, *(_numbers(counts) if by_class else ()), f"{sum(counts):,}"]
            for domain, counts in self.counts.items()
        ]
        sums = [sum(column) for column in zip(*columns, strict=True)]
        rows.append(["all", *(_numbers(sums) if by_class else ()), f"{sum(sums):,}"])
        return list(align_columns([[escape_terminal(cell) for cell in row] for row in rows]))

    def _findings(self) -> Iterator[str]:
        yield from _section("bad image", "bad images", [f"{b.image}: {b.reason}" for b in self.bad])
        yield from _section("number that differs", "numbers that differ", self.mismatches)
        for cells, what in ((self.missing, "no images of"), (self.single, "a single image of")):
            for domain in self.counts:
                names = [cell.class_name for cell in cells if cell.domain == domain]
                if names:
                    yield f"{domain} has {what}: {join_few(names, 10)}"
                    yield ""
        for groups, one, many in (
            (self.across, "image in several domains", "images in several domains"),
            (self.within, "image several times in a domain", "images several times in a domain"),
        ):
            listed = [" = ".join(group) for group in groups[:SHOWN]]
            if len(groups) > SHOWN:
                listed.append(f"and {len(groups) - SHOWN:,} more")
            yield from _section(one, many, listed, len(groups), "warning: ")
        above = {*self.mismatches}
        yield from _section("notice", "notices", [n for n in self.notices if n not in above])


class Look(NamedTuple):
    label: int | None
    sha: str | None  # None where there are no bytes to be compared
    fault: str | None


def verify(
    dataset: DomainDataset, progress: Callable[[int, int], None] | None = None, cache: Cache | None = None
) -> Verification:
    """Decode everything, count it, and compare it with what is published and with itself.

    A bad image is named and the next one looked at.

    Args:
        dataset: Of image files, or any other.
        progress: Is called with the number of images done and of all.
        cache: Where images of files are put, since they have been decoded. It is not read.

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
    equal: dict[str, list[tuple[str, str]]] = defaultdict(list)
    with ThreadPoolExecutor(THREADS) as pool:
        for name, domain in domains.items():
            for i, look in _looks(pool, domain, cache):
                done += 1
                image = domain.names[i] if isinstance(domain, Images) else f"{name}[{i}]"
                fault = look.fault or _wrong_label(look, len(dataset.classes))
                if fault:
                    bad.append(Bad(name, image, fault))
                if look.label is not None:
                    counts[name][look.label] += 1
                if look.sha is not None and not look.fault:  # two empty files are two bad files, not twins
                    equal[look.sha].append((name, image))
                if progress is not None and (done % TOGETHER == 0 or done == total):
                    progress(done, total)
    table = {name: tuple(counted[label] for label in range(len(dataset.classes))) for name, counted in counts.items()}
    groups = [group for group in equal.values() if len(group) > 1]
    known = dataset if isinstance(dataset, ImageFolders) else None
    return Verification(
        dataset=dataset.name,
        classes=tuple(dataset.classes),
        counts=table,
        bad=tuple(bad),
        mismatches=tuple(known.mismatches()) if known else (),
        variant=known.variant() if known else "",
        missing=tuple(_cells(table, dataset.classes, 0)),
        single=tuple(_cells(table, dataset.classes, 1)),
        across=tuple(tuple(image for _, image in g) for g in groups if len({name for name, _ in g}) > 1),
        within=tuple(tuple(image for _, image in g) for g in groups if len({name for name, _ in g}) == 1),
        notices=dataset.notices,
        seconds=time.monotonic() - started,
    )


def check_once(
    dataset: DomainDataset,
    fingerprints: Iterable[str],
    progress: Callable[[int, int], None] | None = None,
    cache: Cache | None = None,
) -> None:
    """Decode all files of a data set before the first training on it, unless the same files were found sound before.

    So a bad image is found now, rather than hours into a run.

    Args:
        dataset: What is trained on.
        fingerprints: Of its domains, in their order.
        progress: Is called with the number of images done and of all.
        cache: Where the decoded images are kept, if anywhere.

    Raises:
        DataError: Some can't be decoded; names the first and how to see all.
    """
    fingerprints = list(fingerprints)
    if _stamp(fingerprints).exists():
        return
    found = verify(dataset, progress, cache)
    if found.bad:
        named = "\n".join(f"  {bad.image}: {bad.reason}" for bad in found.bad[:NAMED])
        more = f"\n  and {len(found.bad) - NAMED} more" if len(found.bad) > NAMED else ""
        raise DataError(
            f"{plural(len(found.bad), 'image')} of {dataset.name} can't be used:\n{named}{more}\n"
            f"Mend or remove them; `dspreg data verify` names all of them"
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


def _looks(pool: ThreadPoolExecutor, domain: Domain, cache: Cache | None) -> Iterator[tuple[int, Look]]:
    def look(i: int) -> Look:
        return _look_at_file(domain, i, cache) if isinstance(domain, Images) else _look_at_item(domain, i)

    for start in range(0, len(domain), TOGETHER):
        at = range(start, min(start + TOGETHER, len(domain)))
        yield from zip(at, pool.map(look, at), strict=True)


def _look_at_file(images: Images, i: int, cache: Cache | None) -> Look:
    """From the file itself, never from a cache: a cached image says nothing about its file."""
    sha = None
    try:
        content = contents(images.files[i])
        sha = hashlib.sha256(content).hexdigest()
        image = decode_bytes(content, images.files[i])
        if cache is not None and not cache.contains(sha):
            cache.write(sha, image)
    except BadImage as error:
        return Look(images.labels[i], sha, error.reason)
    return Look(images.labels[i], sha, None)


def _look_at_item(domain: Domain, i: int) -> Look:
    try:
        image, label = domain[i]
        pixels = image.convert("RGB")
        sha = hashlib.sha256(repr(pixels.size).encode() + pixels.tobytes()).hexdigest()
        return Look(int(label), sha, None)
    except Exception as error:  # the user's own code, which may raise anything
        return Look(None, None, f"{type(error).__name__}: {error}")


def _wrong_label(look: Look, classes: int) -> str | None:
    if look.label is None or 0 <= look.label < classes:
        return None
    return f"its label is {look.label}, outside 0 … {classes - 1}"


def _cells(counts: dict[str, tuple[int, ...]], classes: Sequence[str], wanted: int) -> Iterator[Cell]:
    for domain, numbers in counts.items():
        yield from (Cell(domain, name) for name, n in zip(classes, numbers, strict=True) if n == wanted)


def _section(one: str, many: str, lines: Sequence[str], count: int | None = None, start: str = "") -> Iterator[str]:
    if lines:
        yield f"{start}{plural(len(lines) if count is None else count, one, many)}"
        yield from (f"  {line}" for line in lines)
        yield ""


def _numbers(values: Sequence[int]) -> list[str]:
    return [f"{value:,}" for value in values]
