"""What the page of a sweep shows, as JSON. Read without torch, and without writing anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dspreg.errors import DspregError
from dspreg.io.text import escape_terminal
from dspreg.kinds import KINDS, figures_of, kind_of
from dspreg.protocol.run_times import RunTimes, estimate_time_left
from dspreg.protocol.status_json import status_json
from dspreg.runs.folder import RunFolder
from dspreg.runs.leases import LEASE_SECONDS
from dspreg.runs.status import StoreStatus, scan_store
from dspreg.runs.store import RunStore

SHOWN = 40  # runs in training, and failures, whose lines are shown
LATELY = 12  # finished runs, the latest
POINTS = 200  # of a curve, which is no wider on a screen


class StoreWatcher:
    """Looks at a store again and again.

    Args:
        store: An existing store.
        attempts: How often a run may fail before sweeps give it up.
    """

    def __init__(self, store: RunStore, attempts: int):
        self.store, self.attempts, self.times = store, attempts, RunTimes(store)
        self.finished: dict[str, int] = {}  # run → when, in nanoseconds
        self.results: dict[str, dict[str, Any]] = {}

    def look(self) -> dict[str, Any]:
        """Everything on the page, as it is now. All text is harmless."""
        found = scan_store(self.store, self.attempts)
        left = estimate_time_left(found, self.times)
        said = status_json(found, left)
        held, failed = said["being trained"], said["failed"]
        answer = {
            "store": str(self.store.path),
            "over": found.is_final and bool(found.runs),
            "all": said["all"],
            "groups": said["groups"],
            "left": str(left) if left is not None and left.left else "",
            "training": [self._training(found, each) for each in held[:SHOWN]],
            "failed": [{**each, "title": title_of(found, each["id"])} for each in failed[:SHOWN]],
            "lately": [{"title": title_of(found, run), **self._result(run)} for run in self._latest(found)],
            "more": {"training": max(0, len(held) - SHOWN), "failed": max(0, len(failed) - SHOWN)},
        }
        return harmless(answer)  # type: ignore[no-any-return]

    def _training(self, found: StoreStatus, each: Mapping[str, Any]) -> dict[str, Any]:
        silent = max(0.0, LEASE_SECONDS - each["seconds"]["lease ends in"])
        lost = each["seconds"]["lease ends in"] <= 0
        state = "no progress, its lease has expired" if lost else "" if each["alive"] else "its process died"
        return {
            "id": each["id"], "title": title_of(found, each["id"]), "step": each["step"], "steps": each["steps"],
            "machine": each["machine"], "process": each["process"], "silent": round(silent), "trouble": state,
            "curve": self._curve(each["id"]),
        }  # fmt: skip

    def _folder(self, run: str) -> RunFolder:
        return RunFolder(self.store.path / "runs" / run, linked=False)

    def _curve(self, run: str) -> list[tuple[int, float]]:
        """Step and source validation, up to where the records are not as training writes them."""
        points: list[tuple[int, float]] = []
        with suppress(DspregError, OSError):
            for each in self._folder(run).records:
                step, value = (each.get("step"), each.get("validation")) if isinstance(each, dict) else (None, None)
                if isinstance(step, int) and isinstance(value, int | float):
                    points.append((step, value))
        return thin(points)

    def _latest(self, found: StoreStatus) -> list[str]:
        """The runs that finished last, the newest first."""
        for run, summary in found.summaries.items():
            if summary == "finished" and run not in self.finished:
                with suppress(OSError):
                    self.finished[run] = Path(self.store.path, "runs", run, "result.json").stat().st_mtime_ns
        there = (run for run in self.finished if found.summaries.get(run) == "finished")
        return sorted(there, key=lambda run: -self.finished[run])[:LATELY]

    def _result(self, run: str) -> dict[str, Any]:
        if run not in self.results:
            self.results[run] = {"targets": [], "held out": ""}
            with suppress(DspregError, OSError, KeyError, TypeError, AttributeError):
                self.results[run] = describe_result(self._folder(run).result(weights=False) or {})
        return self.results[run]


def describe_result(result: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of the selected step, as text."""
    chosen = result["selected"]
    kind, figures = KINDS[kind_of(chosen)], figures_of(chosen)
    targets = [[name, kind.text(figures[name]["in"])] for name in result["targets"]]
    held_out = chosen["validation"]
    return {"targets": targets, "held out": "" if held_out is None else kind.text(held_out)}


def title_of(found: StoreStatus, run: str) -> str:
    """A run in words; its id where the plan is damaged."""
    try:
        return str(found.run(run))
    except DspregError:
        return run


def thin(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """At most `POINTS` of them, the first and the last among them."""
    if len(points) <= POINTS:
        return list(points)
    return [points[round(i * (len(points) - 1) / (POINTS - 1))] for i in range(POINTS)]


def harmless(value: Any) -> Any:
    """With no text in it that turns a line round or moves a cursor."""
    if isinstance(value, str):
        return escape_terminal(value)
    if isinstance(value, Mapping):
        return {escape_terminal(name): harmless(each) for name, each in value.items()}
    return [harmless(each) for each in value] if isinstance(value, list | tuple) else value
