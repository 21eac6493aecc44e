"""The folder of one run: its files and their verification. Read without torch.

    run.json          what is trained: settings, data, weights, environment
    records.jsonl     one line per evaluation
    refreshes.jsonl   c by layer, each time it was measured
    profiles/         c before and after training, with null
    selected.safetensors, last.safetensors, trained_images.bin, README.md
    result.json       the outcome, and the SHA-256 of every file above
    failure.json      instead of result.json, if the training diverged
    checkpoints/      while unfinished
    before-last-step/ a checkpoint, with --keep-checkpoint
    calibration.json  with --calibrate
    tracking.json     the key under which trackers know the run, with --track

No file says "done": a run is finished when result.json and all it names have the SHA-256 they should have.

A file has its SHA-256 from the moment it is written: the folder keeps it in memory, checkpoints keep it beyond a crash,
and result.json names that one, never the SHA-256 of what happens to lie on the disk in the end.

The folder may come from a stranger: its parts are regular files and folders, and whatever else has one of their names
is refused.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

from dspreg.errors import ConfigError, IntegrityError, InUse
from dspreg.io.atomic_files import (
    JSON_BYTES,
    LINES_BYTES,
    UNFINISHED,
    Fence,
    Lines,
    canonical_json,
    format_json,
    holds_file,
    make_folder,
    open_regular_file,
    os_errors_as_cant_write,
    parse_json,
    read_regular_file,
    remove,
    remove_partial_files,
    require_folder,
    sha256,
    sha256_of_file,
    write,
)
from dspreg.io.locks import LOCKS_OPEN_FILES, lock_open_file, take_by_name

FORMAT = "dspreg.run/1"
OURS = (  # files that result.json lists; there may be others, such as a scheduler's log
    "run.json", "records.jsonl", "refreshes.jsonl", "results.jsonl", "README.md",
    "selected.safetensors", "last.safetensors", "trained_images.bin", "profiles/*.safetensors", "models/*.safetensors",
)  # fmt: skip
OURS_NAMED = re.compile("|".join(re.escape(pattern).replace(r"\*", r"[^/\0]+") for pattern in OURS))
ALWAYS = ("run.json", "records.jsonl")  # what every finished run has
CALIBRATION = (
    "calibration.json"  # may be made and made again once a run is finished, so that it has a SHA-256 of its own
)
KEPT_CHECKPOINT = "before-last-step"
TRACKING = "tracking.json"
FILES = (*(name for name in OURS if "/" not in name), "result.json", "failure.json", CALIBRATION, TRACKING, "lock")
FOLDERS = ("profiles", "models", "checkpoints", KEPT_CHECKPOINT, "tensorboard")
CARRIED = ("plan", "environments")  # what `where` of an earlier start has, and that of the next may not have
HELD: set[IO[str]] = set()  # locks of this process
LEASED = "under a claim\n"  # contents of the lock file of a sweep's worker; other versions of dspreg read it, too


class Contents(NamedTuple):
    """The verified contents of a run's folder."""

    description: dict[str, Any]
    result: dict[str, Any] | None  # None while unfinished
    records: list[Any]  # of a finished run


