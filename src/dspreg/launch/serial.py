"""Runs of a sweep one after the other, in this process."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from dspreg.config.train_config import Execution
from dspreg.devices import resolve_device
from dspreg.errors import ConfigError
from dspreg.launch.attempt import attempt
from dspreg.launch.progress import SweepProgress
from dspreg.launch.queue import POLL, RunQueue
from dspreg.launch.reporter import ProgressReporter
from dspreg.launch.resources import fill_execution
from dspreg.precision import check_precision

REPORT_EVERY = 0.2  # seconds


class SerialLauncher:
    """Trains in this process, so that a debugger or profiler sees the training.

    Args:
        jobs: None or 1; other launchers take more.
    """

    def __init__(self, jobs: int | None = None):
        if jobs not in (None, 1):
            raise ConfigError(f"jobs={jobs}: the launcher 'serial' has one run at a time; 'pool' takes several")

    def setup(self, execution: Execution) -> Execution:
        # once, here: otherwise each run would use up its attempts on it
        execution = replace(execution, device=resolve_device(execution.device))
        check_precision(execution.precision, execution.device)
        return fill_execution(execution, 1)

    def launch(
        self, queue: RunQueue, execution: Execution, *, progress: SweepProgress, pause: Callable[[], None]
    ) -> None:
        """Execute the queue. Runs that another sweep holds come last: by then they are finished, or their holder has
        died and they are resumed here.

        Raises:
            ResourceError: The disk is full or not writable. The other runs would fail in the same way.
        """
        while not queue.done:
            pause()
            leased = queue.claim()
            if leased is None:
                time.sleep(POLL)
                continue
            progress.start(leased.run)
            reporter = ProgressReporter(partial(progress.update, leased.run), REPORT_EVERY)
            outcome = attempt(
                leased, queue.store, queue.leases, execution,
                attempts=queue.attempts, callbacks=[reporter], pause=pause,
            )  # fmt: skip
            progress.end(leased.run)
            queue.complete(leased, outcome)
            if outcome.state is None:
                time.sleep(POLL)
