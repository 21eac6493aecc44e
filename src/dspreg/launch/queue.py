"""The queue of a sweep's runs, handed out under leases; shared by all launchers.

A launcher takes a run (`claim`), executes an attempt, and reports how it ended (`complete`) or that its worker died
(`worker_died`). The queue and the store decide which runs are finished, retried or held by another sweep.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType

from dspreg.errors import DspregError
from dspreg.io.atomic_files import Fence
from dspreg.launch.messages import Outcome
from dspreg.runs.leases import Lease, LeaseLost
from dspreg.runs.run import Run
from dspreg.runs.status import ATTEMPTS, RunState, RunStatus
from dspreg.runs.store import RunStore

POLL = 5.0  # seconds between checks of the runs that other sweeps hold

OnRun = Callable[[Run, RunState, bool], None]  # a run, its status, and whether it had that before the sweep


class WorkerLost(DspregError):
    """The process that worked on a run died or was terminated."""


@dataclass(frozen=True)
class LeasedRun:
    """A run and its lease."""

    run: Run
    lease: Lease


class RunQueue:
    """The runs of one sweep.

    Args:
        runs: Each once.
        store: An existing store.
        attempts: How often a run may fail.
        on_run: Called with every run when it ends, and after every failed attempt that will be repeated.
    """

    def __init__(
        self, runs: Sequence[Run], store: RunStore, *, attempts: int = ATTEMPTS, on_run: OnRun = lambda *_: None
    ):
        self.store, self.attempts, self.on_run = store, attempts, on_run
        self.waiting = OrderedDict((run.id, run) for run in runs)
        self.claimed: dict[str, LeasedRun] = {}
        self.ended: dict[str, RunState] = {}
        self._checked = self._patient_until = 0.0  # last check for stalled runs; no run is stalled before
        self._lost: dict[str, float] = {}  # when a claimed run was first found to be held by another process
        self.leases = store.leases()
        self.leases.expire_dead()  # runs that a killed sweep had started come first

    def __enter__(self) -> RunQueue:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for leased in list(self.claimed.values()):
            self.leases.release(leased.lease)
        self.leases.close()

    @property
    def done(self) -> bool:
        return not self.waiting and not self.claimed

    def fence(self, leased: LeasedRun) -> Fence:
        """Fence around every write of this process to a run; raises `LeaseLost` once the lease is lost."""
        return partial(self.leases.guard, leased.lease)

    def claim(self) -> LeasedRun | None:
        """The next run that no process works on; None if there is none at the moment."""
        lease = self.leases.acquire(self.waiting)
        if lease is None and self.waiting and self.leases.expire_dead():
            lease = self.leases.acquire(self.waiting)
        if lease is None:
            return None
        leased = self.claimed[lease.run] = LeasedRun(self.waiting.pop(lease.run), lease)
        return leased

    def complete(self, leased: LeasedRun, outcome: Outcome) -> None:
        """Record the end of an attempt; runs to be retried go to the end of the queue."""
        run, state = leased.run, outcome.state
        final = state is not None and state.is_final(self.attempts)
        self._release(leased, again=not final)
        if state is None:
            return
        if final:
            self.ended[run.id] = state
        if state.status not in (RunStatus.NOT_STARTED, RunStatus.STOPPED):
            self.on_run(run, state, outcome.already)

    def put_back(self, leased: LeasedRun) -> None:
        """Put back a run that was not attempted, or whose attempt was stopped without loss."""
        self._release(leased, again=True)

    def _release(self, leased: LeasedRun, *, again: bool) -> None:
        run = leased.run
        del self.claimed[run.id]
        self._lost.pop(run.id, None)
        self.leases.release(leased.lease)
        if again:
            self.waiting[run.id] = run

    def worker_died(self, leased: LeasedRun, reason: str) -> None:
        """Record that the worker of a run died. The attempt counter restarts if the run got further than before."""
        run, fence = leased.run, self.fence(leased)
        try:
            state = self.store.status(run, weights=False)
            if not state.is_final(self.attempts):  # it may have died after writing its last file, or been cancelled
                state = self.store.fail(run, WorkerLost(reason), fence=fence)
        except LeaseLost:  # another process records the outcome
            self.put_back(leased)
        else:
            self.complete(leased, Outcome(state))

    def stalled(self) -> list[LeasedRun]:
        """Our runs whose lease expired for lack of progress, and runs that `cancel` or another sweep took over a lease
        duration ago: a live worker would have noticed by now."""
        now, grace = self.leases.now(), self.leases.duration / 4
        if now - self._checked > grace:  # this process was suspended: handle the messages of the workers first
            self._patient_until = now + grace
        self._checked = now
        if not self.claimed or now < self._patient_until:
            return []
        ours = self.leases.list_held(self.claimed)  # not all leases: this is asked after every message of a worker
        left = {info.run: info.left for info in ours if info.holder == self.leases.holder}
        for run in self.claimed.keys() - left.keys():
            left[run] = self._lost.setdefault(run, now) + self.leases.duration - now
        return [leased for leased in self.claimed.values() if left[leased.run.id] <= 0]
