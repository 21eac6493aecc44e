"""`dspreg data get`: a benchmark from the first place that has it, verified, in DomainBed's layout and order.

Everything happens in `.NAME.download` beside the final folder. What was fetched stays there until the data set is
complete, so that a second call resumes; the folder with its final name appears at the end, by one renaming.
"""

from __future__ import annotations

import lzma
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from dspreg.data.benchmarks import BENCHMARKS, Benchmark
from dspreg.data.fingerprint import fingerprint
from dspreg.data.mnist import FOLDER, MNIST_SETS
from dspreg.data.remember import remember_verification
from dspreg.data.sources import mnist_files
from dspreg.data.sources.arrange import arrange_folders, copy_file, link_file, remove_duplicates
from dspreg.data.sources.camera_traps import arrange_camera_traps
from dspreg.data.sources.catalogue import DUPLICATES, SOURCES, Source
from dspreg.data.sources.origins import TABLE, Local, parse_origins
from dspreg.data.sources.rows import require_pyarrow
from dspreg.data.sources.tables import arrange_tables
from dspreg.data.verify import mark_sound, verify
from dspreg.download.archives import Limits, begins_as_archive, is_archive, unpack
from dspreg.download.hub_files import list_files
from dspreg.download.manifest import NAME, Manifest, changed_sizes, parse_manifest, read_manifest, take_manifest
from dspreg.download.transfer import Progress, download_all, ignore_progress
from dspreg.download.web import Undelivered
from dspreg.errors import ConfigError, DataError, DspregError, IntegrityError, InUse, Notice, ResourceError
from dspreg.io.atomic_files import make_folder, os_errors_as_cant_write, sha256
from dspreg.io.locks import holding
from dspreg.io.text import join_few, plural

Say = Callable[[str], None]
EXACT = {"TerraIncognita": False}  # its photographs are dealt by rule, and how many that gives today is not published
MADE_BY_US = "by dspreg at the first verified download; none is published"


def _say_nothing(line: str) -> None:
    pass


@dataclass(frozen=True)
class Fetched:
    """A data set that is there and complete.

    Attributes:
        folder: It lies in.
        images: How many.
        source: Where it came from; "" if it was there before.
        notes: What is worth knowing, in sentences.
    """

    folder: Path
    images: int
    source: str
    notes: tuple[str, ...] = ()


def get_dataset(
    name: str,
    root: str | Path = "data",
    origins: Sequence[str] = (),
    *,
    progress: Progress = ignore_progress,
    decoding: Callable[[int, int], None] | None = None,
    say: Say = _say_nothing,
) -> Fetched:
    """Fetch a benchmark, verify it, and put it below `root`.

    Args:
        name: One of the five benchmarks, RotatedMNIST or ColoredMNIST.
        root: Folder that holds the data sets.
        origins: Addresses, archives or folders to take it from, instead of the known places.
        progress: Is called with name, bytes and size of each file.
        decoding: Is called with the number of images verified and of all.
        say: Is called with a line about each step.

    Raises:
        ResourceError: No place could be reached; says what to fetch by hand and where to put it.
        DataError: What came is not the data set.
    """
    if name not in BENCHMARKS and name not in MNIST_SETS:
        raise ConfigError(f"{name!r} is not fetched; known: {', '.join((*BENCHMARKS, *MNIST_SETS))}")
    root = Path(root)
    job = _Job(name, root, progress, decoding, say)
    if (there := job.find_complete()) is not None:
        return there
    make_folder(root)
    with job.locked():
        if (there := job.find_complete()) is not None:  # another process was quicker
            return there
        return job.get(*parse_origins(origins))


