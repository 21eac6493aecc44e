"""Which files `predict` is to classify. Without torch: that one is missing is said before torch is loaded."""

from __future__ import annotations

import csv
import glob
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from dspreg.data.folders import READ, images_below
from dspreg.errors import ConfigError, DataError, Notice
from dspreg.io.text import join_few, plural

COLUMNS = ("path", "image", "file")  # of a CSV file, whichever it has first


def image_files(given: Sequence[str | Path], kinds: tuple[str, ...] = READ) -> list[Path]:
    """Files as they are, the images of some kinds below folders, those that a pattern matches or a CSV file lists.

    Raises:
        DataError: A path does not exist, or there is no image at all.
        ConfigError: A file is given twice, by itself or with its folder.
    """
    files: list[Path] = []
    for each in _expanded(given):
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
            raise DataError(f"{str(each)!r} does not exist; give image files, folders of them, or a CSV file of paths")
    if not files:
        raise DataError("no images are given; give image files, or folders of them")
    _refuse_twice(files)
    return files


def _expanded(given: Sequence[str | Path]) -> Iterator[Path]:
    """Patterns that the shell left alone as what they match, sorted; CSV files as the paths in them."""
    for each in map(Path, given):
        if each.suffix.lower() == ".csv" and each.is_file():
            yield from _listed(each)
        elif not os.path.lexists(each) and glob.has_magic(str(each)):
            found = sorted(glob.glob(str(each), recursive=True))
            if not found:
                raise DataError(f"{str(each)!r} does not exist, and as a pattern it matches nothing")
            yield from map(Path, found)
        else:
            yield each


def _listed(file: Path) -> Iterator[Path]:
    """The paths in a CSV file, relative to its folder."""
    try:
        with open(file, encoding="utf-8-sig", newline="") as lines:
            rows = csv.DictReader(lines)
            column = next((name for name in COLUMNS if name in (rows.fieldnames or ())), None)
            if column is None:
                raise DataError(
                    f"{file} has the columns {join_few([*map(repr, rows.fieldnames or ())])}; wanted one that is "
                    "called "
                    f"{' or '.join(COLUMNS)}, with a path in each line"
                )
            listed = [(rows.line_num, row[column]) for row in rows]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{file} is no CSV file in UTF-8: {error}") from None
    for number, text in listed:
        if not text:
            raise DataError(f"{file}, line {number}: no path in the column {column!r}")
        yield file.parent / text  # an absolute path stays as it is


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
