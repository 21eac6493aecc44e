"""What `verify` found, as values and as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dspreg.io.text import join_few, plural

WIDE = 12  # classes that still fit side by side
SHOWN = 20  # groups of equal images in the text; all of them are in the report


class Bad(NamedTuple):
    domain: str
    image: str  # its name, relative to the data set
    reason: str


class Cell(NamedTuple):
    domain: str
    class_name: str


@dataclass(frozen=True)
class Report:
    """What was found.

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
        return "\n".join(lines)

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
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return [
            "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
            for row in rows
        ]

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
            told = [" = ".join(group) for group in groups[:SHOWN]]
            if len(groups) > SHOWN:
                told.append(f"and {len(groups) - SHOWN:,} more")
            yield from _section(one, many, told, len(groups), "warning: ")
        told_above = {*self.mismatches}
        yield from _section("notice", "notices", [n for n in self.notices if n not in told_above])


def _section(one: str, many: str, lines: Sequence[str], count: int | None = None, start: str = "") -> Iterator[str]:
    if lines:
        yield f"{start}{plural(len(lines) if count is None else count, one, many)}"
        yield from (f"  {line}" for line in lines)
        yield ""


def _numbers(values: Sequence[int]) -> list[str]:
    return [f"{value:,}" for value in values]
