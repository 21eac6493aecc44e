"""A store: the folders of many runs, with plans and failures. Read without torch.

    store.json              format and version
    plans/<id>.json         the runs of each sweep that was started here
    runs/<plan id>/         one folder per run
    failures/<plan id>.json why the last attempt ended, and how many there were; or that it was cancelled
    claims.db               leases: which process works on which run

No file says which runs are finished: their folders are verified. Only the store itself may be a link: its parts are
regular files and folders, or refused by name.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from dspreg.errors import ConfigError, DspregError, IntegrityError
from dspreg.io.atomic_files import (
    Fence,
    canonical_json,
    format_json,
    holds_file,
    make_folder,
    read_json,
    remove,
    require_folder,
    sha256,
    write,
    write_json,
)
from dspreg.runs.folder import RunFolder
from dspreg.runs.leases import Leases
from dspreg.runs.run import Run
from dspreg.runs.status import FAILURE, Failure, RunState, derive_state, read_failure

FORMAT = "dspreg.store/1"
PLAN = "dspreg.plan/1"
ID = re.compile("[0-9a-f]{16}")  # a plan id: it names files, so it is nothing else
PLAN_BYTES = 2**30  # of one plan: a million runs have a quarter of it
FOLDERS = ("plans", "runs", "failures")
CANCELLED = "dspreg retry takes it up again"


class RunStore:
    """A folder of runs. `make` it before anything is written."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._plans: dict[Path, dict[str, Mapping[str, Any]]] = {}  # plans never change: each is read once

    def require_free(self) -> None:
        """Refuse a folder that is neither new nor empty nor a store."""
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(f"{self.path} is a file; give --store a folder")
        about = self.path / "store.json"
        if self.path.exists() and not holds_file(about):
            there = sorted(p.name for p in self.path.iterdir() if not p.match(".*.part"))
            if there and not holds_file(about):  # checked again: another sweep may have created it meanwhile
                raise ConfigError(f"{self.path} is not empty and no store of runs ({there[0]}, …); take a new folder")

    def make(self) -> None:
        """Create the store, or use an existing one."""
        self.require_free()
        about = self.path / "store.json"
        if not holds_file(about):
            make_folder(self.path)
            write_json(about, {"format": FORMAT})
        self.check()
        for name in FOLDERS:
            make_folder(self.path / name)

    def check(self) -> None:
        """Require that it is a store, and one that this version reads, without creating one.

        Raises:
            ConfigError: It is none.
            IntegrityError: It is of another format, or a part of it is a link, a FIFO or the like.
        """
        about = self.path / "store.json"
        if not holds_file(about):
            raise ConfigError(f"{self.path} is no store of runs: there is no store.json. Give the --store of a sweep")
        found = read_json(about)
        found = found.get("format") if isinstance(found, dict) else None
        if found != FORMAT:
            raise IntegrityError(
                f"{about} is of the format {found!r}; this version of dspreg reads {FORMAT!r}. A newer one may read it"
            )
        for name in FOLDERS:
            require_folder(self.path / name)
        for path in self.plans():
            holds_file(path)

    def folder(self, run: Run, *, fence: Fence | None = None) -> RunFolder:
        return RunFolder(Path(self.path, "runs", run.id), fence=fence, linked=False)

    def leases(self) -> Leases:
        return Leases(self.path / "claims.db")

    # Plans.

    def plan(self, runs: Sequence[Run]) -> None:
        """Record the runs of a sweep; the same ones again change nothing."""
        ids = [run.id for run in runs]
        path = self.path / "plans" / f"{sha256(canonical_json(ids).encode())[:16]}.json"
        if not holds_file(path):
            write(path, b"".join(_format_plan(ids, runs)))

    def planned_runs(self) -> list[Run]:
        """All runs of all sweeps, each once."""
        found: dict[str, Run] = {}
        for path in self.plans():
            for each in _read_runs(path, read_plan(path)["runs"]):
                found.setdefault(each.id, each)
        return list(found.values())

    def planned_entries(self) -> dict[str, Mapping[str, Any]]:
        """The same by plan id, as JSON for `Run.from_json`: constructing ten thousand runs takes longer than reading
        them."""
        found: dict[str, Mapping[str, Any]] = {}
        for path in self.plans():
            if path not in self._plans:
                self._plans[path] = dict(_read_entries(path))
            for run, entry in self._plans[path].items():
                found.setdefault(run, entry)
        return found

    def plans(self) -> list[Path]:
        """The file of each sweep."""
        return sorted((self.path / "plans").glob("*.json"))

    # Status.

    def status(self, run: Run, *, weights: bool = True) -> RunState:
        """The status of a run by its files; leases are ignored.

        Args:
            run: Any run, in this store or not.
            weights: Verify models, too; otherwise they only have to exist.
        """
        folder, result = self.folder(run), None
        try:
            folder.check_parts()
            begun = holds_file(folder / "run.json")
            if begun:
                self.require_plan(folder, folder.description(), run)
                result = folder.result(weights=weights)
            if result is not None:
                return derive_state(finished=True, result=result)
            return derive_state(begun=begun, failure=self.failure(run))
        except DspregError as error:
            return derive_state(damage=str(error))

    def require_plan(self, folder: RunFolder, description: Mapping[str, Any], run: Run) -> None:
        """Require that a folder holds the run that its name says.

        Raises:
            IntegrityError: It holds another run.
        """
        require_folder(folder.path)
        where = description.get("where")
        planned: Any = where.get("plan") if isinstance(where, dict) else None
        try:
            same = planned is not None and (planned == run.to_json() or Run.from_json(planned) == run)
        except ConfigError:
            same = False
        if not same:
            raise IntegrityError(f"{folder.path} holds another run than its name says, by where.plan of its run.json")

    def failure(self, run: Run) -> Failure | None:
        """Why a run failed, or that it was cancelled. The record of a diverged run is in its own folder, and wins."""
        return read_failure(self.folder(run) / FAILURE) or read_failure(self._failure(run))

    def fail(self, run: Run, error: BaseException, *, fence: Fence = nullcontext) -> RunState:
        """Record why an attempt failed. The attempt counter resets whenever a run gets further than before, so a job
        preempted every hour still finishes."""
        path, reached = self._failure(run), self._reached(run)
        before = read_failure(path) or Failure("")
        attempts = before.attempts + 1 if reached <= before.record.get("reached", reached) else 1
        failure: dict[str, Any] = {"reason": str(error), "attempts": attempts, "reached": reached, "run": run.to_json()}
        if not isinstance(error, DspregError):  # a bug, of ours or of the user's own method
            failure["reason"] = f"{type(error).__name__}: {error}"
            failure["traceback"] = traceback.format_exception(error)
        write_json(path, failure, fence=fence)
        return self.status(run)

    def succeed(self, run: Run, *, fence: Fence = nullcontext) -> None:
        """Remove the record of failed attempts, and the checkpoints."""
        remove(self._failure(run), fence=fence)
        folder = self.folder(run)
        folder.check_parts()
        checkpoints = folder / "checkpoints"
        for path in checkpoints.glob("step-*"):
            remove(path, fence=fence)
        with suppress(OSError):  # there is no such folder, or it holds files of others
            checkpoints.rmdir()

    def cancel(self, run: Run) -> None:
        """Keep sweeps from working on a run until `retry`. Its files stay, and so does the reason of a failure."""
        path = self._failure(run)
        before = read_failure(path) or Failure("")
        if before.cancelled:
            return
        reason = f"{CANCELLED} (it had failed: {before.reason})" if before.record else CANCELLED
        write_json(path, {**before.record, "reason": reason, "cancelled": True, "run": run.to_json()})

    def retry(self, run: Run) -> None:
        """Remove a failure or cancellation: the run resumes from its last checkpoint, with all its attempts."""
        remove(self._failure(run))
        require_folder(self.folder(run).path)
        remove(self.folder(run) / FAILURE)

    def _reached(self, run: Run) -> int:
        """The step of the newest checkpoint."""
        names = (re.match(r"step-(\d{1,18})-", p.name) for p in (self.folder(run) / "checkpoints").glob("step-*"))
        return max((int(name[1]) for name in names if name), default=-1)

    def _failure(self, run: Run) -> Path:
        return self.path / "failures" / f"{run.id}.json"


