"""Your own images listed in a table: `index:FILE.csv`."""

from __future__ import annotations

import csv
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from dspreg.data.base import DomainDataset
from dspreg.data.folders import check_name, rare_classes
from dspreg.data.images import Images
from dspreg.errors import DataError, Notice
from dspreg.io.text import nearest, plural

COLUMNS = ("path", "label", "domain")
LONGEST = 255  # characters of a name, as of a folder's


class Row(NamedTuple):
    line: int
    path: str
    label: str
    domain: str


class Index(DomainDataset):
    """Images listed in a CSV file with the columns path, label and domain.

    Input (x):
        `path` of a JPEG, PNG, WebP or BMP, read as RGB. Relative to the folder of the CSV, or to `root`.

    Label (y):
        `label`, the name of a class. Classes are sorted by name; if all are whole numbers, by number.

    Domain:
        `domain`, a name. Domains are sorted by name; the images of one are in the order of the file.

    The first line names the columns, in any order. Further columns are ignored.

    Args:
        file: UTF-8, separated by commas.
        root: What paths are relative to, unless it is the folder of `file`.
        name: Of the data set in records and tables; that of the file without `.csv` unless given.
    """

    own = True

    def __init__(self, file: str | Path, root: str | Path | None = None, name: str | None = None) -> None:
        super().__init__(root)
        self.file = Path(file)
        self.name = name or self.file.stem
        rows = list(_rows(self.file))
        if not rows:
            raise DataError(f"{self.file} lists no images: there is nothing below its header. Add a line per image.")
        base = Path(root) if root is not None else self.file.parent
        files = [base / row.path for row in rows]  # an absolute path stays as it is
        _check_files(self.file, rows, files)
        names = _names(rows, files)
        self.classes = _classes(self.file, rows)
        self.domains = tuple(sorted({row.domain for row in rows}))
        label_of = {text: label for label, text in enumerate(self.classes)}
        self._domains: dict[str, Images] = {}
        for domain in self.domains:
            at = [i for i, row in enumerate(rows) if row.domain == domain]
            labels = [label_of[rows[i].label] for i in at]
            self._domains[domain] = Images([files[i] for i in at], [names[i] for i in at], labels, self.classes)
        self.notices = tuple(rare_classes(self._domains, self.classes))
        for notice in self.notices:
            warnings.warn(f"{self.name}: {notice}", Notice, stacklevel=2)

    def domain(self, name: str) -> Images:
        self.check_domain(name)
        images = self._domains[name]
        images.cache = self.cache
        return images


def _rows(file: Path) -> Iterator[Row]:
    if file.exists() and not (file.is_file() or file.is_dir()):  # it would be waited for without end
        raise DataError(f"{file} is a pipe or a device, not a file. Give the path of a CSV file.")
    try:
        with file.open(encoding="utf-8-sig", newline="") as text:  # -sig: spreadsheets put a mark at the start
            reader = csv.reader(text)
            header = [cell.strip() for cell in next(reader, [])]
            at = _positions(file, header)
            for cells in reader:
                if cells:
                    yield _row(file, reader.line_num, cells, header, at)
    except OSError as error:
        raise DataError(f"{file} can't be read ({error.strerror}). Give the path of a CSV file.") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{file} is not UTF-8 text ({error.reason} at byte {error.start}). Save it as UTF-8.") from None
    except csv.Error as error:
        raise DataError(f"{file}, line {reader.line_num}: not readable as CSV ({error}).") from None


def _positions(file: Path, header: Sequence[str]) -> list[int]:
    if not any(header):
        raise DataError(f"{file} is empty. Its first line must be path,label,domain.")
    for column in COLUMNS:
        if header.count(column) == 1:
            continue
        if column in header:
            raise DataError(f"{file}, line 1: the column {column!r} is there twice. Keep one.")
        near = nearest(column, header)
        hint = f" Is {near!r} meant? Rename it." if near else ""
        if len(header) == 1 and any(mark in header[0] for mark in ";\t"):
            hint = " Columns must be separated by commas."
        raise DataError(
            f"{file}, line 1: the column {column!r} is missing.{hint} "
            f"Wanted: {','.join(COLUMNS)}; found: {','.join(header)}."
        )
    return [header.index(column) for column in COLUMNS]


def _row(file: Path, line: int, cells: Sequence[str], header: Sequence[str], at: Sequence[int]) -> Row:
    if len(cells) > len(header):
        raise DataError(
            f"{file}, line {line}: {len(cells)} cells where the header has {len(header)}. "
            f'A text with a comma must stand in quotes: "a,b.jpg".'
        )
    values = [cells[i].strip() if i < len(cells) else "" for i in at]
    for column, value in zip(COLUMNS, values, strict=True):
        if not value:
            raise DataError(f"{file}, line {line}: the cell of {column!r} is empty. Fill it in, or remove the line.")
        check_name(value)
        if column != "path" and len(value) > LONGEST:
            raise DataError(
                f"{file}, line {line}: the cell of {column!r} has {len(value):,} characters; wanted at most {LONGEST}, "
                f"as a name. It starts with {value[:20]!r}."
            )
    return Row(line, *values)


def _check_files(file: Path, rows: Sequence[Row], files: Sequence[Path]) -> None:
    seen: dict[str, Row] = {}
    for row, path in zip(rows, files, strict=True):
        earlier = seen.setdefault(os.path.abspath(path), row)
        if earlier is not row:
            raise DataError(
                f"{file}: the same image twice, {row.path!r} in line {earlier.line} and in line {row.line}. Remove one."
            )
    missing = [i for i, path in enumerate(files) if not os.path.exists(path)]  # also of names that no disk can have
    if missing:
        first = missing[0]
        raise DataError(
            f"{file}, line {rows[first].line}: there is no file {files[first]}, and "
            f"{plural(len(missing), 'file')} of {len(files):,} missing in all. Paths are relative to the folder of the "
            f"CSV, or to --root if that is given."
        )


def _names(rows: Sequence[Row], files: Sequence[Path]) -> list[str]:
    """Names that stay the same when the files and their table move together."""
    absolute = [os.path.normpath(path) for row, path in zip(rows, files, strict=True) if os.path.isabs(row.path)]
    # Of absolute paths, only what they don't have in common.
    common = os.path.commonpath([os.path.dirname(path) for path in absolute]) if absolute else ""
    return [
        (os.path.relpath(row.path, common) if os.path.isabs(row.path) else os.path.normpath(row.path)).replace(
            os.sep, "/"
        )
        for row in rows
    ]


def _classes(file: Path, rows: Sequence[Row]) -> tuple[str, ...]:
    texts = {row.label for row in rows}
    if not all(text.removeprefix("-").isdecimal() for text in texts):
        return tuple(sorted(texts))
    numbers: dict[int, str] = {}
    for text in sorted(texts):
        if numbers.setdefault(int(text), text) != text:
            raise DataError(f"{file}: the labels {numbers[int(text)]!r} and {text!r} are the same number. Keep one.")
    return tuple(numbers[number] for number in sorted(numbers))
