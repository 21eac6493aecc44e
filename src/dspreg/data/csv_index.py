"""Your own images listed in a table: `index:FILE.csv`."""

from __future__ import annotations

import csv
import math
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from dspreg.config.dataset_ref import OPTIONAL, REQUIRED
from dspreg.config.reading import OWN_READING
from dspreg.data.annotations import PARTS, Annotations
from dspreg.data.base import DomainDataset
from dspreg.data.findings import SHOWN, Finding, name_collisions, odd_labels, refuse, torn_groups, wide_groups
from dspreg.data.folders import check_name, rare_classes
from dspreg.data.images import Images
from dspreg.errors import DataError, Notice
from dspreg.io.text import join_few, nearest, plural

LONGEST = 255  # characters of a name, as of a folder's
MEANT = {  # columns that are often called otherwise
    "group": ("patient", "patient_id", "subject", "subject_id", "case", "case_id", "person", "video", "part_id"),
    "split": ("fold", "set", "subset", "partition"),
    "weight": ("sample_weight", "weights"),
}


class Row(NamedTuple):
    line: int
    path: str
    label: str
    domain: str
    group: str = ""
    part: str = ""
    weight: float = 1.0
    further: tuple[str, ...] = ()  # the cells of the other columns


class Index(DomainDataset):
    """Images listed in a CSV file with the columns path, label and domain.

    Input (x):
        `path` of an image of a kind that `Folder` reads, and read in the same way. Relative to the folder of the CSV,
        or to `root`.

    Label (y):
        `label`, the name of a class. Classes are sorted by name; if all are whole numbers, by number.

    Domain:
        `domain`, a name. Domains are sorted by name; the images of one are in the order of the file.

    The first line names the columns, in any order. Three more are understood: `group` (patient, part, video: never on
    both sides of a split; empty: the image stands by itself), `split` (train, val or test; empty: dspreg decides) and
    `weight` (how much an image counts in the loss). Others are named in a notice, and not used.

    Args:
        file: UTF-8, separated by commas.
        root: What paths are relative to, unless it is the folder of `file`.
        name: Of the data set in records and tables; that of the file without `.csv` unless given.
        columns: The file's name for a column, where it is another: `{"path": "filename"}`.
        lenient: Leave out the lines that are at fault, and keep what is wrong with them as `faults`.
    """

    own = True
    reading = OWN_READING

    def __init__(
        self,
        file: str | Path,
        root: str | Path | None = None,
        name: str | None = None,
        columns: Mapping[str, str] | None = None,
        *,
        lenient: bool = False,
    ) -> None:
        super().__init__(root)
        self.file = Path(file)
        self.name = name or self.file.stem
        table = _Table(self.file, dict(columns or {}))
        rows = list(table.rows())
        if not rows and not table.faults:
            raise DataError(f"{self.file} lists no images: there is nothing below its header. Add a line per image.")
        base = Path(root) if root is not None else self.file.parent
        rows, files = _existing(self.file, rows, base, table.faults)
        names = _names(rows, files)
        self.classes = _classes(self.file, rows, table.faults)
        self.domains = tuple(sorted({row.domain for row in rows}))
        label_of = {text: label for label, text in enumerate(self.classes)}
        self._domains: dict[str, Images] = {}
        for domain in self.domains:
            at = [i for i, row in enumerate(rows) if row.domain == domain]
            labels = [label_of[rows[i].label] for i in at]
            images = Images([files[i] for i in at], [names[i] for i in at], labels, self.classes)
            images.annotations = table.annotations([rows[i] for i in at])
            self._domains[domain] = images
        self.faults = (*table.faults, *torn_groups(self._domains))
        if not lenient:
            refuse(self.faults)
        if not rows:
            named = "\n".join(f"  {fault.title}" for fault in self.faults[:SHOWN])
            more = f"\n  and {len(self.faults) - SHOWN:,} more" if len(self.faults) > SHOWN else ""
            raise DataError(f"{self.file} has no line that can be used:\n{named}{more}")
        self.findings = (
            *table.unused(),
            *name_collisions("class", self.classes),
            *name_collisions("domain", self.domains),
            *odd_labels(self.classes),
            *wide_groups(self._domains),
        )
        self.notices = (*rare_classes(self._domains, self.classes), *(each.title for each in self.findings))
        for notice in self.notices:
            warnings.warn(f"{self.name}: {notice}", Notice, stacklevel=2)

    def domain(self, name: str) -> Images:
        self.check_domain(name)
        images = self._domains[name]
        images.cache, images.reading = self.cache, self.reading
        return images


