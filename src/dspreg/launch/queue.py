"""What is left of a sweep, handed out run by run under leases: the part that all launchers share.

A launcher asks for a run (`claim`), has it attempted somewhere, and says how that ended (`complete`) or that its worker
is gone (`worker_died`). Which runs are finished, tried again or another sweep's is decided here and in the store.
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
from dspreg.runs.status import RunState, RunStatus
from dspreg.runs.store import RunStore

ATTEMPTS = 3  # of a run that fails
POLL = 5.0  # seconds between looks at what other sweeps work on

OnRun = Callable[[Run, RunState, bool], None]  # a run, its status, and whether it had that before the sweep


class WorkerLost(DspregError):
    """The process that worked on a run is gone, or was ended."""


@dataclass(frozen=True)
class LeasedRun:
    """A run to work on, and the right to."""

    run: Run
    lease: Lease


class RunQueue:
    """The runs of one sweep, from the first to the last.

    Args:
        runs: Each once.
        store: Made before.
        attempts: How often a run may fail.
        on_run: Called with every run as soon as it ends, and with every failure that is not the last.
    """

    def __init__(
        self, runs: Sequence[Run], store: RunStore, *, attempts: int = ATTEMPTS, on_run: OnRun = lambda *_: None
    ):
        self.store, self.attempts, self.on_run = store, attempts, on_run
        self.waiting = OrderedDict((run.id, run) for run in runs)
        self.claimed: dict[str, LeasedRun] = {}
        self.ended: dict[str, RunState] = {}
        self._checked = self._patient_until = 0.0  # when stalled runs were looked for, and until when none counts
        self._lost: dict[str, float] = {}  # when claimed runs were first seen to be no longer ours
        self.leases = store.leases()
        self.leases.expire_dead()  # what a killed sweep had begun goes on first

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
        """Of all that this process writes about a run of ours; raises `LeaseLost` once it is ours no longer."""
        return partial(self.leases.guard, leased.lease)

    def claim(self) -> LeasedRun | None:
        """The next run that no process works on; None while there is none."""
        lease = self.leases.acquire(self.waiting)
        if lease is None and self.waiting and self.leases.expire_dead():
            lease = self.leases.acquire(self.waiting)
        if lease is None:
            return None
        leased = self.claimed[lease.run] = LeasedRun(self.waiting.pop(lease.run), lease)
        return leased

    def complete(self, leased: LeasedRun, outcome: Outcome) -> None:
        """An attempt has ended; runs that are to be tried again come last."""
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
        """No attempt was made, or it was stopped without loss."""
        self._release(leased, again=True)

    def _release(self, leased: LeasedRun, *, again: bool) -> None:
        run = leased.run
        del self.claimed[run.id]
        self._lost.pop(run.id, None)
        self.leases.release(leased.lease)
        if again:
            self.waiting[run.id] = run

    def worker_died(self, leased: LeasedRun, reason: str) -> None:
        """The process that attempted it is gone. That is a failure of the run, unless it came further than before."""
        run, fence = leased.run, self.fence(leased)
        try:
            state = self.store.status(run, weights=False)
            if not state.is_final(self.attempts):  # it may have died after its last file, or been cancelled
                state = self.store.fail(run, WorkerLost(reason), fence=fence)
        except LeaseLost:  # the failure is not ours to keep
            self.put_back(leased)
        else:
            self.complete(leased, Outcome(state))

    def stalled(self) -> list[LeasedRun]:
        """Runs of ours whose lease is over, for there was no progress; and those that were taken from us a lease ago,
        by `cancel` or another sweep: their workers would have noticed."""
        now, grace = self.leases.now(), self.leases.duration / 4
        if now - self._checked > grace:  # it was this process that slept: the workers have to be heard first
            self._patient_until = now + grace
        self._checked = now
        if not self.claimed or now < self._patient_until:
            return []
        left = {info.run: info.left for info in self.leases.list_all() if info.holder == self.leases.holder}
        for run in self.claimed.keys() - left.keys():
            left[run] = self._lost.setdefault(run, now) + self.leases.duration - now
        return [leased for leased in self.claimed.values() if left[leased.run.id] <= 0]
