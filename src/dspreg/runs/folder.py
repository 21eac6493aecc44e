"""The folder of one run: its files and their verification. Read without torch.

    run.json          what is trained: settings, data, weights, environment
    records.jsonl     one line per evaluation
    refreshes.jsonl   c by layer, each time it was measured
    profiles/         c before and after training, with null
    selected.safetensors, last.safetensors, README.md
    result.json       the outcome, and the SHA-256 of every file above
    failure.json      instead of result.json, if the training diverged
    checkpoints/      while unfinished

No file says "done": a run is finished when result.json and all it names have the SHA-256 they should have.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from os.path import isfile
from pathlib import Path
from typing import IO, Any, NamedTuple

from dspreg.errors import ConfigError, IntegrityError, InUse
from dspreg.io.atomic_files import (
    UNFINISHED,
    Fence,
    Lines,
    canonical_json,
    make_folder,
    os_errors_as_cant_write,
    parse_json,
    remove,
    remove_partial_files,
    sha256,
    sha256_of_file,
    write,
    write_json,
)

FORMAT = "dspreg.run/1"
OURS = (  # files that result.json lists; there may be others, such as a scheduler's log
    "run.json", "records.jsonl", "refreshes.jsonl", "results.jsonl", "README.md",
    "selected.safetensors", "last.safetensors", "profiles/*.safetensors", "models/*.safetensors",
)  # fmt: skip
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
    """

    def __init__(self, path: str | Path, *, fence: Fence | None = None):
        self.path = Path(path)
        self.leased = fence is not None
        self.fence: Fence = fence or nullcontext

    @property
    def records(self) -> Lines:
        return Lines(self / "records.jsonl", fence=self.fence)

    @property
    def refreshes(self) -> Lines:
        return Lines(self / "refreshes.jsonl", fence=self.fence)

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    # Changing files.

    def write(self, name: str, data: bytes) -> None:
        """Replace a file atomically, and create its folder."""
        make_folder((self / name).parent)
        write(self / name, data, fence=self.fence)

    def write_json(self, name: str, value: Any) -> None:
        write_json(self / name, value, fence=self.fence)

    def remove(self, name: str) -> None:
        remove(self / name, fence=self.fence)

    def remove_partial_files(self) -> None:
        """Remove half-written files of a crash."""
        remove_partial_files(self.path, fence=self.fence)

    # What is trained.

    def description(self) -> dict[str, Any]:
        """The contents of run.json, verified."""
        return self._described(self._run())

    def _run(self) -> bytes:
        if not self._holds("run.json"):
            raise ConfigError(f"{self.path} holds no run: there is no run.json. Give the --out folder of a training")
        return self._read("run.json")

    def _described(self, data: bytes) -> dict[str, Any]:
        found = parse_json(f"{self.path}/run.json", data)
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise IntegrityError(f"{self / 'run.json'} is not of the format {FORMAT!r}; which version wrote it?")
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
        if not (self / "run.json").exists():
            self.write_json("run.json", mine)
        there = self.description()
        self.remove_partial_files()  # not before: the folder might not have been a run
        ignored = {"environment"} if changed_environment else set()
        changes = [c for c in differences(there, mine) if c[0].split(".")[0] not in ignored | {"id", "where"}]
        if changes:
            lines = "\n".join(f"  {name}: {_brief(was)} → {_brief(now)}" for name, was, now in changes)
            environment = all(name.startswith("environment") for name, _, _ in changes)
            way = (
                "results would not be bitwise identical. Restore the environment, or resume with "
                "--allow-changed-environment"
                if environment
                else "resume with the settings it has, or give another --out"
            )
            raise ConfigError(f"{self.path} holds another training:\n{lines}\n{way}")
        self._note_changes(there, mine)
        return str(there["id"])

    def _note_changes(self, there: dict[str, Any], mine: dict[str, Any]) -> None:
        """Record where the files are now, and further environments that the run was resumed in; neither is part of the
        id."""
        where = {**there.get("where", {}), **mine.get("where", {})}
        seen = [there["environment"], *where.get("environments", [])] if "environment" in there else []
        if mine.get("environment") not in seen and seen:
            where["environments"] = [*where.get("environments", []), mine["environment"]]
        if where != there.get("where", {}) and not (self / "result.json").exists():
            self.write_json("run.json", {**there, "where": where})

    # Whether it is finished.

    def finish(self, outcome: Mapping[str, Any]) -> None:
        """Write result.json, with the SHA-256 of every file."""
        names = sorted(str(p.relative_to(self.path)) for pattern in OURS for p in self.path.glob(pattern))
        result = {**outcome, "files": {name: sha256_of_file(self / name) for name in names}}
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
        for name, expected in result["files"].items():
            if name not in read and not self._holds(name):
                raise IntegrityError(f"{self / name} is missing; result.json says it belongs to the run")
            if name.endswith(".safetensors"):
                found = sha256_of_file(self / name) if weights else expected
            else:
                read[name] = read[name] if name in read else self._read(name)
                found = sha256(read[name])
            if found != expected:
                path = self / name
                raise IntegrityError(f"{path} is damaged or was changed: its SHA-256 is not the one in result.json")
        return result, read

    def _holds(self, name: str) -> bool:
        return isfile(f"{self.path}/{name}")  # no Path: creating one per file takes a second for ten thousand runs

    def _read(self, name: str) -> bytes:
        try:
            with open(f"{self.path}/{name}", "rb", buffering=0) as file:
                return file.read()
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
        if self.path.exists() and not (self / "run.json").exists():
            ours = ("lock", f".run.json.*{UNFINISHED}")  # left by a crash at the start
            strangers = sorted(p.name for p in self.path.iterdir() if not any(map(p.match, ours)))
            if strangers and not (self / "run.json").exists():  # another process may have written it meanwhile
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
            handle = self._lock()
        with handle:
            HELD.add(handle)
            try:
                yield
            finally:
                HELD.remove(handle)
                refused = [p.name for p in self.path.iterdir()] == ["lock"]  # before anything was written
                if refused and self._names(handle):
                    (self / "lock").unlink()
                    self.path.rmdir()

    def _lock(self) -> IO[str]:
        import fcntl  # here, because Windows lacks it and must still be able to read results

        path = self / "lock"
        while True:
            handle = path.open("a+")
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                handle.seek(0)
                theirs_is_leased = handle.read() == LEASED
                handle.close()
                if not (self.leased and theirs_is_leased):
                    raise InUse(f"{self.path} is in use by another training; wait for it or stop it") from None
                path.unlink(missing_ok=True)  # the suspended process keeps its lock, on a file without a name
                continue
            if self._names(handle):
                handle.truncate(0)
                handle.write(LEASED if self.leased else "")
                handle.flush()
                if self._names(handle):  # the old contents may have let another process take the lock
                    return handle
            handle.close()  # it was taken over, or removed, in between

    def _names(self, handle: IO[str]) -> bool:
        """Whether the lock in the folder is this one."""
        try:
            return os.path.samestat(os.fstat(handle.fileno()), (self / "lock").stat())
        except FileNotFoundError:
            return False


def _let_go() -> None:
    """Close locks in a forked worker, which would hold them for seconds after the training was killed."""
    for handle in HELD:
        handle.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


def _brief(value: Any) -> str:
    """A value in short; the start of a SHA-256 is enough to see that it changed."""
    return value[:8] + "…" if isinstance(value, str) and len(value) == 64 else repr(value)


def identity(described: Mapping[str, Any]) -> str:
    """The id of a run."""
    return sha256(canonical_json(essence(described)).encode())


def essence(described: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that decides the result of a run."""
    return {k: v for k, v in described.items() if k not in ("id", "where")}


def differences(was: Any, now: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Every leaf that differs, by its dotted name."""
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        for key in sorted({*was, *now}):
            yield from differences(was.get(key), now.get(key), f"{name}.{key}".lstrip("."))
    elif was != now:
        yield name, was, now