class _Job:
    """One call of `get_dataset`."""

    def __init__(
        self, name: str, root: Path, progress: Progress, decoding: Callable[[int, int], None] | None, say: Say
    ):
        self.name, self.root, self.progress, self.decoding, self.say = name, root, progress, decoding, say
        self.made: type[Benchmark] | None = BENCHMARKS.get(name)
        self.subfolder = self.made.subfolder if self.made else FOLDER
        self.final = root / self.subfolder
        self.staging = root / f".{self.subfolder.replace('/', '-')}.download"
        self.notes: list[str] = []

    def find_complete(self) -> Fetched | None:
        """What an earlier call left, looked at by names and sizes.

        Raises:
            DataError: Something else has its place.
        """
        if not os.path.lexists(self.final):
            return None
        if self.made is None and mnist_files.is_whole(self.final):
            return Fetched(self.final, 70_000, "", ("it was there already",))
        try:
            manifest = read_manifest(self.final / NAME)
        except (OSError, IntegrityError):
            raise DataError(
                f"{self.final} is there already, and not from `dspreg data get`. See whether it is complete with "
                f"`dspreg data verify {self.name} --root {self.root}`, or move it away to fetch it anew."
            ) from None
        if wrong := changed_sizes(self.final, manifest):
            raise DataError(
                f"{self.final} is not complete any more: {plural(len(wrong), 'file')} missing or of another size, e.g. "
                f"{wrong[0]}. Move the folder away and fetch it anew, or put the files back."
            )
        return Fetched(self.final, len(manifest.files), "", ("it was there already",))

    def get(self, given: Source | None, local: Local) -> Fetched:
        if given is None and (local.files or local.trees):
            self.say(f"{self.name} from what you gave")
            return self._complete("files of your own", local)
        sources = (given,) if given else SOURCES[self.name] if self.made else mnist_files.SOURCES
        failures: list[tuple[Source, DspregError]] = []
        for source in sources:
            self.notes = []  # of places that failed
            try:
                self.say(f"{self.name} from {source.name}")
                found = self._fetch(source)
                files = (*found.files, *local.files)
                return self._complete(source.name, Local(files, local.trees))
            except (Undelivered, DataError, IntegrityError, ConfigError) as error:
                self.say(f"  no: {error}")
                failures.append((source, error))
        raise self._nothing(failures)

    def _fetch(self, source: Source) -> Local:
        # with the addresses: another one that ends in the same name gives another file
        asked = sha256("\n".join(file.url for file in source.files).encode())[:8]
        folder = self.staging / f"{''.join(c if c.isalnum() else '-' for c in source.name)}-{asked}"
        files = source.files
        if source.repo:
            require_pyarrow()
            there = list_files(source.repo, source.revision, lambda path: path.endswith(TABLE))
            if not there.files:
                raise DataError(f"{source.repo} has no tables ({TABLE})")
            self.notes.append(f"commit {there.commit} of {source.repo}")
            files = (*files, *there.files)
        return Local(tuple(download_all(files, folder, progress=self.progress)), ())

    def _complete(self, source: str, local: Local) -> Fetched:
        try:
            return self._finish(source, self._arrange(local))
        except (DataError, IntegrityError):  # unpacked again it would be no other; the next place may want the room
            shutil.rmtree(self.staging / "unpacked", ignore_errors=True)
            raise

    def _arrange(self, local: Local) -> Path:
        """The data set in its layout, in the staging folder."""
        archives = [path for path in local.files if is_archive(path) or self._came_as_archive(path)]
        tables = [path for path in local.files if path.suffix == TABLE]
        if self.made is not None and not (archives or tables or local.trees):
            names = join_few([path.name for path in local.files], 3)
            raise DataError(f"{names} is no archive (.zip, .tar, .tar.gz …) and no table ({TABLE})")
        trees = [*local.trees, *(self._unpack(path) for path in archives)]
        place = copy_file if local.trees else link_file  # a user's own files keep one name
        ready = self.staging / "ready" / self.subfolder
        shutil.rmtree(self.staging / "ready", ignore_errors=True)
        make_folder(ready)
        with os_errors_as_cant_write(ready, 0):
            if self.made is None:
                mnist_files.place_mnist(trees or sorted({path.parent for path in local.files}), ready)
            elif tables:
                arrange_tables(tables, self.made, ready, known_manifest(self.name))
            elif self.name == "TerraIncognita" and any(any(tree.rglob("*.json")) for tree in trees):
                arrange_camera_traps(trees, ready, place)
            else:
                arrange_folders(trees, self.made, ready, place)
            if self.name == "DomainNet" and (archives or tables):
                self._remove_duplicates(ready, local)
        return ready

    def _came_as_archive(self, path: Path) -> bool:
        """Whether a file that we fetched is one, though its address does not say so."""
        return path.is_relative_to(self.staging) and not path.suffix and begins_as_archive(path)

    def _unpack(self, archive: Path) -> Path:
        about = archive.stat()
        folder = self.staging / "unpacked" / f"{archive.name}-{about.st_size}-{about.st_mtime_ns}"
        if not folder.is_dir():  # else an earlier call did: it gets its name when it is whole
            self.say(f"  unpacking {archive.name}")
            make_folder(folder.parent)
            images = sum(self.made.counts.values()) if self.made else 10
            try:
                unpack(archive, folder, Limits(entries=10_000 + 20 * images))
            except IntegrityError:
                if archive.is_relative_to(self.staging):  # what we fetched, not what the user has
                    os.replace(archive, archive.with_name(f"{archive.name}.bad"))
                raise
        return folder

    def _remove_duplicates(self, ready: Path, local: Local) -> None:
        listed = next((path for path in local.files if path.name == DUPLICATES.name), None)
        if listed is None:
            listed = download_all([DUPLICATES], self.staging / "lists", progress=self.progress)[0]
        self.notes.append(f"{remove_duplicates(ready, listed):,} duplicates left out, as in DomainBed")

    def _finish(self, source: str, ready: Path) -> Fetched:
        """Verify, list, and give the folder its name."""
        made_by = MADE_BY_US
        if self.made is not None:
            self._verify()
            known = known_manifest(self.name)
            manifest = take_manifest(ready, {"dataset": self.name, "source": source, "made": made_by})
            if known is not None:
                self.notes += [f"not as in dspreg's list: {each}" for each in known.differences(manifest)] or [
                    "every file is byte for byte as in dspreg's list"
                ]
        else:
            manifest = take_manifest(ready, {"dataset": "MNIST", "source": source, "made": made_by})
        manifest.write(ready / NAME)
        make_folder(self.final.parent)
        with os_errors_as_cant_write(self.final, 0):
            os.rename(ready, self.final)
        shutil.rmtree(self.staging, ignore_errors=True)
        if self.made is not None:
            self._remember()  # last: files that lose a second name count as touched
        images = len(manifest.files) if self.made else 70_000
        return Fetched(self.final, images, source, tuple(self.notes))

    def _verify(self) -> None:
        assert self.made is not None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Notice)
            data = self.made(self.staging / "ready")
        self.say(f"  verifying {sum(data.sizes().values()):,} images")
        found = verify(data, self.decoding)
        faults = [f"{bad.image}: {bad.reason}" for bad in found.bad]
        if EXACT.get(self.name, True):
            faults += found.mismatches
        else:
            self.notes += found.mismatches
        if faults:
            raise DataError(f"{self.name} is not whole: {join_few(faults, 3)}")
        self.found = found
        mark_sound(fingerprint(data.domain(name)) for name in data.domains)

    def _remember(self) -> None:
        assert self.made is not None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Notice)
            remember_verification(self.made(self.root), self.found)

    def _nothing(self, failures: Sequence[tuple[Source, DspregError]]) -> DspregError:
        """What to fetch by hand, and where to put it."""
        lines = [f"no place delivered {self.name}:"]
        for source, error in failures:
            lines.append(f"  {source.name}: {error}")
        lines += ["", "Fetch it by hand, on any machine, from one of these:"]
        for source, _ in failures:
            if source.repo:
                lines.append(f"  all *.parquet files of https://huggingface.co/datasets/{source.repo}/tree/main")
            lines += [f"  {file.url}  as {file.name}" for file in source.files]
        lines += ["", "put the files of one place into a folder, and run:"]
        lines.append(f"  dspreg data get {self.name} --root {self.root} --from FOLDER")
        lines.append(f"Or put the images themselves into {self.final}, as DomainBed has them.")
        shutil.rmtree(self.staging / "ready", ignore_errors=True)
        if any(path.is_file() for path in self.staging.rglob("*")):
            lines.append(f"What was fetched is kept in {self.staging}, for the next call; remove it if there is none.")
        if all(isinstance(error, ResourceError | ConfigError) for _, error in failures):
            return ResourceError("\n".join(lines))
        return DataError("\n".join(lines))

    def _remove_empty(self) -> None:
        """What a failure left, but for what was fetched: that is resumed."""
        shutil.rmtree(self.staging / "ready", ignore_errors=True)
        for folder in (*self.staging.glob("*"), self.staging):
            with suppress(OSError):  # not empty, or gone
                folder.rmdir()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One process at a time for each data set."""
        make_folder(self.staging)
        try:
            with holding(self.root / f".{self.subfolder.replace('/', '-')}.lock"):
                try:
                    yield
                finally:
                    self._remove_empty()
        except InUse as error:
            raise InUse(f"another process is fetching {self.name} into {self.root}; wait for it") from error


def known_manifest(name: str) -> Manifest | None:
    """The list of files that dspreg brings along, if there is one."""
    file = resources.files("dspreg.data.sources").joinpath(f"{name}.tsv.xz")
    if not file.is_file():
        return None
    return parse_manifest(lzma.decompress(file.read_bytes()), f"{name}.tsv.xz")
