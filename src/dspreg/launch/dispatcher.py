"""The loop that hands out runs to workers and handles their messages, for every transport."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from typing import Protocol

from dspreg.errors import Notice, ResourceError
from dspreg.launch.messages import Event, NoticeIssued, Outcome, Progress, Refused, Stopped, WorkerDied
from dspreg.launch.progress import SweepProgress
from dspreg.launch.queue import POLL, LeasedRun, RunQueue

TICK = 0.5  # seconds until a signal is noticed


class Transport(Protocol):
    """Connection to the workers."""

    def has_room(self) -> bool:
        """Whether one more run can be started."""

    def start(self, leased: LeasedRun) -> Event | None:
        """Start an attempt at a run; returns its end if it ended immediately."""

    def receive(self, seconds: float) -> Iterator[tuple[LeasedRun | None, Event]]:
        """Messages, each with its run (None: of no run, or of one that has ended); waits at most `seconds` for
        the first. An attempt ends with `Outcome`, `Stopped` or `WorkerDied`."""

    def kill(self, leased: LeasedRun) -> bool:
        """Terminate an attempt immediately; returns whether it had started."""

    def close(self) -> None:
        """All workers end."""


class Dispatcher:
    """Empties a queue.

    Args:
        queue: The runs to execute.
        transport: Closed at the end, also after an error.
        progress: Progress display.
        pause: Raises `Preempted` to stop the sweep.
    """

    def __init__(self, queue: RunQueue, transport: Transport, progress: SweepProgress, pause: Callable[[], None]):
        self.queue, self.transport, self.progress, self.pause = queue, transport, progress, pause
        self.notices: set[str] = set()
        self.next_claim = 0.0  # when to check again the runs that other sweeps work on

    def run(self) -> None:
        """Dispatch until no run is left.

        Raises:
            ResourceError: The disk is full or not writable. The other runs would fail in the same way.
        """
        try:
            while not self.queue.done:
                self.pause()
                self.hand_out()
                self.listen(TICK)
                self.end_stalled()
        finally:
            self.transport.close()

    def hand_out(self) -> None:
        """Start as many runs as there is room for."""
        if time.monotonic() < self.next_claim:
            return
        until = time.monotonic() + TICK  # claiming may verify finished runs: messages must not wait for all
        while self.queue.waiting and self.transport.has_room() and time.monotonic() < until:
            self.pause()
            leased = self.queue.claim()
            if leased is None:  # other sweeps hold all runs that are left
                self.next_claim = time.monotonic() + POLL
                return
            event = self.transport.start(leased)
            if event is None:
                self.progress.start(leased.run)
            else:
                self.handle(leased, event)

    def listen(self, seconds: float) -> None:
        for leased, event in self.transport.receive(seconds):
            self.handle(leased, event)

    def handle(self, leased: LeasedRun | None, event: Event) -> None:
        if isinstance(event, NoticeIssued):
            self.issue(event.text)
        elif isinstance(event, Refused):
            raise ResourceError(event.reason)
        elif leased is None:
            return
        elif isinstance(event, Progress):
            self.progress.update(leased.run, event)
        else:
            self.progress.end(leased.run)
            if isinstance(event, WorkerDied):
                self.queue.worker_died(leased, event.reason)
            elif isinstance(event, Stopped):
                self.queue.put_back(leased)
                self.next_claim = 0.0
            else:
                self.finish(leased, event)

    def finish(self, leased: LeasedRun, outcome: Outcome) -> None:
        self.queue.complete(leased, outcome)
        self.next_claim = 0.0 if outcome.state is not None else time.monotonic() + POLL

    def end_stalled(self) -> None:
        """Terminate attempts without progress. They count as failed, unless they were still waiting for a worker."""
        for leased in self.queue.stalled():
            begun = self.transport.kill(leased)
            self.progress.end(leased.run)
            if begun:
                why = f"it made no progress for {self.queue.leases.duration:g} s and was stopped"
                self.queue.worker_died(leased, why)
            else:
                self.finish(leased, Outcome(None))

    def issue(self, text: str) -> None:
        """Issue a worker's notice, once per sweep."""
        if text not in self.notices:
            self.notices.add(text)
            warnings.warn(text, Notice, stacklevel=2)
