"""Progress display of a sweep: one bar for all runs, and one for each run in training."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from dspreg.io.text import escape_terminal
from dspreg.launch.messages import Progress

if TYPE_CHECKING:
    from rich.console import Console

    from dspreg.runs.run import Run


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


class SweepProgressBars(SweepProgress):
    """Progress bars on a terminal.

    Args:
        console: A console of Rich on stderr.
        total: Number of runs.
    """

    def __init__(self, console: Console, total: int):
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        name = TextColumn("{task.description}")
        columns = (name, BarColumn(16), MofNCompleteColumn(), TimeRemainingColumn(compact=True))
        self.bars = Bars(
            *columns,
            TextColumn("{task.fields[doing]}"),
            console=console,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),  # when stdout is a file, its lines must not appear above the bars
        )
        self.room = max(16, console.width - 56)
        self.all = self.bars.add_task("all runs", total=total, doing="")
        self.tasks: dict[str, Any] = {}
        self.bars.start()

    def start(self, run: Run) -> None:
        title = escape_terminal(str(run))
        title = title if len(title) <= self.room else title[: self.room - 1] + "…"
        self.tasks[run.id] = self.bars.add_task(title, total=None, doing="")

    def update(self, run: Run, progress: Progress) -> None:
        if run.id in self.tasks:
            total = progress.steps or None
            self.bars.update(self.tasks[run.id], completed=progress.step, total=total, doing=progress.doing)

    def end(self, run: Run) -> None:
        if run.id in self.tasks:
            self.bars.remove_task(self.tasks.pop(run.id))

    def set_done(self, count: int) -> None:
        self.bars.update(self.all, completed=count)

    def close(self) -> None:
        self.bars.stop()
