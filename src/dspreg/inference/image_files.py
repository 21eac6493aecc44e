"""Which files `predict` is to classify. Without torch: that one is missing is said before torch is loaded."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path

from dspreg.data.folders import READ, images_below
from dspreg.errors import ConfigError, DataError, Notice
from dspreg.io.text import join_few, plural


def image_files(given: Sequence[str | Path], kinds: tuple[str, ...] = READ) -> list[Path]:
    """Files as they are, and the images of some kinds below folders, sorted; each once.

    Raises:
        DataError: A path does not exist, or there is no image at all.
        ConfigError: A file is given twice, by itself or with its folder.
    """
    files: list[Path] = []
    for each in map(Path, given):
        if each.is_dir():
            found = images_below(each, kinds)
            if found.unread:
                others = ", ".join(sorted({p.suffix.lower() for p in found.unread}))
                warnings.warn(
                    f"{plural(len(found.unread), 'image')} below {str(each)!r} of a kind that is not read ({others}); "
                    f"convert to PNG to have them predicted",
                    Notice,
                    stacklevel=2,
                )
            if not found.images:
                raise DataError(f"no image is below the folder {str(each)!r}; looked for {', '.join(kinds)}")
            files += found.images
        elif os.path.lexists(each):  # also a link that leads nowhere: that is a bad image, and said with its reason
            files.append(each)
        else:
            raise DataError(f"{str(each)!r} does not exist; give image files, or folders of them")
    if not files:
        raise DataError("no images are given; give image files, or folders of them")
    _refuse_twice(files)
    return files


def _refuse_twice(files: Sequence[Path]) -> None:
    seen: set[str] = set()
    twice = []
    for path in files:
        place = os.path.realpath(path)
        if place in seen:
            twice.append(repr(str(path)))
        seen.add(place)
    if twice:
        raise ConfigError(
            f"{join_few(twice, 3)} given twice, by itself, with its folder or as a link; give each image once"
        )
