"""One attempt at one run, by a process that has the store: look at its status, train, and keep what became of it."""

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
from dspreg.runs.status import RunState, RunStatus
from dspreg.runs.store import RunStore
from dspreg.training.callbacks import TrainingCallback
from dspreg.training.loop import train


def attempt(
    leased: LeasedRun,
    store: RunStore,
    leases: Leases,
    execution: Execution,
    *,
    attempts: int,
    callbacks: Iterable[TrainingCallback] = (),
    pause: Callable[[], None],
) -> Outcome:
    """Verify a finished run, or train one that is not. A failure is kept and no error.

    Args:
        leased: What to work on. Nothing is written any more once its lease is lost.
        store: Where it goes.
        leases: Of the store; this process's own.
        execution: How.
        attempts: How often it may fail.
        callbacks: Called with its progress, if it is trained.
        pause: Raises `Preempted` to stop; nothing is lost.

    Raises:
        CantWrite: The disk is full or can't be written. The other runs would meet the same.
        Preempted: By `pause`.
    """
    fence = partial(leases.guard, leased.lease)
    heartbeat = Heartbeat(leases, leased.lease)
    try:
        before = final_state(leased.run, store, attempts, fence)
        if before is not None:
            return Outcome(before, already=True)
        return Outcome(train_run(leased.run, store, execution, fence, [heartbeat, *callbacks], pause))
    except (InUse, LeaseLost):  # a training by hand has the folder, or it was this process that slept
        return Outcome(None)


def final_state(run: Run, store: RunStore, attempts: int, fence: Fence) -> RunState | None:
    """The status of a run that needs no further attempt, verified; None if it needs one."""
    state = store.status(run)
    if not state.is_final(attempts):
        return None
    if state.status is RunStatus.FINISHED:
        store.succeed(run, fence=fence)  # the process that finished it may have been killed before that
    return state


def train_run(
    run: Run,
    store: RunStore,
    execution: Execution,
    fence: Fence,
    callbacks: Iterable[TrainingCallback],
    pause: Callable[[], None],
) -> RunState:
    """Train one run, and keep its failure if it has one."""
    folder = store.folder(run, fence=fence)
    try:
        result = train(
            run.settings(), run.execution(execution), folder, callbacks=callbacks, pause=pause, plan=run.to_json()
        )
    except (Preempted, CantWrite, InUse, LeaseLost):
        raise
    except Diverged:  # the run's own folder says so
        return store.status(run)
    except Exception as error:
        return store.fail(run, error, fence=fence)
    store.succeed(run, fence=fence)
    return RunState(RunStatus.FINISHED, result=result)
