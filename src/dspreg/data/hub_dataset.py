"""A data set of images on the Hugging Face hub: `hf:owner/set[@revision]`."""

from __future__ import annotations

import os
import re
import shutil
import time
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from dspreg.config.dataset_ref import DatasetRef
from dspreg.data.folders import Folder
from dspreg.data.sources.rows import Columns, extension, folder_names, read_rows, require_pyarrow
from dspreg.download.hub_files import HubFiles, check_repo, list_files
from dspreg.download.manifest import NAME, changed_sizes, read_manifest, take_manifest
from dspreg.download.transfer import LOOK_AGAIN, Progress, download_all, ignore_progress
from dspreg.download.web import Undelivered
from dspreg.errors import DataError, IntegrityError, Notice, ResourceError
from dspreg.io.atomic_files import make_folder, os_errors_as_cant_write, read_regular_file, sha256, write
from dspreg.io.locks import holding
from dspreg.io.text import plural
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
        super().__init__(fetch_images(ref), ref.repo)


def cache_folder() -> Path:
    """Where data sets of the hub are kept."""
    return user_cache("hub")


def fetch_images(ref: DatasetRef, progress: Progress = ignore_progress) -> Path:
    """The folder of images, made from tables if it is not there.

    Raises:
        ResourceError: The hub can't be reached, and it was not fetched before.
        DataError: Its tables are no images with labels and domains.
    """
    check_repo(ref.repo, ref.revision)
    place = cache_folder() / ref.repo.replace("/", "--")
    note = place / f"commit-of-{sha256((ref.revision or 'main').encode())[:16]}"
    given = Columns(**ref.columns())
    try:
        files = list_files(ref.repo, ref.revision, lambda path: path.endswith(".parquet"))
    except Undelivered as error:
        return _fetched_before(ref, note, given, error)
    folder = _images(place, files.commit, given)
    make_folder(place)
    with holding(place / f".{files.commit}.lock", _waiting(ref.repo)):
        if not _is_complete(folder):
            _make(ref, files, given, folder, progress)
        write(note, files.commit.encode())  # last: until then an earlier commit is what there is without a network
    return folder


def _waiting(repo: str) -> Callable[[], None]:
    """Called while another makes the same folder; the first time it is said."""
    said = False

    def wait() -> None:
        nonlocal said
        if not said:
            warnings.warn(f"{repo}: another process is fetching it; waiting", Notice, stacklevel=6)
        said = True
        time.sleep(LOOK_AGAIN)

    return wait


def _images(place: Path, commit: str, given: Columns) -> Path:
    return place / commit / f"images-{sha256(repr(given).encode())[:16]}"


def _fetched_before(ref: DatasetRef, note: Path, given: Columns, error: Undelivered) -> Path:
    commit = _known_commit(note)
    if not commit:
        raise ResourceError(
            f"{ref} was not fetched before, and {error}. Fetch it where there is a network, and copy {note.parent} "
            "here; or export its images as folders and write folder:PATH"
        ) from error
    folder = _images(note.parent, commit, given)
    if not _is_complete(folder):
        raise ResourceError(
            f"commit {commit[:12]} of {ref.repo} was not fetched whole, or with other columns, and {error}"
        ) from error
    warnings.warn(f"{ref.repo}: commit {commit[:12]}, as it was fetched before", Notice, stacklevel=4)
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


def _make(ref: DatasetRef, files: HubFiles, given: Columns, folder: Path, progress: Progress) -> None:
    require_pyarrow()
    if not files.files:
        raise DataError(f"{ref.repo} has no tables (*.parquet) at {files.commit[:12]}; only such data sets are read")
    size = sum(each.size or 0 for each in files.files)
    what = f"commit {files.commit[:12]}, {plural(len(files.files), 'table')} with {size / 1e6:,.1f} MB"
    warnings.warn(f"{ref.repo}: fetching {what}, into {folder.parent}", Notice, stacklevel=5)
    for left in folder.parent.glob(".images-*.part"):  # of a process that was killed: nobody else is at work here
        shutil.rmtree(left)
    tables = download_all(files.files, folder.parent / "tables", progress=progress)
    unfinished = folder.with_name(f".{folder.name}.part")
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
