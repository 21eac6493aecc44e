"""Rich's progress bars, on a terminal and in a notebook.

Rich draws on a terminal by moving its cursor, and in a notebook needs a package of widgets. Here a notebook has one
output of plain text, which is replaced as work goes on.
"""

from __future__ import annotations

import io
import sys
import time
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn

EVERY = 0.25  # seconds between two drawings in a notebook
WIDTH = 110  # characters of them


def in_notebook() -> bool:
    """Whether output goes to a Jupyter notebook. Where IPython runs, it was imported."""
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    shell = get_ipython()
    return shell is not None and hasattr(shell, "kernel")


def make_console() -> Console:
    """What progress is shown on: stderr, apart from results."""
    from rich.console import Console

    if in_notebook():
        return Console(file=io.StringIO(), width=WIDTH, force_jupyter=False, color_system=None)
    return Console(stderr=True)


def make_progress(
    *columns: ProgressColumn, console: Console, transient: bool = False, redirect_stdout: bool = True
) -> Progress:
    """Progress bars that are not started yet. Arguments as those of `rich.progress.Progress`."""
    from rich.progress import Progress

    if not in_notebook():
        return Progress(*columns, console=console, transient=transient, redirect_stdout=redirect_stdout)

    from IPython.display import HTML, display

    class NotebookProgress(Progress):
        def __init__(self) -> None:
            super().__init__(*columns, console=make_console(), auto_refresh=False)
            self.output: Any = None
            self.drawn = float("-inf")

        def start(self) -> None:
            self.output = display(HTML(self.drawing()), display_id=True)

        def stop(self) -> None:
            if self.output is not None:
                self.output.update(HTML("" if transient else self.drawing()))
                self.output = None

        def refresh(self) -> None:
            if self.output is not None and time.monotonic() - self.drawn >= EVERY:
                self.output.update(HTML(self.drawing()))

        def drawing(self) -> str:
            self.drawn = time.monotonic()
            with self.console.capture() as shown:
                self.console.print(self.get_renderable())
            return f"<pre>{escape(shown.get())}</pre>"

        def update(self, *arguments: Any, **values: Any) -> None:
            super().update(*arguments, **values)
            self.refresh()

        def advance(self, *arguments: Any, **values: Any) -> None:
            super().advance(*arguments, **values)
            self.refresh()

    return NotebookProgress()
