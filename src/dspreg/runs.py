"""A store: the folders of many runs, what was planned, and what failed. Read without torch.

    store.json              what this is
    plans/<id>.json         the runs of each sweep that was started here
    runs/<plan id>/         one folder per run
    failures/<plan id>.json why the last attempt ended, where a run's folder can't say so
    claims.db               who works on what

No file says which runs are finished: their folders are verified.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspreg.claims import Claims
from dspreg.errors import ConfigError, DspregError, IntegrityError
from dspreg.files import canonical, digest, make_folder, read_json, remove, write_json
from dspreg.protocol.run import Run
from dspreg.store import RunFolder

FORMAT = "dspreg.store/1"
PLAN = "dspreg.plan/1"


@dataclass(frozen=True)
class Standing:
    """How a run stands: `new`, `started`, `finished`, `failed` or `damaged`, and why."""

    state: str
    reason: str = ""
    result: dict[str, Any] | None = None


class RunStore:
    """A folder of runs. `make` it before anything is written."""

    def __init__(self, path: str | Path):
        self.path = Path(path)

    def make(self) -> None:
        """New, or as it is; a folder that holds something else is left alone."""
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(f"{self.path} is a file; give --store a folder")
        about = self.path / "store.json"
        if not about.exists():
            if self.path.exists() and (there := sorted(p.name for p in self.path.iterdir() if not p.match(".*.part"))):
                raise ConfigError(f"{self.path} is not empty and no store of runs ({there[0]}, …); take a new folder")
            make_folder(self.path)
            write_json(about, {"format": FORMAT})
        found = read_json(about)
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise IntegrityError(f"{about} is not of the format {FORMAT!r}; which version wrote it?")
        for name in ("plans", "runs", "failures"):
            make_folder(self.path / name)

    def folder(self, run: Run) -> RunFolder:
        return RunFolder(Path(self.path, "runs", run.id))

    def claims(self) -> Claims:
        return Claims(self.path / "claims.db")

    # What was planned.

    def plan(self, runs: Sequence[Run]) -> None:
        """Note the runs of a sweep; the same ones again change nothing."""
        value = {"format": PLAN, "runs": [run.to_json() for run in runs]}
        path = self.path / "plans" / f"{digest(canonical([run.id for run in runs]).encode())[:16]}.json"
        if not path.exists():
            write_json(path, value)

    def planned(self) -> list[Run]:
        """All runs of all sweeps, each once."""
        found: dict[str, Run] = {}
        for path in sorted((self.path / "plans").glob("*.json")):
            value = read_json(path)
            if not isinstance(value, dict) or value.get("format") != PLAN or not isinstance(value.get("runs"), list):
                raise IntegrityError(f"{path} is not of the format {PLAN!r}; which version wrote it?")
            for each in map(Run.from_json, value["runs"]):
                found.setdefault(each.id, each)
        return list(found.values())

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
            if (folder / "failure.json").exists():
                return Standing("failed", str(read_json(folder / "failure.json")["reason"]))
            return self._failed(run) or Standing("started")
        except DspregError as error:
            return Standing("damaged", str(error))

    def _failed(self, run: Run) -> Standing | None:
        path = self._failure(run)
        return Standing("failed", str(read_json(path)["reason"])) if path.exists() else None

    def fail(self, run: Run, error: BaseException) -> None:
        """Keep why an attempt ended."""
        path = self._failure(run)
        before = read_json(path)["attempts"] if path.exists() else 0
        failure: dict[str, Any] = {"reason": str(error), "attempts": before + 1, "run": run.to_json()}
        if not isinstance(error, DspregError):  # a bug, of ours or of the user's own method
            failure["reason"] = f"{type(error).__name__}: {error}"
            failure["traceback"] = traceback.format_exception(error)
        write_json(path, failure)

    def succeed(self, run: Run) -> None:
        """Forget failed attempts before this one."""
        remove(self._failure(run))

    def _failure(self, run: Run) -> Path:
        return self.path / "failures" / f"{run.id}.json"