class RunFolder:
    """One run's folder.

    Args:
        path: The folder, which need not exist.
        fence: For work under a lease: entered around every change of a file, and raises once the lease is lost.
        linked: Whether its own name may be a link, as a user may have made; in a store it may not.

    Attributes:
        written: The SHA-256 of every file that result.json will name, from when it was written; not of records and
            refreshes, which know what was written to them.
    """

    def __init__(self, path: str | Path, *, fence: Fence | None = None, linked: bool = True):
        self.path = Path(path)
        self.leased = fence is not None
        self.fence: Fence = fence or nullcontext
        self.linked = linked
        self.written: dict[str, str] = {}
        self._agreed: tuple[dict[str, Any], dict[str, Any]] | None = None  # run.json, and what this training says

    @cached_property
    def records(self) -> Lines:
        return Lines(self / "records.jsonl", fence=self.fence)

    @cached_property
    def refreshes(self) -> Lines:
        return Lines(self / "refreshes.jsonl", fence=self.fence)

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def part(self, name: str) -> Path:
        """Where a file or folder of the run lies, once no folder on the way to it is a link."""
        self._require_parents(name)
        return self / name

    def _require_parents(self, name: str) -> None:
        if "/" in name:
            for parent in list(PurePosixPath(name).parents)[:-1]:
                require_folder(self / str(parent))

    def check_parts(self) -> None:
        """Refuse a folder some part of which is a link, a FIFO or the like: it would be written through.

        Raises:
            IntegrityError: The message names the part.
        """
        if not self.linked:
            require_folder(self.path)
        for name in FILES:
            holds_file(self / name)
        for name in FOLDERS:
            require_folder(self / name)

    # Changing files.

    def write(self, name: str, data: bytes) -> None:
        """Replace a file atomically, and create its folder."""
        path = self.part(name)
        make_folder(path.parent)
        write(path, data, fence=self.fence)
        if OURS_NAMED.fullmatch(name):
            self.written[name] = sha256(data)

    def write_json(self, name: str, value: Any) -> None:
        """The same, for people too: indented."""
        self.write(name, format_json(value))

    def remove(self, name: str) -> None:
        remove(self.part(name), fence=self.fence)

    def remove_partial_files(self) -> None:
        """Remove half-written files of a crash."""
        remove_partial_files(self.path, fence=self.fence)

    # What is trained.

    def description(self) -> dict[str, Any]:
        """The contents of run.json, verified."""
        return self._described(self._run())

    def begun_settings(self) -> dict[str, Any] | None:
        """The settings in run.json, if there are any; what else is wrong with that file `agree` will say."""
        settings = self.description().get("settings") if (self / "run.json").exists() else None
        return settings if isinstance(settings, dict) else None

    def _run(self) -> bytes:
        if not self._holds("run.json"):
            raise ConfigError(f"{self.path} holds no run: there is no run.json. Give the --out folder of a training")
        return self._read("run.json")

    def _described(self, data: bytes) -> dict[str, Any]:
        found: dict[str, Any] = parse_json(f"{self.path}/run.json", data)
        version = found.get("format") if isinstance(found, dict) else None
        if version != FORMAT:
            raise IntegrityError(
                f"{self / 'run.json'} is of the format {version!r}; this version of dspreg reads {FORMAT!r}"
            )
        self._digest("run.json", [found.get("id"), found.get("where")])  # fields that are not part of the id
        if self._digest("run.json", essence(found)) != found.get("id"):
            raise IntegrityError(f"{self / 'run.json'} was changed: its id is not that of its contents")
        return found

    def agree(self, described: Mapping[str, Any], *, changed_environment: bool = False) -> str:
        """Write run.json, or compare it with the one in the folder. Returns the run's id.

        Raises:
            ConfigError: The folder belongs to another training; the message shows the difference.
        """
        mine = json.loads(canonical_json({**described, "format": FORMAT}))  # as read back: tuples become lists
        mine["id"] = identity(mine)
        if not self._holds("run.json"):
            self.write_json("run.json", mine)
        data = self._run()
        there, self.written["run.json"] = self._described(data), sha256(data)
        self.remove_partial_files()  # not before: the folder might not have been a run
        ignored = {"environment"} if changed_environment else set()
        changes = [c for c in differences(there, mine) if c[0].split(".")[0] not in ignored | {"id", "where"}]
        if changes:
            lines = "\n".join(f"  {name}: {_brief(was)} → {_brief(now)}" for name, was, now in changes)
            environment = all(name.startswith("environment") for name, _, _ in changes)
            flags = [_flag(name.removeprefix("environment."), was) for name, was, _ in changes]
            device = f" ({' '.join(filter(None, flags))})" if any(flags) else ""
            way = (
                f"results would not be bitwise identical. Restore the environment{device}, or resume with "
                "--allow-changed-environment"
                if environment
                else "resume with the settings it has, or give another --out"
            )
            raise ConfigError(f"{self.path} holds another training:\n{lines}\n{way}")
        self._agreed = there, mine
        self.carry(self.carried)
        return str(there["id"])

    @property
    def carried(self) -> dict[str, Any]:
        """What run.json keeps of earlier starts beside all that decides the result: checkpoints keep it, too."""
        there = self._agreed[0].get("where", {}) if self._agreed else {}
        return {name: there[name] for name in CARRIED if name in there}

    def carry(self, carried: Mapping[str, Any]) -> None:
        """Record where the files are now, and further environments that the run was resumed in; neither is part of the
        id.

        Args:
            carried: As it was when the files of the run were made.
        """
        if self._agreed is None:
            return
        there, mine = self._agreed
        where = {**carried, **mine.get("where", {})}
        seen = [there["environment"], *where.get("environments", [])] if "environment" in there else []
        if mine.get("environment") not in seen and seen:
            where["environments"] = [*where.get("environments", []), mine["environment"]]
        if where != there.get("where", {}) and not self._holds("result.json"):
            there = {**there, "where": where}
            self.write_json("run.json", there)
            self._agreed = there, mine

    # What was written before a crash.

    def verify(self, written: Mapping[str, str]) -> dict[str, str]:
        """Which of these files are not what they were when they were written: by name, what is wrong.

        Args:
            written: SHA-256 by name, as a checkpoint keeps them.
        """
        found = {}
        for name, expected in written.items():
            try:
                self._require(name, expected, "it was written with")
            except IntegrityError as error:
                found[name] = str(error)
        return found

    def unverified(self) -> list[str]:
        """Files that a checkpoint of an earlier version says nothing about, though a finished run names them."""
        found = (
            path for pattern in ("profiles/*.safetensors", "models/*.safetensors") for path in self.path.glob(pattern)
        )
        return sorted(path.relative_to(self.path).as_posix() for path in found if holds_file(path))

    def _require(self, name: str, expected: str, by: str) -> None:
        if not self._holds(name):
            raise IntegrityError(f"{self / name} is missing")
        if self.hash(name) != expected:
            raise IntegrityError(f"{self / name} is damaged or was changed: its SHA-256 is not the one {by}")

    # Whether it is finished.

    def finish(self, outcome: Mapping[str, Any]) -> None:
        """Write result.json, with the SHA-256 that every file had when it was written.

        Raises:
            IntegrityError: A file is something else by now. Nothing is written then.
        """
        files = dict(self.written)
        for name, lines in (("records.jsonl", self.records), ("refreshes.jsonl", self.refreshes)):
            if lines.written or self._holds(name):
                files[name] = sha256(lines.written)
        damaged = self.verify(files)
        if damaged:
            raise IntegrityError(
                f"{'; '.join(damaged.values())}. The same command again resumes from the last checkpoint, and writes "
                "again what it can. Is the disk damaged?"
            )
        result = {**outcome, "files": dict(sorted(files.items()))}
        self.write_json("result.json", {**result, "sha256": sha256(canonical_json(result).encode())})

    def result(self, *, weights: bool = True) -> dict[str, Any] | None:
        """The outcome of a finished run, every file verified; None while unfinished.

        Args:
            weights: Verify models and profiles, too. Otherwise they only have to exist: tables of a thousand runs don't
                need their hundreds of gigabytes.

        Raises:
            IntegrityError: A file is damaged or missing.
        """
        return self._sealed({}, weights=weights)[0] if self._holds("result.json") else None

    def profile(self, when: str) -> Path:
        """The file of a finished run's profile, verified.

        Args:
            when: `"start"` or `"end"` of training.

        Raises:
            ConfigError: It is not finished, or left no such profile.
            IntegrityError: The file is damaged.
        """
        name, result = f"profiles/{when}.safetensors", self.result(weights=False)
        if result is None or name not in result["files"]:
            raise ConfigError(f"{self.path} has no {name}; wanted a finished run, trained with --profile always")
        self._require(name, result["files"][name], "in result.json")
        return self / name

    def contents(self) -> Contents:
        """What reports need; every file but models and profiles is verified and read once.

        So the reported bytes are the verified ones, even if another process writes meanwhile.
        """
        run = self._run()
        described = self._described(run)
        if not self._holds("result.json"):
            return Contents(described, None, [])
        result, read = self._sealed({"run.json": run}, weights=False)
        return Contents(described, result, self.records.of(read.get("records.jsonl", b"")))

    def _sealed(self, read: dict[str, bytes], *, weights: bool) -> tuple[dict[str, Any], dict[str, bytes]]:
        """The verified outcome, and the bytes of all listed files except models and profiles, which are large."""
        result = parse_json(f"{self.path}/result.json", self._read("result.json"))
        stamp = result.pop("sha256", None) if isinstance(result, dict) else None
        if stamp != self._digest("result.json", result):
            raise IntegrityError(f"{self / 'result.json'} is damaged: its SHA-256 is not the one in it")
        for name, expected in self._named(result).items():
            if name not in read and not self._holds(name):
                raise IntegrityError(f"{self / name} is missing; result.json says it belongs to the run")
            if name.endswith(".safetensors"):
                found = self.hash(name) if weights else expected
            else:
                read[name] = read[name] if name in read else self._read(name)
                found = sha256(read[name])
            if found != expected:
                path = self / name
                raise IntegrityError(f"{path} is damaged or was changed: its SHA-256 is not the one in result.json")
        return result, read

    def _named(self, result: dict[str, Any]) -> dict[str, str]:
        """The files that a result names, all of them ours: a stranger's may name what is not, to have it read."""
        files, about = result.get("files"), self / "result.json"
        if not isinstance(files, dict):
            raise IntegrityError(f"{about} names no files")
        strange = next((name for name in files if not OURS_NAMED.fullmatch(name)), None)
        if strange is not None:
            raise IntegrityError(f"{about} names {strange!r}, which is no file of a run")
        missing = next((name for name in ALWAYS if name not in files), None)
        if missing:
            raise IntegrityError(f"{about} does not name {missing}, which every finished run has")
        return files

    def _holds(self, name: str) -> bool:
        self._require_parents(name)
        return holds_file(f"{self.path}/{name}")  # no Path: one per file takes a second for ten thousand runs

    def hash(self, name: str) -> str:
        """SHA-256 of a file of the run as it is now."""
        try:
            return sha256_of_file(self.part(name))
        except OSError as error:
            raise IntegrityError(f"{self / name} can't be read: {error}") from error

    def _read(self, name: str) -> bytes:
        self._require_parents(name)
        limit = LINES_BYTES if name.endswith(".jsonl") else JSON_BYTES
        try:
            return read_regular_file(f"{self.path}/{name}", limit=limit)
        except OSError as error:
            raise IntegrityError(f"{self / name} can't be read: {error}") from error

    def _digest(self, name: str, value: Any) -> str:
        """SHA-256 of a value in a file; also refuses values that are not plain JSON, as `parse_json` requires."""
        try:
            return sha256(canonical_json(value).encode())
        except ValueError as error:
            raise IntegrityError(f"{self / name} can't be read: {error}") from error

    # Locking.

    def _refuse_strangers(self) -> None:
        """Refuse a folder that holds something else, before anything is written."""
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(f"{self.path} is a file; give --out a folder")
        if self.path.exists() and not self._holds("run.json"):
            ours = ("lock", f".run.json.*{UNFINISHED}")  # left by a crash at the start
            strangers = sorted(p.name for p in self.path.iterdir() if not any(map(p.match, ours)))
            if strangers and not self._holds("run.json"):  # another process may have written it meanwhile
                raise ConfigError(f"{self.path} is not empty and holds no run ({strangers[0]}, …); take a new folder")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Exclusive use of the folder; the lock ends with the process, however it ends.

        A process with a lease takes the lock from one with an older lease: that process was suspended past the end of
        its lease, and its fence refuses every write.
        """
        self._refuse_strangers()
        make_folder(self.path)
        with os_errors_as_cant_write(self.path, 0):
            self.check_parts()
        with self._locked_open() if LOCKS_OPEN_FILES else self._locked_by_name():
            yield

    @contextmanager
    def _locked_by_name(self) -> Iterator[None]:
        """On Windows, where an open file can't be removed: a suspended process keeps the folder until it ends."""
        if (lock := take_by_name(self / "lock")) is None:
            raise self._in_use()
        try:
            with lock:
                yield
        finally:
            with suppress(OSError):  # it holds something
                self.path.rmdir()

    @contextmanager
    def _locked_open(self) -> Iterator[None]:
        with os_errors_as_cant_write(self.path, 0):
            handle = self._lock()
        with handle:
            HELD.add(handle)
            try:
                yield
            finally:
                HELD.remove(handle)
                with suppress(OSError):  # a folder with a lock alone does no harm, and hides no reason for the end
                    refused = [p.name for p in self.path.iterdir()] == ["lock"]  # before anything was written
                    if refused and self._names(handle):
                        (self / "lock").unlink()
                        self.path.rmdir()

    def _lock(self) -> IO[str]:
        path = self / "lock"
        while True:
            handle = os.fdopen(open_regular_file(path, os.O_RDWR | os.O_APPEND | os.O_CREAT), "a+")
            try:
                lock_open_file(handle)
            except BlockingIOError:
                handle.seek(0)
                theirs_is_leased = handle.read() == LEASED
                handle.close()
                if not (self.leased and theirs_is_leased):
                    raise self._in_use() from None
                path.unlink(missing_ok=True)  # the suspended process keeps its lock, on a file without a name
                continue
            if os.fstat(handle.fileno()).st_nlink > 1:  # `cp -al`, say: what has other names is not ours to empty
                path.unlink(missing_ok=True)
            elif self._names(handle):
                handle.truncate(0)
                handle.write(LEASED if self.leased else "")
                handle.flush()
                if self._names(handle):  # the old contents may have let another process take the lock
                    return handle
            handle.close()  # it was taken over, or removed, in between

    def _in_use(self) -> InUse:
        return InUse(f"{self.path} is in use by another training; wait for it or stop it")

    def _names(self, handle: IO[str]) -> bool:
        """Whether the lock in the folder is this one."""
        try:
            return os.path.samestat(os.fstat(handle.fileno()), os.lstat(self / "lock"))
        except FileNotFoundError:
            return False