def _format_plan(ids: Sequence[str], runs: Iterable[Run]) -> Iterator[bytes]:
    """What `format_json` makes of a plan, run by run: made at once, a million take gigabytes."""
    around = format_json({"format": PLAN, "ids": ids, "runs": []})
    head, tail = around.rsplit(b"[]", 1)
    yield head + b"["
    between = b"\n  "
    for run in runs:
        yield between + format_json(run.to_json()).rstrip().replace(b"\n", b"\n  ")
        between = b",\n  "
    yield (b"\n ]" if ids else b"]") + tail


def read_plan(path: Path) -> Any:
    """One file of `plans`: `runs` as JSON for `Run.from_json`, and their `ids`, which the first stores lack."""
    value = read_json(path, limit=PLAN_BYTES)
    found = value.get("format") if isinstance(value, dict) else None
    if found != PLAN:
        raise IntegrityError(f"{path} is of the format {found!r}; this version of dspreg reads {PLAN!r}")
    if not isinstance(value.get("runs"), list):
        raise IntegrityError(f"{path} is damaged: it has no list of runs")
    return value


def _read_runs(path: Path, entries: Iterable[Any]) -> Iterator[Run]:
    for number, each in enumerate(entries, 1):
        try:
            yield Run.from_json(each)
        except ConfigError as error:
            raise IntegrityError(f"{path} is damaged: run {number} of it: {error}") from error


def _read_entries(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The runs of one plan by their ids; plans of the first version lack ids, which are computed, slowly."""
    plan = read_plan(path)
    runs, ids = plan.get("runs"), plan.get("ids")
    if ids is None:
        for run in _read_runs(path, runs):
            yield run.id, run.to_json()
        return
    texts = isinstance(ids, list) and all(isinstance(each, str) and ID.fullmatch(each) for each in ids)
    if not texts or not isinstance(runs, list) or len(ids) != len(runs) or not all(map(_is_entry, runs)):
        raise IntegrityError(f"{path} is damaged: its ids and runs are not as they are written")
    yield from zip(ids, runs, strict=True)


def _is_entry(value: Any) -> bool:
    """Whether it names a data set and an algorithm; `Run.from_json` checks the rest."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str | None):
        return False
    return isinstance(value.get("dataset"), str) and isinstance(value.get("algorithm"), str)
