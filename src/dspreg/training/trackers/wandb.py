"""Weights & Biases: a run of the project `dspreg`, or of WANDB_PROJECT. WANDB_MODE=offline keeps it on the disk."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from dspreg.training.trackers.tracker import PROJECT, TrackedRun, Tracker

LOGIN = 30  # seconds that it waits on a terminal for an account; a training must not wait for longer


class WandB(Tracker):
    """Online the server says where its curve ends. Offline every start leaves a folder with all of the curve so far, by
    the same id: the newest is the one to synchronise."""

    name = "Weights & Biases"
    run_there: Any

    def open(self, run: TrackedRun) -> None:
        import wandb

        settings = wandb.Settings(console="off", silent=True, login_timeout=LOGIN)
        self.run_there = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT), id=run.key, name=run.title, resume="allow",
            config={**run.settings, "dspreg id": run.id}, reinit="create_new", settings=settings,
        )  # fmt: skip
        self.next = int(self.run_there.starting_step)

    def has(self, name: str, step: int) -> bool:  # noqa: ARG002
        return step < self.next

    def send(self, step: int, scalars: Mapping[str, float]) -> None:
        self.run_there.log(dict(scalars), step=step, commit=True)
        self.next = step + 1

    def select(self, scalars: Mapping[str, float]) -> None:
        self.run_there.summary.update({f"selected {name}": value for name, value in scalars.items()})

    def close(self, status: str) -> None:
        self.run_there.finish(exit_code=int(status == "failed"))