def _let_go() -> None:
    """Close locks in a forked worker, which would hold them for seconds after the training was killed."""
    for handle in HELD:
        handle.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


def _flag(name: str, was: Any) -> str:
    """The flag that gives a training the environment it began in; empty where there is none."""
    if name == "compile":
        return "--compile" if was else "without --compile"
    if name == "layout":
        return f"--layout {was or 'channels-first'}"  # what was before there was a choice is not recorded
    return f"--{name} {was}" if name in ("device", "threads") else ""


def _brief(value: Any) -> str:
    """A value in short; the start of a SHA-256 is enough to see that it changed."""
    return value[:8] + "…" if isinstance(value, str) and len(value) == 64 else repr(value)


def identity(described: Mapping[str, Any]) -> str:
    """The id of a run."""
    return sha256(canonical_json(essence(described)).encode())


def essence(described: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that decides the result of a run."""
    return {k: v for k, v in described.items() if k not in ("id", "where")}


def _rows(value: Any) -> bool:
    """Whether it is a list of objects, such as the members of a soup."""
    return isinstance(value, list) and bool(value) and all(isinstance(each, Mapping) for each in value)


def differences(was: Any, now: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Every leaf that differs, by its dotted name."""
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        for key in sorted({*was, *now}):
            yield from differences(was.get(key), now.get(key), f"{name}.{key}".lstrip("."))
    elif _rows(was) and _rows(now) and len(was) == len(now):
        for number, (before, after) in enumerate(zip(was, now, strict=True)):
            yield from differences(before, after, f"{name}[{number}]")
    elif was != now:
        yield name, was, now
