"""A data set of images on the Hugging Face hub: `hf:owner/set[@revision]`."""

from __future__ import annotations

import os
import re
import shutil
import warnings
from collections import Counter
from contextlib import suppress
from pathlib import Path

from dspreg.config.dataset_ref import DatasetRef
from dspreg.data.folders import Folder
from dspreg.data.sources.rows import Columns, extension, folder_names, read_rows, require_pyarrow
from dspreg.download.hub_files import HubFiles, check_repo, list_files
from dspreg.download.manifest import NAME, changed_sizes, read_manifest, take_manifest
from dspreg.download.transfer import download_all
from dspreg.download.web import Undelivered
from dspreg.errors import DataError, IntegrityError, Notice, ResourceError
from dspreg.io.atomic_files import make_folder, os_errors_as_cant_write, read_regular_file, sha256, write
from dspreg.io.user_cache import user_cache

FILE = re.compile(r"[\w &'()+,.=-]{1,150}\.(jpe?g|png|bmp|webp)", re.I)


class HubDataset(Folder):
    """Images of a data set on the hub, kept as files in the cache: `hf:owner/set[@revision]`.

    Input (x):
        The bytes of the image files, as the tables hold them.

    Label (y):
        The column of labels, by name where the data set names its numbers. Classes are sorted by name.

    Domain:
        The column of domains. All parts of the data set (train, test, …) are taken together.

    A revision is resolved to a commit when it is first asked for; without a network, what was fetched before is used.
    Within a class the order is that of file names, where all rows have one and no two the same; else that of the rows.

    Args:
        ref: What stands after `--dataset`.
    """

    def __init__(self, ref: DatasetRef) -> None:
        super().__init__(_fetch(ref), ref.repo)


def cache_folder() -> Path:
    """Where data sets of the hub are kept."""
    return user_cache("hub")


def _fetch(ref: DatasetRef) -> Path:
    """The folder of images, made from tables if it is not there."""
    check_repo(ref.repo, ref.revision)
    place = cache_folder() / ref.repo.replace("/", "--")
    asked = sha256((ref.revision or "main").encode())[:16]
    try:
        files = list_files(ref.repo, ref.revision, lambda path: path.endswith(".parquet"))
        commit = files.commit
        make_folder(place)
        write(place / f"commit-of-{asked}", commit.encode())
    except Undelivered as error:
        files = None
        commit = _known_commit(place / f"commit-of-{asked}")
        if not commit:
            raise ResourceError(
                f"{ref} was not fetched before, and {error}. Fetch it where there is a network, and copy {place} here; "
                "or export its images as folders and write folder:PATH"
            ) from error
    given = Columns(**ref.columns())
    folder = place / commit / f"images-{sha256(repr(given).encode())[:16]}"
    if _is_complete(folder):
        if files is None:
            warnings.warn(f"{ref.repo}: commit {commit[:12]}, as it was fetched before", Notice, stacklevel=4)
        return folder
    if files is None:
        raise ResourceError(f"commit {commit[:12]} of {ref.repo} was not fetched whole, and the hub can't be reached")
    _make(ref, files, given, folder)
    return folder


def _known_commit(path: Path) -> str:
    with suppress(OSError, IntegrityError, UnicodeDecodeError):
        text = read_regular_file(path, limit=100).decode()
        return text if re.fullmatch(r"[0-9a-f]{40,64}", text) else ""
    return ""


def _is_complete(folder: Path) -> bool:
    with suppress(OSError, IntegrityError):
        return not changed_sizes(folder, read_manifest(folder / NAME))
    return False


def _make(ref: DatasetRef, files: HubFiles, given: Columns, folder: Path) -> None:
    require_pyarrow()
    if not files.files:
        raise DataError(f"{ref.repo} has no tables (*.parquet) at {files.commit[:12]}; only such data sets are read")
    tables = download_all(files.files, folder.parent / "tables")
    unfinished = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        _write_images(tables, given, ref.repo, unfinished)
        facts = {"dataset": ref.repo, "source": f"commit {files.commit}", "made": "by dspreg from the tables"}
        take_manifest(unfinished, facts).write(unfinished / NAME)
        with os_errors_as_cant_write(folder, 0):
            shutil.rmtree(folder, ignore_errors=True)
            os.rename(unfinished, folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    shutil.rmtree(folder.parent / "tables", ignore_errors=True)


def _write_images(tables: list[Path], given: Columns, name: str, folder: Path) -> None:
    """In two passes, since names of folders and files depend on all rows."""
    seen = [(row.domain, row.label, row.name) for row in read_rows(tables, given, name)]
    if not seen:
        raise DataError(f"{name} has no rows")
    domains = folder_names(sorted({domain for domain, _, _ in seen}), "domains")
    labels = folder_names(sorted({label for _, label, _ in seen}), "labels")
    counted = Counter((domain, label, file.casefold()) for domain, label, file in seen)
    named = max(counted.values()) == 1 and all(FILE.fullmatch(file) and file[0] != "." for _, _, file in seen)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)  # what is guessed was said
        for number, row in enumerate(read_rows(tables, given, name)):
            place = folder / domains[row.domain] / labels[row.label]
            make_folder(place)
            with os_errors_as_cant_write(place, len(row.content)):
                (place / (row.name if named else f"{number:08}{extension(row.content)}")).write_bytes(row.content)
