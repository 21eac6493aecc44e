"""The heartbeat of a run: it renews the run's lease where training makes progress, and nowhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dspreg.runs.leases import Lease, Leases
from dspreg.training.callbacks import TrainingCallback

if TYPE_CHECKING:
    from dspreg.training.experiment import Experiment

RENEWALS = 20.0  # in the duration of one lease, so that a few may be late


class Heartbeat(TrainingCallback):
    """Holds a lease as long as there is progress.

    Args:
        leases: Of the store.
        lease: Ours.
    """

    def __init__(self, leases: Leases, lease: Lease):
        self.leases, self.lease = leases, lease
        self.progress = self.step = 0
        self.renewed_at = leases.now()

    def beat(self, step: int) -> None:
        """Something was done.

        Raises:
            LeaseLost: Another process has the run by now.
        """
        self.step = step
        self.progress += 1
        now = self.leases.now()
        if now - self.renewed_at >= self.leases.duration / RENEWALS:
            self.leases.renew(self.lease, self.progress, step)
            self.renewed_at = now

    def on_train_start(self, experiment: Experiment, step: int) -> None:  # noqa: ARG002
        self.step = step

    def on_progress(self) -> None:
        self.beat(self.step)

    def on_step_end(self, step: int, log: dict[str, float]) -> None:  # noqa: ARG002
        self.beat(step + 1)
