"""What a sweep will cost, from runs of the same data set and algorithm that are finished; never guessed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dspreg.runs.folder import RunFolder


def seconds_of(records: Iterable[Mapping[str, Any]]) -> float:
    """What a run's steps and evaluations took; a record has the mean over the steps since the one before."""
    total, last = 0.0, -1
    for record in records:
        clock = record["seconds"]
        total += (record["step"] - last) * clock["step_seconds"] + clock["evaluate_seconds"]
        last = record["step"]
    return total


def bytes_of(folder: RunFolder) -> int:
    """What a finished run leaves on the disk."""
    return sum(path.stat().st_size for path in folder.path.rglob("*") if path.is_file())
