"""A benchmark out of tables of the hub: every image under its original name, or not at all."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from dspreg.data.benchmarks import Benchmark
from dspreg.data.sources.arrange import names_by_content, plain_name
from dspreg.data.sources.rows import Columns, Row, read_rows, sha256_of_row
from dspreg.download.manifest import Manifest
from dspreg.errors import DataError

NAME = re.compile(r"[^/\\\0\n]{1,200}\.(jpe?g|png|bmp|webp)", re.I)


def arrange_tables(files: Sequence[Path], made: type[Benchmark], ready: Path, known: Manifest | None) -> None:
    """Write the images of some tables where DomainBed has them, under their original names.

    The order of rows is nobody's order, and DomainBed's splits follow the names of files. So a row needs the name of
    its file, or bytes that the manifest knows under a name.

    Raises:
        DataError: Names are lost, or rows are of another data set.
    """
    lost = names_by_content({path: each.sha256 for path, each in known.files.items()} if known else {})
    write_rows(read_rows(files, Columns("image", "label", "domain"), made.name), made, ready, lost)


def write_rows(rows: Iterable[Row], made: type[Benchmark], ready: Path, lost: dict[str, list[str]]) -> None:
    domains, classes = ({plain_name(name): name for name in names} for names in (made.domains, made.classes))
    for row in rows:
        domain, label = domains.get(plain_name(row.domain)), classes.get(plain_name(row.label))
        if domain is None or label is None:
            raise DataError(f"a row is of {row.domain!r} and {row.label!r}, which {made.name} does not have")
        again = lost.get(sha256_of_row(row), [])
        start = f"{domain}/{label}/"
        by_content = next((path for path in again if path.startswith(start)), None)
        if by_content is not None:
            again.remove(by_content)  # the same bytes may be there under a second name
            path = ready / by_content
        elif NAME.fullmatch(row.name) and not row.name.startswith("."):
            path = ready / domain / label / row.name
        else:
            raise DataError(
                f"its rows have no names of files (one has {row.name!r}), so that DomainBed's order, and with it the "
                "split, can't be restored"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            raise DataError(f"two rows are {path.relative_to(ready)}")
        path.write_bytes(row.content)
