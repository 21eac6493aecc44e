"""Runs of a sweep one after the other, in this process."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from dspreg.launch.attempt import attempt
from dspreg.launch.work import POLL, Work
from dspreg.protocol.settings import Execution
from dspreg.runs.run import Run
from dspreg.training.display import Display


def serial(
    work: Work,
    execution: Execution,
    *,
    pause: Callable[[], None] = lambda: None,
    display: Callable[[Run], Display] = lambda _: Display(),
) -> None:
    """Do all of it here.

    Finished runs are verified and left as they are. Runs that another sweeper holds come last: by then they are
    finished, or their holder is gone and they are resumed here.

    Args:
        work: What is to be done.
        execution: How each is run.
        pause: Raises `Preempted` to stop the sweep; nothing is lost.
        display: Makes what is told about the progress of one run.

    Raises:
        ResourceError: The disk is full or can't be written. The other runs would meet the same.
    """
    while not work.done:
        pause()
        taken = work.take()
        if taken is None:
            time.sleep(POLL)
            continue
        outcome = attempt(
            taken, work.store, work.claims, execution,
            attempts=work.attempts, display=partial(display, taken.run), pause=pause,
        )  # fmt: skip
        work.give_back(taken, outcome)
        if outcome.standing is None:
            time.sleep(POLL)
