"""What a user gives with `--from`: addresses, archives, tables, or folders of them or of images."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from dspreg.data.sources.catalogue import Source
from dspreg.download.archives import is_archive
from dspreg.download.transfer import Remote
from dspreg.errors import ConfigError

TABLE = ".parquet"
LISTS = (".txt", ".json")  # that go with archives: duplicates, annotations


@dataclass(frozen=True)
class Local:
    """Files and folders on this machine.

    Attributes:
        files: Archives, tables and lists.
        trees: Folders of images.
    """

    files: tuple[Path, ...]
    trees: tuple[Path, ...]


def parse_origins(given: Sequence[str]) -> tuple[Source | None, Local]:
    """What was given, as addresses to fetch from and as what is here already.

    Raises:
        ConfigError: Something is not there.
    """
    remote: list[Remote] = []
    files: list[Path] = []
    trees: list[Path] = []
    for text in given:
        if "://" in text:
            name = _file_name(text)
            if name in {each.name for each in remote}:
                name = f"{len(remote)}-{name}"
            remote.append(Remote(text, name))
            continue
        path = Path(text).expanduser()
        if path.is_dir():
            inside = sorted(each for each in path.iterdir() if each.is_file() and _is_known(each))
            files += inside
            trees += [] if any(is_archive(each) or each.suffix == TABLE for each in inside) else [path]
        elif path.is_file() and _is_known(path):
            files.append(path)
        else:
            what = (
                "is not an archive (.zip, .tar, .tar.gz …) or a table (.parquet)" if path.exists() else "is not there"
            )
            raise ConfigError(f"{path} {what}. After --from stands an address, a folder, or an archive")
    source = Source("the address you gave", tuple(remote)) if remote else None
    return source, Local(tuple(files), tuple(trees))


def _is_known(path: Path) -> bool:
    return is_archive(path) or path.suffix in (TABLE, *LISTS)


def _file_name(url: str) -> str:
    last = unquote(urlsplit(url).path).rstrip("/").rpartition("/")[2]
    return re.sub(r"[^\w.+=@-]", "_", last).lstrip(".")[-100:] or "download"
