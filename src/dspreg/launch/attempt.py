"""One attempt at one run, wherever it is made: look at how it stands, train, keep what became of it."""

from __future__ import annotations

from collections.abc import Callable

from dspreg.errors import CantWrite, Diverged, InUse, Preempted
from dspreg.io.atomic_files import fenced
from dspreg.launch.heart import Heart
from dspreg.launch.work import Outcome, Taken
from dspreg.protocol.settings import Execution
from dspreg.runs.leases import Claims, LostClaim
from dspreg.runs.run import Run
from dspreg.runs.store import RunStore, Standing
from dspreg.training.display import Display
from dspreg.training.loop import train


def attempt(
    taken: Taken,
    store: RunStore,
    claims: Claims,
    execution: Execution,
    *,
    attempts: int,
    display: Callable[[], Display] = Display,
    pause: Callable[[], None],
) -> Outcome:
    """Verify a finished run, or train one that is not. A failure is kept and no error.

    Args:
        taken: What to work on. Nothing is written any more once its claim is somebody else's.
        store: Where it goes.
        claims: Of the store; this process's own.
        execution: How.
        attempts: How often it may fail.
        display: Makes what is told about its progress, if it is trained.
        pause: Raises `Preempted` to stop; nothing is lost.

    Raises:
        CantWrite: The disk is full or can't be written. The other runs would meet the same.
        Preempted: By `pause`.
    """
    try:
        with fenced(store.path, lambda: claims.writing(taken.claim)):
            before = store.standing(taken.run)
            if before.settled(attempts):
                if before.state == "finished":
                    store.succeed(taken.run)  # whoever finished it may have been killed before that
                return Outcome(before, before=True)
            return Outcome(trained(taken.run, store, execution, Heart(claims, taken.claim, display(), pause)))
    except (InUse, LostClaim):  # somebody trains in the folder by hand, or it was us who slept
        return Outcome(None)


def trained(run: Run, store: RunStore, execution: Execution, heart: Heart) -> Standing:
    """Train one run, and keep its failure if it has one."""
    try:
        result = train(
            run.settings(),
            run.execution(execution),
            store.folder(run).path,
            display=heart,
            pause=heart.pause,
            plan=run.to_json(),
        )
    except (Preempted, CantWrite, InUse, LostClaim):
        raise
    except Diverged:  # the run's own folder says so
        return store.standing(run)
    except Exception as error:
        return store.fail(run, error)
    finally:
        heart.ended()
    store.succeed(run)
    return Standing("finished", result=result)