class _Table:
    """The lines of a file, and what is wrong with them.

    Attributes:
        faults: Of the lines read so far.
        used: Which of our columns are there → where.
        others: The file's other columns → where.
    """

    def __init__(self, file: Path, columns: Mapping[str, str]) -> None:
        self.file, self.columns = file, columns
        self.faults: list[Finding] = []
        self.used: dict[str, int] = {}
        self.others: dict[str, int] = {}

    def rows(self) -> Iterator[Row]:
        file = self.file
        if file.exists() and not (file.is_file() or file.is_dir()):  # it would be waited for without end
            raise DataError(f"{file} is a pipe or a device, not a file. Give the path of a CSV file.")
        try:
            with file.open(encoding="utf-8-sig", newline="") as text:  # -sig: spreadsheets put a mark at the start
                reader = csv.reader(text)
                header = [cell.strip() for cell in next(reader, [])]
                self._find_columns(header)
                for cells in reader:
                    if cells and (row := self._row(reader.line_num, cells, len(header))) is not None:
                        yield row
        except OSError as error:
            raise DataError(f"{file} can't be read ({error.strerror}). Give the path of a CSV file.") from None
        except UnicodeDecodeError as error:
            says = f"{file} is not UTF-8 text ({error.reason} at byte {error.start}). Save it as UTF-8."
            raise DataError(says) from None
        except csv.Error as error:
            raise DataError(f"{file}, line {reader.line_num}: not readable as CSV ({error}).") from None

    def annotations(self, rows: Sequence[Row]) -> Annotations:
        groups = tuple(row.group for row in rows) if "group" in self.used else None
        parts = tuple(row.part for row in rows) if "split" in self.used else None
        weights = tuple(row.weight for row in rows) if "weight" in self.used else None
        further = {name: tuple(row.further[i] for row in rows) for i, name in enumerate(self.others)}
        return Annotations(groups, parts, weights, further)

    def unused(self) -> Iterator[Finding]:
        """The columns that are not used, with what they may have been meant for."""
        names = list(self.others)
        if not names:
            return
        hints = []
        for column, usual in MEANT.items():
            there = [name for name in names if name.casefold().replace(" ", "_") in usual]
            near = there[0] if there else nearest(column, names, 0.8)
            if near and column not in self.used:
                hints.append(f" Is {near!r} the {column}? --columns {column}={near}")
        title = f"{plural(len(names), 'column is', 'columns are')} not used in training: "
        title += f"{join_few(names, 10)}."
        yield Finding("warning" if hints else "note", "columns", title + ";".join(hints), tuple(names))

    def _find_columns(self, header: Sequence[str]) -> None:
        if not any(header):
            raise DataError(f"{self.file} is empty. Its first line must be path,label,domain.")
        faults, missing = [], {}
        for column in (*REQUIRED, *OPTIONAL):
            wanted = self.columns.get(column, column)
            if header.count(wanted) == 1:
                self.used[column] = header.index(wanted)
            elif wanted in header:
                faults.append(f"the column {wanted!r} is there twice. Keep one.")
            elif column in REQUIRED or column in self.columns:
                missing[column] = wanted
        faults += self._missing(missing, header) if missing else []
        if faults:  # without columns there are no lines to look at
            found = f"Wanted: {','.join(REQUIRED)}; found: {','.join(header)}."
            raise DataError(f"{self.file}, line 1: {' '.join([*faults, found])}")
        self.others = {name: i for i, name in enumerate(header) if i not in self.used.values() and name}

    def _missing(self, missing: Mapping[str, str], header: Sequence[str]) -> Iterator[str]:
        """Which columns are not there, and what they may be called; ours → the names that were looked for."""
        if len(header) == 1 and any(mark in header[0] for mark in ";\t"):
            yield f"{_columns(missing.values())} missing. Columns must be separated by commas."
            return
        near = {column: nearest(wanted, header) for column, wanted in missing.items()}
        for column, name in near.items():
            if name:
                hint = f"Is {name!r} meant? Rename it, or say --columns {column}={name}."
                yield f"{_columns([missing[column]])} missing. {hint}"
        if others := [column for column, name in near.items() if not name]:
            names = ",".join(f"{column}=NAME" for column in others)
            yield f"{_columns(missing[column] for column in others)} missing. For other names: --columns {names}."

    def _row(self, line: int, cells: Sequence[str], width: int) -> Row | None:
        """What a line says; None if there is a fault in it, and all of them are kept."""
        values = {column: cells[i].strip() if i < len(cells) else "" for column, i in self.used.items()}
        faults = list(self._faults_of(values))
        if len(cells) > width:  # its cells may stand under other columns than they were meant for
            quotes = 'A text with a comma must stand in quotes: "a,b.jpg".'
            faults = [f"{len(cells)} cells where the header has {width}. {quotes}"]
        if faults:
            self.faults += (Finding("error", "line", f"{self.file}, line {line}: {fault}") for fault in faults)
            return None
        own = {column: values[column] for column in REQUIRED}
        further = tuple(cells[i].strip() if i < len(cells) else "" for i in self.others.values())
        part = PARTS.get(values.get("split", "").casefold(), "")
        weight = float(values.get("weight", 1.0))
        return Row(line, **own, group=values.get("group", ""), part=part, weight=weight, further=further)

    def _faults_of(self, values: Mapping[str, str]) -> Iterator[str]:
        """What is wrong with the cells of a line."""
        for column, value in values.items():
            shown = self.columns.get(column, column)
            if not value:
                if column not in ("group", "split"):
                    usual = " 1 counts as usual." if column == "weight" else ""
                    yield f"the cell of {shown!r} is empty. Fill it in, or remove the line.{usual}"
            elif column != "path" and len(value) > LONGEST:
                yield (
                    f"the cell of {shown!r} has {len(value):,} characters; wanted at most {LONGEST}, "
                    f"as a name. It starts with {value[:20]!r}."
                )
            elif column == "split" and value.casefold() not in PARTS:
                yield f"the cell of {shown!r} is {value!r}; wanted train, val, test or nothing."
            elif column == "weight" and not _is_weight(value):
                yield f"the cell of {shown!r} is {value!r}; wanted a number, 0 or more."
            else:
                try:
                    check_name(value)
                except DataError as error:
                    yield str(error)


