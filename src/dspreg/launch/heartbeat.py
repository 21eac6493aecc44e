"""The heartbeat of a run: it renews the lease when training makes progress, and only then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dspreg.runs.leases import Lease, Leases
from dspreg.training.callbacks import Callback

if TYPE_CHECKING:
    from dspreg.training.experiment import Experiment

RENEWALS = 20.0  # per duration of a lease, so that a few may be delayed


class Heartbeat(Callback):
    """Keeps a lease as long as there is progress.

    Args:
        leases: The leases of the store.
        lease: The lease to renew.
    """

    def __init__(self, leases: Leases, lease: Lease):
        self.leases, self.lease = leases, lease
        self.progress = self.step = 0
        self.renewed_at = leases.now()

    def beat(self, step: int) -> None:
        """Count a unit of work, and renew the lease if it is time.

        Raises:
            LeaseLost: Another process has taken over the run.
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

    def on_step_end(self, step: int, log: Mapping[str, float]) -> None:  # noqa: ARG002
        self.beat(step + 1)
