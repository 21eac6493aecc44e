"""Trackio: a run of the project `dspreg`, or of TRACKIO_PROJECT, in TRACKIO_DIR or where TRACKIO_SPACE_ID says."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from dspreg.training.trackers.tracker import PROJECT, TrackedRun, Tracker


class Trackio(Tracker):
    """Trackio knows a run by its name, which so ends with the key."""

    name = "Trackio"
    run_there: Any

    def open(self, run: TrackedRun) -> None:
        import trackio

        self.run_there = trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", PROJECT), name=f"{run.title} [{run.key}]", resume="allow",
            config={**run.settings, "dspreg id": run.id}, embed=False, auto_log_gpu=False, auto_log_cpu=False,
        )  # fmt: skip
        self.next = int(self.run_there._next_step)  # after the last it has; there is no public name for it

    def has(self, name: str, step: int) -> bool:  # noqa: ARG002
        return step < self.next

    def send(self, step: int, scalars: Mapping[str, float]) -> None:
        self.run_there.log(dict(scalars), step=step)
        self.next = step + 1

    def close(self, status: str) -> None:  # noqa: ARG002
        import trackio

        trackio.finish()  # not the run's own: it would be finished again when the process ends, which prints
