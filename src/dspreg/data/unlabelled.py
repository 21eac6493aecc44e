"""Folders of images without classes: `root/domain/image`, for what needs no labels."""

from __future__ import annotations

import warnings
from pathlib import Path

from dspreg.config.reading import OWN_READING
from dspreg.data.base import DomainDataset
from dspreg.data.folders import check_name, folders_in, images_below, images_in
from dspreg.data.images import Images
from dspreg.errors import DataError, Notice
from dspreg.io.text import plural

LAYOUT = "Wanted: ROOT/domain/image.jpg"


class Unlabelled(DomainDataset):
    """`root/domain/…/image`: domains, and no classes.

    Input (x):
        Images of the kinds that `Folder` reads, and read in the same way.

    Label (y):
        0 for every image, and no name for it: nothing may be made of it.

    Domain:
        The sub-directories of `root`, sorted by name. Hidden ones are ignored.

    Args:
        root: The folder that contains the domains.
        name: Of the data set in records and tables; the last part of `root` unless given.
    """

    own = True
    reading = OWN_READING

    def __init__(self, root: str | Path, name: str | None = None) -> None:
        super().__init__(root)
        self.folder = Path(root)
        self.name = name or self.folder.resolve().name
        self.classes = ()
        self.domains = tuple(folders_in(self.folder))
        self._domains: dict[str, Images] = {}
        for domain in self.domains:
            found = images_below(self.folder / domain)
            if not found.images:
                raise DataError(
                    f"the domain {domain!r} of {self.name} has no images. {LAYOUT}. Remove it, or add some."
                )
            names = [file.relative_to(self.folder).as_posix() for file in found.images]
            for each in names:
                check_name(each)
            self._domains[domain] = Images(found.images, names, [0] * len(names), ("",))
            ignored = len(found.unread) + len(found.other) + len(found.hidden)
            if ignored:
                self.notices += (f"ignored {plural(ignored, 'file')} of {domain!r} that are hidden or of another kind",)
        for notice in self.notices:
            warnings.warn(f"{self.name}: {notice}", Notice, stacklevel=2)

    def domain(self, name: str) -> Images:
        self.check_domain(name)
        images = self._domains[name]
        images.reading = self.reading
        return images


def without_classes(root: str | Path) -> str | None:
    """An image that lies directly in a domain's folder, where no domain has folders of classes; None where some do."""
    folder = Path(root)
    domains = folders_in(folder) if folder.is_dir() else []
    if any(folders_in(folder / domain) for domain in domains):
        return None
    loose = (folder / domain / name for domain in domains for name in images_in(folder / domain))
    return next((str(path) for path in loose), None)
