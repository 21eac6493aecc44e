"""A finished run, given more `--steps`: it goes on as one that was to take that many steps from the beginning.

A run ends otherwise than a longer one goes on: its last step is always evaluated, with the target's "out" images. So
`--keep-checkpoint` keeps the state from before the last step, and from there the run goes on. The result is bitwise
that of a run that was begun with the larger number and the same `evaluate_every`. Where training depends on its length,
as with warm-ups that are scaled to short runs, there is no such state, and this is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dspreg.errors import ConfigError
from dspreg.io.atomic_files import canonical_json, parse_json, read_regular_file, remove
from dspreg.runs.folder import CALIBRATION, CARRIED, KEPT_CHECKPOINT, OURS_NAMED, RunFolder, differences, identity
from dspreg.training.checkpoint import Checkpoints

UNSCHEDULED = {"schedule": (None, "constant")}  # under other values of these settings every step depends on the length


def prolong(folder: RunFolder, described: Mapping[str, Any]) -> None:
    """Turn a finished run into one that is not finished yet and has more steps, if that is what `described` says.

    Killed at any point, the same command finishes what it began.

    Args:
        folder: Locked.
        described: The run that is asked for, as `RunFolder.agree` takes it, which says what else may be wrong.

    Raises:
        ConfigError: Training depends on its length, or the run kept no state from which it can go on.
    """
    if not (folder / "run.json").exists() or not (folder / "result.json").exists():
        return
    there = folder.description()
    mine = parse_json("", canonical_json({**described, "format": there["format"]}).encode())
    mine["id"] = identity(mine)
    if there["id"] != mine["id"]:
        if not _is_longer(there, mine):
            return
        _require_any_length(folder, there, mine)
        step, state = _kept_state(folder, there, mine)
        _checkpoints(folder, "checkpoints", mine["id"]).save(step, state)
        carried = {name: there["where"][name] for name in CARRIED if name in there.get("where", {})}
        folder.write_json("run.json", {**mine, "where": {**mine.get("where", {}), **carried}})
    _forget_end(folder, mine["id"])


def keep_checkpoint(folder: RunFolder, run: str, step: int, state: Any) -> None:
    """Keep the state from before the last step, so that the run can be prolonged."""
    kept = _checkpoints(folder, KEPT_CHECKPOINT, run)
    kept.save(step, state)
    for other in kept.files()[1:]:
        remove(other, fence=folder.fence)


def _checkpoints(folder: RunFolder, name: str, run: str) -> Checkpoints:
    return Checkpoints(folder / name, run, fence=folder.fence)


def _is_longer(there: Mapping[str, Any], mine: Mapping[str, Any]) -> bool:
    """Whether nothing but the number of steps differs, and what follows from it."""
    changed = {name for name, _, _ in differences(there, mine) if name.split(".")[0] not in ("id", "where")}
    asked_alike = there.get("where", {}).get("algorithm") == mine.get("where", {}).get("algorithm")
    follows = {"settings.steps", "settings.algorithm"} if asked_alike else {"settings.steps"}
    return changed <= follows and bool(mine["settings"]["steps"] > there["settings"]["steps"])


def _require_any_length(folder: RunFolder, there: Mapping[str, Any], mine: Mapping[str, Any]) -> None:
    """Refuse a training whose steps depend on how many there are."""
    for name, free in UNSCHEDULED.items():
        value = there["settings"].get(name)
        if value not in free:
            raise ConfigError(
                f"{folder.path} was trained with {name}={value}, under which every step depends on how many there are: "
                "it can't be prolonged. Train in another --out"
            )
    was, now = (each["settings"]["algorithm"] for each in (there, mine))
    if was != now:
        raise ConfigError(
            f"{folder.path} can't be prolonged so: its method is scaled to the number of steps, {was} → {now}. It "
            "can go "
            f"on as it was begun, with --algorithm {was!r}; or train in another --out"
        )


def _kept_state(folder: RunFolder, there: Mapping[str, Any], mine: Mapping[str, Any]) -> tuple[int, Any]:
    """Steps taken and the state from which a finished run goes on; every file of it is verified."""
    result = folder.result()
    assert result is not None
    was, now = there["settings"]["steps"], mine["settings"]["steps"]
    if result["last"]["step"] < was - 1:
        raise ConfigError(
            f"{folder.path} stopped after step {result['last']['step']}, for want of a better evaluation, and "
            "would stop "
            "there again. Train another one, without --patience or with more of it"
        )
    found = next(_checkpoints(folder, KEPT_CHECKPOINT, there["id"]).good(), None)
    if found is None:
        raise ConfigError(
            f"{folder.path} is finished after {was:,} steps, and kept no checkpoint from which it can go on: "
            f"--keep-checkpoint keeps one. Train {now:,} steps in another --out, or begin there with its weights: "
            f"--init {folder.path}"
        )
    return found


def _forget_end(folder: RunFolder, run: str) -> None:
    """Remove what a shorter run ended with; nothing if result.json is of this run."""
    result = parse_json(f"{folder.path}/result.json", read_regular_file(folder / "result.json"))
    if not isinstance(result, dict) or result.get("run") == run:
        return
    saved = next(_checkpoints(folder, "checkpoints", run).good(), None)
    if saved is None:
        return  # we did not begin it: result.json is then said to be damaged
    kept = {"run.json", "records.jsonl", "refreshes.jsonl", *saved[1].get("files", {})}
    ended_with = [name for name in result.get("files", {}) if OURS_NAMED.fullmatch(name) and name not in kept]
    for name in (*ended_with, CALIBRATION, "result.json"):  # result.json last: as long as it is there, this is repeated
        folder.remove(name)
    _checkpoints(folder, KEPT_CHECKPOINT, run).clear()
