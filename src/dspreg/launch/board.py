"""Progress of a sweep, for people: all runs on one line, and a line for each that is being trained."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from dspreg.names import shown

if TYPE_CHECKING:
    from rich.console import Console

    from dspreg.runs.run import Run


class Board:
    """Told what happens. This one says nothing."""

    def began(self, run: Run) -> None: ...

    def moved(self, run: Run, step: int, steps: int, doing: str) -> None: ...

    def ended(self, run: Run) -> None: ...

    def settled(self, done: int) -> None:
        """So many runs need no more work."""

    def close(self) -> None: ...


class Bars(Board):
    """On a terminal."""

    def __init__(self, console: Console, total: int):
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        name = TextColumn("{task.description}")
        columns = (name, BarColumn(16), MofNCompleteColumn(), TimeRemainingColumn(compact=True))
        self.progress = Progress(
            *columns,
            TextColumn("{task.fields[doing]}"),
            console=console,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),  # lines for a file go there, and not above the bars
        )
        self.room = max(16, console.width - 56)
        self.all = self.progress.add_task("all runs", total=total, doing="")
        self.tasks: dict[str, Any] = {}
        self.progress.start()

    def began(self, run: Run) -> None:
        title = shown(str(run))
        title = title if len(title) <= self.room else title[: self.room - 1] + "…"
        self.tasks[run.id] = self.progress.add_task(title, total=None, doing="")

    def moved(self, run: Run, step: int, steps: int, doing: str) -> None:
        if run.id in self.tasks:
            self.progress.update(self.tasks[run.id], completed=step, total=steps or None, doing=doing)

    def ended(self, run: Run) -> None:
        if run.id in self.tasks:
            self.progress.remove_task(self.tasks.pop(run.id))

    def settled(self, done: int) -> None:
        self.progress.update(self.all, completed=done)

    def close(self) -> None:
        self.progress.stop()