def _columns(names: Iterable[str]) -> str:
    shown = [repr(name) for name in names]
    return f"the column {shown[0]} is" if len(shown) == 1 else f"the columns {', '.join(shown)} are"


def _is_weight(text: str) -> bool:
    try:
        return 0 <= float(text) < math.inf
    except ValueError:
        return False


def _existing(file: Path, rows: Sequence[Row], base: Path, faults: list[Finding]) -> tuple[list[Row], list[Path]]:
    """The rows whose files are there, each once."""
    seen: dict[str, Row] = {}
    kept: list[Row] = []
    for row in rows:
        earlier = seen.setdefault(os.path.abspath(base / row.path), row)  # an absolute path stays as it is
        if earlier is row:
            kept.append(row)
            continue
        twice = f"the same image twice, {row.path!r} in line {earlier.line} and in line {row.line}. Remove one."
        faults.append(Finding("error", "line", f"{file}: {twice}"))
    missing = [row for row in kept if not os.path.exists(base / row.path)]  # also of names that no disk can have
    if missing:
        first = missing[0]
        faults.append(
            Finding(
                "error", "missing file",
                f"{file}, line {first.line}: there is no file {base / first.path}, and "
                f"{plural(len(missing), 'file')} of {len(kept):,} missing in all. Paths are relative to the folder of "
                f"the CSV, or to --root if that is given.",
                tuple(f"line {row.line}: {row.path}" for row in missing),
            )
        )  # fmt: skip
        gone = {row.line for row in missing}
        kept = [row for row in kept if row.line not in gone]
    return kept, [base / row.path for row in kept]


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


def _classes(file: Path, rows: Sequence[Row], faults: list[Finding]) -> tuple[str, ...]:
    texts = {row.label for row in rows}
    if not all(text.removeprefix("-").isdecimal() for text in texts):
        return tuple(sorted(texts))
    numbers: dict[int, str] = {}
    for text in sorted(texts):
        if numbers.setdefault(int(text), text) != text:
            says = f"{file}: the labels {numbers[int(text)]!r} and {text!r} are the same number. Keep one."
            faults.append(Finding("error", "labels", says))
    return tuple(sorted(texts, key=lambda text: (int(text), text)))
