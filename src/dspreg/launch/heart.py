"""The heartbeat of a run: it beats where training makes progress, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dspreg.runs.leases import Claim, Claims
from dspreg.training.display import Display

BEATS = 20.0  # in one lease, so that a few may be late


class Heart(Display):
    """Passes on what a display is told, and holds the claim as long as there is something to tell.

    Args:
        claims: Of the store.
        claim: Ours.
        display: Shown to people.
        pause: Raises to stop the training.
    """

    def __init__(self, claims: Claims, claim: Claim, display: Display, pause: Callable[[], None]):
        self.claims, self.claim, self.display, self._pause = claims, claim, display, pause
        self.progress = self.step = 0
        self.last = claims.now()

    def pause(self) -> None:
        """Given to the trainer, which calls it after every step and every evaluated batch.

        Raises:
            LostClaim: Somebody else has the run by now.
        """
        self._pause()
        self.alive()

    def alive(self) -> None:
        self.progress += 1
        now = self.claims.now()
        if now - self.last >= self.claims.lease / BEATS:
            self.claims.beat(self.claim, self.progress, self.step)
            self.last = now

    def stepped(self, t: int, log: dict[str, float]) -> None:
        self.step = t + 1
        self.display.stepped(t, log)

    def checking(self, done: int, total: int) -> None:
        self.display.checking(done, total)

    def started(self, experiment: Any, t: int) -> None:
        self.step = t
        self.display.started(experiment, t)

    def doing(self, what: str) -> None:
        self.display.doing(what)

    def recorded(self, record: dict[str, Any]) -> None:
        self.display.recorded(record)

    def ended(self) -> None:
        self.display.ended()
