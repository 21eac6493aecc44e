"""Runs of a sweep on this machine."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from dspreg.claims import LostClaim
from dspreg.errors import InUse, Preempted, ResourceError
from dspreg.launch.heart import Heart
from dspreg.protocol.run import Run
from dspreg.protocol.settings import Execution
from dspreg.runs import RunStore, Standing
from dspreg.training.display import Display
from dspreg.training.loop import train

POLL = 5.0  # seconds between looks at what others work on

Told = Callable[[Run, Standing, bool], None]  # a run, how it stands, and whether it did before


def serial(
    runs: Sequence[Run],
    store: RunStore,
    execution: Execution,
    *,
    told: Told = lambda *_: None,
    pause: Callable[[], None] = lambda: None,
    display: Callable[[Run], Display] = lambda _: Display(),
) -> dict[str, Standing]:
    """Run them one after the other in this process, and say how each stands in the end.

    Finished runs are verified and left as they are. A failed one keeps its reason, and the others go on. Runs that
    another sweeper holds come last: by then they are finished, or their holder is gone and they are resumed here.

    Args:
        runs: Each once.
        store: Made before.
        execution: How each is run.
        told: Told about every run as soon as it ends.
        pause: Raises `Preempted` to stop the sweep; nothing is lost.
        display: Makes what is told about the progress of one run.

    Raises:
        ResourceError: The disk is full or can't be written. The other runs would meet the same.
    """
    ended: dict[str, Standing] = {}
    left = OrderedDict((run.id, run) for run in runs)
    claims = store.claims()
    try:
        claims.bury()  # what a killed sweeper had begun goes on first
        while left:
            pause()
            claim = claims.claim(left)
            if claim is None:
                if not claims.bury():
                    time.sleep(POLL)
                continue
            run = left[claim.run]
            try:
                before = store.standing(run)
                if before.state in ("finished", "damaged") or diverged(store, run):
                    standing = before
                else:
                    standing = one(run, store, execution, Heart(claims, claim, display(run), pause))
            except (InUse, LostClaim):  # a holder that sleeps still has the folder, or it was us who slept
                claims.release(claim)
                left.move_to_end(run.id)
                time.sleep(POLL)
                continue
            finally:
                claims.release(claim)
            ended[run.id] = standing
            del left[run.id]
            told(run, standing, standing is before)
    finally:
        claims.close()
    return ended


def diverged(store: RunStore, run: Run) -> bool:
    """Whether trying again would give the same bits, and the same end."""
    return (store.folder(run) / "failure.json").exists()


def one(run: Run, store: RunStore, execution: Execution, heart: Heart) -> Standing:
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
    except (Preempted, ResourceError, LostClaim):
        raise
    except Exception as error:
        store.fail(run, error)
        return Standing("failed", store.standing(run).reason)
    finally:
        heart.ended()
    store.succeed(run)
    return Standing("finished", result=result)
