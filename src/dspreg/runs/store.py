"""A store: the folders of many runs, what was planned, and what failed. Read without torch.

    store.json              what this is
    plans/<id>.json         the runs of each sweep that was started here
    runs/<plan id>/         one folder per run
    failures/<plan id>.json why the last attempt ended, and how many there were; or that it was cancelled
    claims.db               leases: which process works on what

No file says which runs are finished: their folders are verified.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspreg.errors import ConfigError, DspregError, IntegrityError
from dspreg.io.atomic_files import Fence, canonical_json, make_folder, read_json, remove, sha256, write_json
from dspreg.runs.folder import RunFolder
from dspreg.runs.leases import Leases
from dspreg.runs.run import Run

FORMAT = "dspreg.store/1"
PLAN = "dspreg.plan/1"
CANCELLED = "dspreg retry takes it up again"


@dataclass(frozen=True)
class Standing:
    """How a run stands: `new`, `started`, `finished`, `failed`, `cancelled` or `damaged`, and why."""

    state: str
    reason: str = ""
    result: dict[str, Any] | None = None
    attempts: int = 0  # failed ones; 0 for one that diverged: another would come to the same bits

    def settled(self, attempts: int) -> bool:
        """Whether nothing is left to do, if a run may be tried so many times."""
        if self.state == "failed":
            return self.attempts == 0 or self.attempts >= attempts
        return self.state in ("finished", "cancelled", "damaged")


class RunStore:
    """A folder of runs. `make` it before anything is written."""

    def __init__(self, path: str | Path):
        self.path = Path(path)

    def require_free(self) -> None:
        """Whether runs may go there: it is new, empty or a store; a folder that holds something else is left alone."""
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(f"{self.path} is a file; give --store a folder")
        about = self.path / "store.json"
        if self.path.exists() and not about.exists():
            there = sorted(p.name for p in self.path.iterdir() if not p.match(".*.part"))
            if there and not about.exists():  # looked at again: another sweeper may have made it meanwhile
                raise ConfigError(f"{self.path} is not empty and no store of runs ({there[0]}, …); take a new folder")

    def make(self) -> None:
        """New, or as it is."""
        self.require_free()
        about = self.path / "store.json"
        if not about.exists():
            make_folder(self.path)
            write_json(about, {"format": FORMAT})
        self.check()
        for name in ("plans", "runs", "failures"):
            make_folder(self.path / name)

    def check(self) -> None:
        """Whether it is one, for those who make none."""
        about = self.path / "store.json"
        if not about.is_file():
            raise ConfigError(f"{self.path} is no store of runs: there is no store.json. Give the --store of a sweep")
        found = read_json(about)
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise IntegrityError(f"{about} is not of the format {FORMAT!r}; which version wrote it?")

    def folder(self, run: Run, *, fence: Fence | None = None) -> RunFolder:
        return RunFolder(Path(self.path, "runs", run.id), fence=fence)

    def leases(self) -> Leases:
        return Leases(self.path / "claims.db")

    # What was planned.

    def plan(self, runs: Sequence[Run]) -> None:
        """Note the runs of a sweep; the same ones again change nothing."""
        ids = [run.id for run in runs]
        path = self.path / "plans" / f"{sha256(canonical_json(ids).encode())[:16]}.json"
        if not path.exists():
            write_json(path, {"format": PLAN, "ids": ids, "runs": [run.to_json() for run in runs]})

    def planned(self) -> list[Run]:
        """All runs of all sweeps, each once."""
        found: dict[str, Run] = {}
        for path in self.plans():
            for each in map(Run.from_json, read_plan(path)["runs"]):
                found.setdefault(each.id, each)
        return list(found.values())

    def plans(self) -> list[Path]:
        """The file of each sweep."""
        return sorted((self.path / "plans").glob("*.json"))

    # What became of it.

    def standing(self, run: Run, *, weights: bool = True) -> Standing:
        """How a run stands, from its files as they are now.

        Args:
            run: Of this store or not.
            weights: Read models too; without, they need only be there.
        """
        folder = self.folder(run)
        try:
            if not (folder / "run.json").exists():
                return self._failed(run) or Standing("new")
            planned = folder.description().get("where", {}).get("plan")
            if planned is None or Run.from_json(planned) != run:
                raise IntegrityError(f"{folder.path} holds another run than its name says")
            result = folder.result(weights=weights)
            if result is not None:
                return Standing("finished", result=result)
            diverged = _if_there(folder / "failure.json")
            if diverged is not None:
                return Standing("failed", str(diverged["reason"]))
            return self._failed(run) or Standing("started")
        except DspregError as error:
            return Standing("damaged", str(error))

    def _failed(self, run: Run) -> Standing | None:
        found = _if_there(self._failure(run))
        if found is None:
            return None
        if found.get("cancelled"):
            return Standing("cancelled", str(found["reason"]))
        return Standing("failed", str(found["reason"]), attempts=int(found["attempts"]))

    def fail(self, run: Run, error: BaseException, *, fence: Fence = nullcontext) -> Standing:
        """Keep why an attempt ended. One that came further than the one before is the first again: who is killed every
        hour gets to the end all the same."""
        path, reached = self._failure(run), self._reached(run)
        before = read_json(path) if path.exists() else {}
        attempts = before.get("attempts", 0) + 1 if reached <= before.get("reached", reached) else 1
        failure: dict[str, Any] = {"reason": str(error), "attempts": attempts, "reached": reached, "run": run.to_json()}
        if not isinstance(error, DspregError):  # a bug, of ours or of the user's own method
            failure["reason"] = f"{type(error).__name__}: {error}"
            failure["traceback"] = traceback.format_exception(error)
        write_json(path, failure, fence=fence)
        return self.standing(run)

    def succeed(self, run: Run, *, fence: Fence = nullcontext) -> None:
        """Forget failed attempts before this one, and checkpoints."""
        remove(self._failure(run), fence=fence)
        checkpoints = self.folder(run) / "checkpoints"
        for path in checkpoints.glob("step-*"):
            remove(path, fence=fence)
        with suppress(OSError):  # there is none, or it holds a file that is not ours
            checkpoints.rmdir()

    def cancel(self, run: Run) -> None:
        """Nobody is to work on it, until `retry`. What it has so far stays, and why it failed if it did."""
        path = self._failure(run)
        before = read_json(path) if path.exists() else {}
        if before.get("cancelled"):
            return
        reason = f"{CANCELLED} (it had failed: {before['reason']})" if "reason" in before else CANCELLED
        write_json(path, {**before, "reason": reason, "cancelled": True, "run": run.to_json()})

    def retry(self, run: Run) -> None:
        """Forget that it failed or was cancelled: it goes on from its last checkpoint, with all its attempts."""
        remove(self._failure(run))
        remove(self.folder(run) / "failure.json")

    def _reached(self, run: Run) -> int:
        """The step of the newest checkpoint."""
        names = (p.name for p in (self.folder(run) / "checkpoints").glob("step-*"))
        return max((int(name.split("-")[1]) for name in names), default=-1)

    def _failure(self, run: Run) -> Path:
        return self.path / "failures" / f"{run.id}.json"


def _if_there(path: Path) -> Any:
    """What a file holds; None where there is none, though it may have been there a moment ago."""
    try:
        return read_json(path) if path.exists() else None
    except IntegrityError:
        if path.exists():
            raise
        return None


def read_plan(path: Path) -> Any:
    """One file of `plans`: `runs` as `Run.from_json` takes them, and their `ids` but in the first stores."""
    value = read_json(path)
    if not isinstance(value, dict) or value.get("format") != PLAN or not isinstance(value.get("runs"), list):
        raise IntegrityError(f"{path} is not of the format {PLAN!r}; which version wrote it?")
    return value
