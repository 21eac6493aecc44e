"""A store: the folders of many runs, what was planned, and what failed. Read without torch.

    store.json              what this is
    plans/<id>.json         the runs of each sweep that was started here
    runs/<plan id>/         one folder per run
    failures/<plan id>.json why the last attempt ended, and how many there were; or that it was cancelled
    claims.db               leases: which process works on what

No file says which runs are finished: their folders are verified. Only the store itself may be a link: its parts are
regular files and folders, or refused by name.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from dspreg.errors import ConfigError, DspregError, IntegrityError
from dspreg.io.atomic_files import (
    Fence,
    canonical_json,
    holds_file,
    make_folder,
    read_json,
    remove,
    require_folder,
    sha256,
    write_json,
)
from dspreg.runs.folder import RunFolder
from dspreg.runs.leases import Leases
from dspreg.runs.run import Run
from dspreg.runs.status import FAILURE, Failure, RunState, derive_state, read_failure

FORMAT = "dspreg.store/1"
PLAN = "dspreg.plan/1"
PLAN_BYTES = 2**30  # of one plan: a million runs have a quarter of it
PLAN_ID = re.compile("[0-9a-f]{16}")
FOLDERS = ("plans", "runs", "failures")
CANCELLED = "dspreg retry takes it up again"


class RunStore:
    """A folder of runs. `make` it before anything is written."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._plans: dict[Path, dict[str, Mapping[str, Any]]] = {}  # plans never change: each is read once

    def require_free(self) -> None:
        """Whether runs may go there: it is new, empty or a store; a folder that holds something else is left alone."""
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(f"{self.path} is a file; give --store a folder")
        about = self.path / "store.json"
        if self.path.exists() and not holds_file(about):
            there = sorted(p.name for p in self.path.iterdir() if not p.match(".*.part"))
            if there and not holds_file(about):  # looked at again: another sweeper may have made it meanwhile
                raise ConfigError(f"{self.path} is not empty and no store of runs ({there[0]}, …); take a new folder")

    def make(self) -> None:
        """New, or as it is."""
        self.require_free()
        about = self.path / "store.json"
        if not holds_file(about):
            make_folder(self.path)
            write_json(about, {"format": FORMAT})
        self.check()
        for name in FOLDERS:
            make_folder(self.path / name)

    def check(self) -> None:
        """Require that it is a store, and one that this version reads, without making one.

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

    def folder(self, run: Run, *, fence: Fence | None = None) -> RunFolder:
        return RunFolder(Path(self.path, "runs", run.id), fence=fence, linked=False)

    def leases(self) -> Leases:
        return Leases(self.path / "claims.db")

    # What was planned.

    def plan(self, runs: Sequence[Run]) -> None:
        """Record the runs of a sweep; the same ones again change nothing."""
        ids = [run.id for run in runs]
        path = self.path / "plans" / f"{sha256(canonical_json(ids).encode())[:16]}.json"
        if not path.exists():
            write_json(path, {"format": PLAN, "ids": ids, "runs": [run.to_json() for run in runs]})

    def planned_runs(self) -> list[Run]:
        """All runs of all sweeps, each once."""
        found: dict[str, Run] = {}
        for path in self.plans():
            for each in _runs_of(path, read_plan(path)["runs"]):
                found.setdefault(each.id, each)
        return list(found.values())

    def planned_entries(self) -> dict[str, Mapping[str, Any]]:
        """The same by plan id, as `Run.from_json` takes them: ten thousand runs take longer to make than to read."""
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

    # Their status.

    def status(self, run: Run, *, weights: bool = True) -> RunState:
        """The status of a run, from its files as they are now; leases are not looked at.

        Args:
            run: Of this store or not.
            weights: Read models too; without, they need only be there.
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
        """Whether a folder holds the run that its name says.

        Raises:
            IntegrityError: It holds another one.
        """
        require_folder(folder.path)
        planned = description.get("where", {}).get("plan")
        if planned is None or (planned != run.to_json() and Run.from_json(planned) != run):
            raise IntegrityError(f"{folder.path} holds another run than its name says")

    def failure(self, run: Run) -> Failure | None:
        """Why it failed, or that it was cancelled: what its own folder says, where it diverged, before the store's."""
        return read_failure(self.folder(run) / FAILURE) or read_failure(self._failure(run))

    def fail(self, run: Run, error: BaseException, *, fence: Fence = nullcontext) -> RunState:
        """Record why an attempt failed. The number of attempts starts again whenever a run got further than before, so
        that a job that is preempted every hour still finishes."""
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
        """Forget failed attempts before this one, and checkpoints."""
        remove(self._failure(run), fence=fence)
        folder = self.folder(run)
        folder.check_parts()
        checkpoints = folder / "checkpoints"
        for path in checkpoints.glob("step-*"):
            remove(path, fence=fence)
        with suppress(OSError):  # there is none, or it holds a file that is not ours
            checkpoints.rmdir()

    def cancel(self, run: Run) -> None:
        """No sweep works on it until `retry`. What it has so far stays, and why it failed if it did."""
        path = self._failure(run)
        before = read_failure(path) or Failure("")
        if before.cancelled:
            return
        reason = f"{CANCELLED} (it had failed: {before.reason})" if before.record else CANCELLED
        write_json(path, {**before.record, "reason": reason, "cancelled": True, "run": run.to_json()})

    def retry(self, run: Run) -> None:
        """Forget that it failed or was cancelled: it goes on from its last checkpoint, with all its attempts."""
        remove(self._failure(run))
        require_folder(self.folder(run).path)
        remove(self.folder(run) / FAILURE)

    def _reached(self, run: Run) -> int:
        """The step of the newest checkpoint."""
        names = (re.match(r"step-(\d{1,18})-", p.name) for p in (self.folder(run) / "checkpoints").glob("step-*"))
        return max((int(name[1]) for name in names if name), default=-1)

    def _failure(self, run: Run) -> Path:
        return self.path / "failures" / f"{run.id}.json"


