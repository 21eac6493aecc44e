"""Progress display of a sweep: one bar for all runs, and one for each run in training; or lines in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dspreg.errors import DspregError
from dspreg.io.progress_bars import make_progress
from dspreg.io.text import escape_terminal, format_duration
from dspreg.launch.messages import Progress
from dspreg.protocol.estimate import Announcer
from dspreg.protocol.run_times import Reported, RunTimes, StoreTimeLeft, estimate_time_left
from dspreg.runs.status import ATTEMPTS, scan_store
from dspreg.runs.store import RunStore

if TYPE_CHECKING:
    from rich.console import Console

    from dspreg.runs.run import Run

EVERY, SHARE = 5.0, 0.02  # seconds between two estimates, or more where one would take more than this share of the time
SHORT = 10.0  # seconds: of a sweep that ends sooner nothing is said


class SweepProgress:
    """Called by launchers during a sweep. This class displays nothing."""

    def start(self, run: Run) -> None:
        """A worker starts a run."""

    def update(self, run: Run, progress: Progress) -> None:
        """Progress of a started run."""

    def end(self, run: Run) -> None:
        """No worker has the run any longer."""

    def set_done(self, count: int) -> None:
        """Number of runs that need no more work."""

    def close(self) -> None:
        """The sweep has ended."""


class SweepClock:
    """How long a sweep will still take, as `dspreg status` has it, with what the runs in training say themselves.

    Args:
        store: Of the sweep.
        runs: Of the sweep; the store may have more.
        jobs: Runs at a time, if that is known; more, where more are in training.
        attempts: How often a run may fail.
    """

    def __init__(self, store: RunStore, runs: Sequence[Run], jobs: int = 1, attempts: int = ATTEMPTS):
        self.store, self.jobs, self.attempts = store, jobs, attempts
        self.runs = {run.id for run in runs}
        self.times, self.reported = RunTimes(store), dict[str, Reported]()
        self.next = float("-inf")
        self.last: StoreTimeLeft | None = None

    def update(self, run: Run, progress: Progress) -> None:
        if progress.left is not None and progress.whole is not None:
            self.reported[run.id] = Reported(progress.left, progress.whole)

    def end(self, run: Run) -> None:
        self.reported.pop(run.id, None)

    def time_left(self) -> StoreTimeLeft | None:
        """The estimate, a few seconds old at most; None while the store can't be read."""
        started = time.monotonic()
        if started >= self.next:
            try:
                found = scan_store(self.store, self.attempts)
                self.last = estimate_time_left(
                    found, self.times, jobs=self.jobs, only=self.runs, reported=self.reported
                )
            except DspregError:  # what is wrong with the store, the sweep itself will say
                self.last = None
            ended = time.monotonic()
            self.next = ended + max(EVERY, (ended - started) / SHARE)
        return self.last


class SweepProgressLog(SweepProgress):
    """Says how long a sweep will still take: after the first steps, when that has moved much, and every half hour.

    Args:
        say: Called with each line.
        clock: Of the sweep.
    """

    def __init__(self, say: Callable[[str], None], clock: SweepClock):
        self.say, self.clock, self.announcer = say, clock, Announcer()

    def update(self, run: Run, progress: Progress) -> None:
        self.clock.update(run, progress)
        left = self.clock.time_left()
        if left is None or left.seconds is None or left.seconds < SHORT:
            return
        if self.announcer.is_due(left.seconds):
            self.say(escape_terminal(str(left)))

    def end(self, run: Run) -> None:
        self.clock.end(run)


class SweepProgressBars(SweepProgress):
    """Progress bars on a terminal.

    Args:
        console: A console of Rich, such as `make_console` returns.
        total: Number of runs.
        clock: Of the sweep; without one, no time left is shown for all runs.
    """

    def __init__(self, console: Console, total: int, clock: SweepClock | None = None):
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn

        self.clock = clock
        name, left = TextColumn("{task.description}"), TextColumn("{task.fields[left]}")
        columns = (name, BarColumn(16), MofNCompleteColumn(), left)
        self.bars = make_progress(
            *columns,
            TextColumn("{task.fields[doing]}"),
            console=console,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),  # when stdout is a file, its lines must not appear above the bars
        )
        self.room = max(16, console.width - 56)
        self.all = self.bars.add_task("all runs", total=total, doing="", left="")
        self.tasks: dict[str, Any] = {}
        self.bars.start()

    def start(self, run: Run) -> None:
        title = escape_terminal(str(run))
        title = title if len(title) <= self.room else title[: self.room - 1] + "…"
        self.tasks[run.id] = self.bars.add_task(title, total=None, doing="", left="")

    def update(self, run: Run, progress: Progress) -> None:
        if run.id in self.tasks:
            total, left = progress.steps or None, "" if progress.left is None else format_duration(progress.left)
            self.bars.update(self.tasks[run.id], completed=progress.step, total=total, doing=progress.doing, left=left)
            if self.clock is not None:
                self.clock.update(run, progress)
                self.show_time_left(self.clock.time_left())

    def show_time_left(self, left: StoreTimeLeft | None) -> None:
        """Of all runs."""
        if left is None or left.seconds is None:
            return
        least = "≥ " if left.unknown else ""
        self.bars.update(self.all, left=f"{least}{format_duration(left.seconds)}")

    def end(self, run: Run) -> None:
        if self.clock is not None:
            self.clock.end(run)
        if run.id in self.tasks:
            self.bars.remove_task(self.tasks.pop(run.id))

    def set_done(self, count: int) -> None:
        self.bars.update(self.all, completed=count)

    def close(self) -> None:
        self.bars.stop()
