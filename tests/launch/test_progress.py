"""What people see of a sweep."""

import io
import sys

from rich.console import Console

from dspreg.launch.messages import Progress
from dspreg.launch.progress import SweepProgressBars
from dspreg.runs.run import Run

RUN = Run(dataset="digits", targets=("print",), algorithm="ERM")


def test_a_line_for_all_runs_and_one_for_each_that_is_trained():
    console = Console(file=io.StringIO(), force_terminal=True, width=140)
    progress = SweepProgressBars(console, 3)
    progress.start(RUN)
    progress.update(RUN, Progress(17, 40, "loss 0.31"))
    progress.set_done(2)
    progress.bars.refresh()
    seen = console.file.getvalue()
    assert "ERM on digits → print, trial 0, draw 0" in seen
    for text in ("17/40", "2/3", "loss 0.31"):
        assert text in seen
    progress.end(RUN)
    assert len(progress.bars.tasks) == 1
    progress.update(RUN, Progress(18, 40))  # a late message
    progress.close()


def test_lines_for_a_file_go_there_and_not_above_the_bars(monkeypatch):
    out, console = io.StringIO(), Console(file=io.StringIO(), force_terminal=True, width=140)
    monkeypatch.setattr(sys, "stdout", out)
    progress = SweepProgressBars(console, 1)
    print("[1/1] finished")
    progress.close()
    assert out.getvalue() == "[1/1] finished\n"