def read_plan(path: Path) -> Any:
    """One file of `plans`: `runs` as `Run.from_json` takes them, and their `ids` but in the first stores."""
    value = read_json(path, limit=PLAN_BYTES)
    found = value.get("format") if isinstance(value, dict) else None
    if found != PLAN:
        raise IntegrityError(f"{path} is of the format {found!r}; this version of dspreg reads {PLAN!r}")
    if not isinstance(value.get("runs"), list):
        raise IntegrityError(f"{path} is damaged: it has no list of runs")
    return value


def _runs_of(path: Path, entries: Sequence[Any]) -> Iterator[Run]:
    for entry in entries:
        try:
            yield Run.from_json(entry)
        except (DspregError, TypeError, ValueError, AttributeError) as error:
            raise IntegrityError(f"{path} is damaged: {error}") from error


def _read_entries(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The runs of one plan by their ids; plans of the first version have none, and are read the slow way."""
    plan = read_plan(path)
    runs, ids = plan.get("runs"), plan.get("ids")
    if ids is None:
        for run in _runs_of(path, runs):
            yield run.id, run.to_json()
        return
    # they become names of folders
    texts = isinstance(ids, list) and all(isinstance(each, str) and PLAN_ID.fullmatch(each) for each in ids)
    if not texts or not isinstance(runs, list) or len(ids) != len(runs) or not all(map(_is_entry, runs)):
        raise IntegrityError(f"{path} is damaged: its ids and runs are not as they are written")
    yield from zip(ids, runs, strict=True)


def _is_entry(value: Any) -> bool:
    """Whether it has what names its data set and algorithm; all else is for `Run.from_json` to check."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str | None):
        return False
    return isinstance(value.get("dataset"), str) and isinstance(value.get("algorithm"), str)
