"""One attempt at one run, by a process with access to the store: check its status, train, and record the outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from dspreg.config.train_config import Execution
from dspreg.errors import CantWrite, Diverged, InUse, Preempted
from dspreg.io.atomic_files import Fence
from dspreg.launch.heartbeat import Heartbeat
from dspreg.launch.messages import Outcome
from dspreg.launch.queue import LeasedRun
from dspreg.runs.leases import LeaseLost, Leases
from dspreg.runs.run import Run
from dspreg.runs.status import RunState, RunStatus, derive_state
from dspreg.runs.store import RunStore
from dspreg.training.callbacks import Callback
from dspreg.training.loop import train


def attempt(
    leased: LeasedRun,
    store: RunStore,
    leases: Leases,
    execution: Execution,
    *,
    attempts: int,
    callbacks: Iterable[Callback] = (),
    pause: Callable[[], None],
) -> Outcome:
    """Verify a finished run, or train an unfinished one. A failed training is recorded, not raised.

    Args:
        leased: The run and its lease. Once the lease is lost, nothing more is written.
        store: The store that the run belongs to.
        leases: This process's connection to the leases of the store.
        execution: How the run is executed.
        attempts: How often the run may fail.
        callbacks: Called with the progress of the training.
        pause: Raises `Preempted` to stop the training without loss.

    Raises:
        CantWrite: The disk is full or not writable. The other runs would fail in the same way.
        Preempted: Raised by `pause`.
    """
    fence = partial(leases.guard, leased.lease)
    heartbeat = Heartbeat(leases, leased.lease)
    try:
        before = final_state(leased.run, store, attempts, fence)
        if before is not None:
            return Outcome(before, already=True)
        return Outcome(train_run(leased.run, store, execution, fence, [heartbeat, *callbacks], pause))
    except (InUse, LeaseLost):  # `dspreg train` uses the folder, or this process was suspended and lost its lease
        return Outcome(None)


def final_state(run: Run, store: RunStore, attempts: int, fence: Fence) -> RunState | None:
    """The status of a run that needs no further attempt, verified; None if it needs one."""
    state = store.status(run)
    if not state.is_final(attempts):
        return None
    if state.status is RunStatus.FINISHED:
        store.succeed(run, fence=fence)  # the process that finished the run may have been killed before it did this
    return state


def train_run(
    run: Run,
    store: RunStore,
    execution: Execution,
    fence: Fence,
    callbacks: Iterable[Callback],
    pause: Callable[[], None],
) -> RunState:
    """Train one run, and record its failure if it fails."""
    folder = store.folder(run, fence=fence)
    try:
        result = train(
            run.settings(), run.execution(execution), folder, callbacks=callbacks, pause=pause, plan=run.to_json()
        )
    except (Preempted, CantWrite, InUse, LeaseLost):
        raise
    except Diverged:  # already recorded in the run's folder
        return store.status(run)
    except Exception as error:
        return store.fail(run, error, fence=fence)
    store.succeed(run, fence=fence)
    return derive_state(finished=True, result=result)
