"""Images in Parquet tables, as the Hugging Face hub has them: one row per image, with columns for label and domain."""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from dspreg.errors import ConfigError, DataError, Notice
from dspreg.io.text import join_few

TOGETHER = 16  # rows read at a time: an image may have megabytes
BUFFER = 2**20  # bytes read at a time; else a whole group of rows, with all its images
LARGEST = 2**28  # bytes of one image
KINDS = ((b"\xff\xd8\xff", ".jpg"), (b"\x89PNG", ".png"), (b"RIFF", ".webp"), (b"BM", ".bmp"))
USUAL = {
    "image": ("image", "img", "jpg", "picture", "photo"),
    "label": ("label", "labels", "class", "category", "y", "target"),
    "domain": ("domain", "domains", "site", "environment", "env", "style", "location", "hospital", "camera", "source"),
}


@dataclass(frozen=True)
class Columns:
    """Which columns hold the image, its label and its domain; "" is to be guessed."""

    image: str = ""
    label: str = ""
    domain: str = ""


class Row(NamedTuple):
    content: bytes
    name: str  # of the file it was made from; "" if that is not known
    label: str
    domain: str


def require_pyarrow() -> Any:
    """pyarrow's module for Parquet.

    Raises:
        ConfigError: It is not installed; says how to get it.
    """
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise ConfigError("tables of the hub are read by pyarrow: pip install 'dspreg[hf]'") from error
    return parquet


def guess_columns(given: Columns, schema: Any, name: str) -> Columns:
    """The columns that were given, and those that go by a usual name, which is said.

    Raises:
        ConfigError: One can't be guessed, or is not there.
    """
    there = list(schema.names)
    found = {}
    for what, usual in USUAL.items():
        asked = getattr(given, what)
        if asked and asked not in there:
            raise ConfigError(f"{name} has no column {asked!r}; it has {', '.join(there)}")
        guessed = asked or next((column for word in usual for column in there if column.lower() == word), "")
        if not guessed and what == "image":
            guessed = next((column for column in there if _is_image(schema.field(column))), "")
        if not guessed:
            raise ConfigError(f"which column of {name} is the {what}? Add --{what}-column; it has {', '.join(there)}")
        found[what] = guessed
    new = [f"{what} is {found[what]!r}" for what in USUAL if not getattr(given, what)]
    if new:
        warnings.warn(f"{name}: columns are guessed: {', '.join(new)}", Notice, stacklevel=2)
    return Columns(**found)


def _is_image(field: Any) -> bool:
    kind = field.type
    return hasattr(kind, "names") and "bytes" in kind.names if str(kind).startswith("struct") else "binary" in str(kind)


def read_rows(files: Sequence[Path], given: Columns, name: str) -> Iterator[Row]:
    """All rows of some tables, in order.

    Raises:
        ConfigError: pyarrow is missing, or a column.
        DataError: A table is damaged, or a row has no image, label or domain.
    """
    parquet = require_pyarrow()
    import pyarrow

    columns: Columns | None = None
    for path in files:
        try:
            table = parquet.ParquetFile(path, buffer_size=BUFFER)
            schema = table.schema_arrow
            if columns is None:
                columns = guess_columns(given, schema, name)
            names = class_names(schema.metadata or {})
            wanted = [columns.image, columns.label, columns.domain]
            for batch in table.iter_batches(TOGETHER, columns=wanted):
                for row in batch.to_pylist():
                    yield _row(row, columns, names, path)
        except (pyarrow.ArrowException, OSError) as error:
            raise DataError(f"{path} can't be read as a table: {error}") from error


def class_names(metadata: Mapping[bytes, bytes]) -> dict[str, list[str]]:
    """Names of the numbers in columns of labels, as `datasets` writes them into a table."""
    try:
        features = json.loads(metadata.get(b"huggingface", b"{}"))["info"]["features"]
        return {column: list(map(str, kind["names"])) for column, kind in features.items() if "names" in kind}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def _row(row: Mapping[str, Any], columns: Columns, names: Mapping[str, list[str]], path: Path) -> Row:
    image = row[columns.image]
    content = image.get("bytes") if isinstance(image, dict) else image
    name = (image.get("path") if isinstance(image, dict) else None) or ""
    if not isinstance(content, bytes) or not content or len(content) > LARGEST:
        raise DataError(f"a row of {path.name} has no image in {columns.image!r}; wanted the bytes of an image file")
    return Row(
        content, PurePosixPath(name).name, *(_text(row, c, names, path) for c in (columns.label, columns.domain))
    )


def _text(row: Mapping[str, Any], column: str, names: Mapping[str, list[str]], path: Path) -> str:
    value = row[column]
    if isinstance(value, bool) or not isinstance(value, int | str) or value == "":
        raise DataError(f"a row of {path.name} has {value!r} in {column!r}; wanted a name or a whole number")
    if isinstance(value, str):
        return value
    known = names.get(column)
    if known is None:
        return str(value)
    if not 0 <= value < len(known):
        raise DataError(f"a row of {path.name} has {value} in {column!r}, which has {len(known)} names")
    return known[value]


def folder_names(values: Sequence[str], what: str) -> dict[str, str]:
    """A name of a folder for every label or domain; whole numbers get leading zeros, so that their order stays.

    Raises:
        DataError: Two of them would have the same one.
    """
    width = max((len(value) for value in values), default=0)
    numbers = all(re.fullmatch(r"\d+", value) for value in values)
    found = {v: v.zfill(width) if numbers else re.sub(r"[^\w &'()+,-]", "_", v).strip(" ")[:100] for v in values}
    twice = [name for name, count in Counter(name.casefold() for name in found.values()).items() if count > 1]
    if twice or "" in found.values():
        raise DataError(f"the {what} {join_few(sorted(values), 4)} can't be names of folders beside each other")
    return found


def extension(content: bytes) -> str:
    """By the first bytes of an image; `.jpg` if they say nothing, and reading it will tell."""
    return next((suffix for start, suffix in KINDS if content.startswith(start)), ".jpg")


def sha256_of_row(row: Row) -> str:
    return hashlib.sha256(row.content).hexdigest()
