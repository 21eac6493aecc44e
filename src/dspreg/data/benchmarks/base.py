"""What the five benchmarks share: known domains, classes and numbers of images, found below `--root`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from dspreg.data.folders import ImageFolders, folders_in, images_in
from dspreg.errors import DataError
from dspreg.io.text import join_few, nearest, plural


class Benchmark(ImageFolders):
    """A published data set as DomainBed lays it out: `root/subfolder/domain/class/image`.

    A domain or class that is missing is an error. Other folders beside them are ignored with a `Notice`, instead of
    becoming domains or classes, and so are numbers of images that differ from the published ones.

    Attributes:
        subfolder: Within `root`. If `root` itself contains the domains, it is taken directly.
        counts: Published number of images per domain.
        example: One file, to show the layout.
        source: Where to get it, in a sentence.
    """

    subfolder: ClassVar[str]
    counts: ClassVar[Mapping[str, int]]
    example: ClassVar[str]
    source: ClassVar[str]

    def __init__(self, root: str | Path = "data") -> None:
        super().__init__(root)
        self.folder = self._find(Path(root))
        self._check_domains()
        self._check_classes()
        self.read()

    @classmethod
    def tree(cls, folder: Path) -> str:
        """The expected folders, for a message."""
        return "\n".join([f"  {folder}/", *(f"    {domain}/" for domain in cls.domains)])

    def mismatches(self) -> list[str]:
        return count_mismatches(self.sizes(), self.counts)

    def sizes(self) -> dict[str, int]:
        """Number of images per domain, as found."""
        return {domain: len(self._domains[domain]) for domain in self.domains}

    def _find(self, root: Path) -> Path:
        if (root / self.subfolder).is_dir():
            return root / self.subfolder
        if any((root / domain).is_dir() for domain in self.domains):
            return root
        folder = root / self.subfolder
        raise DataError(
            f"{self.name} was not found: there is no folder {folder}. Wanted:\n\n{self.tree(folder)}\n\n"
            f"with {plural(len(self.classes), 'class folder')} in each ({join_few([*self.classes], 3)}), e.g. "
            f"{folder / self.example}. {self.source} "
            f"If it lies elsewhere, give the folder that contains {self.subfolder!r} as --root."
        )

    def _check_domains(self) -> None:
        there = folders_in(self.folder)
        missing = [domain for domain in self.domains if domain not in there]
        stray = [name for name in there if name not in self.domains]
        if missing:
            raise DataError(
                f"{self.name} in {self.folder} lacks the domain{'s' * (len(missing) > 1)} {', '.join(missing)}."
                f"{_renames(self.folder, missing, stray)} Wanted:\n\n{self.tree(self.folder)}\n\n{self.source}"
            )
        if stray:
            self.notices += (f"ignored folders that are no domains of {self.name}: {join_few(stray)}",)

    def _check_classes(self) -> None:
        for domain in self.domains:
            there = folders_in(self.folder / domain)
            missing = [name for name in self.classes if name not in there]
            stray = [name for name in there if name not in self.classes]
            if missing:
                raise DataError(
                    f"the domain {domain!r} of {self.name} lacks {plural(len(missing), 'class', 'classes')} in "
                    f"{self.folder / domain}: {join_few(missing)}.{_renames(self.folder / domain, missing, stray)} "
                    f"Complete it, or use what is there as a data set of your own: folder:{self.folder}."
                )
            if loose := images_in(self.folder / domain):
                self.notices += (f"ignored images that lie in {domain!r} and in no class: {join_few(loose)}",)
            if stray:
                self.notices += (
                    f"ignored folders in {domain!r} that are no classes of {self.name}: {join_few(stray)}",
                )


def count_mismatches(found: Mapping[str, int], published: Mapping[str, int]) -> list[str]:
    """Domains whose number of images is not the published one, in a sentence each."""
    result = []
    for domain, wanted in published.items():
        if (gap := found[domain] - wanted) != 0:
            how = f"{abs(gap):,} {'missing' if gap < 0 else 'too many'}"
            result.append(f"the domain {domain!r} has {found[domain]:,} images where {wanted:,} are published: {how}")
    return result


def _renames(folder: Path, missing: list[str], stray: list[str]) -> str:
    """Advice where a folder is there under a slightly different name."""
    pairs = [(near, name) for name in missing if (near := nearest(name, stray))]
    if not pairs:
        return ""
    return " Rename " + join_few([f"{folder / near} to {name!r}" for near, name in pairs], 3) + "."
