"""What people see of a sweep."""

import io
import sys

from rich.console import Console

from dspreg.launch.board import Bars
from dspreg.runs.run import Run

RUN = Run(dataset="digits", targets=("print",), algorithm="ERM")


def test_a_line_for_all_runs_and_one_for_each_that_is_trained():
    console = Console(file=io.StringIO(), force_terminal=True, width=140)
    board = Bars(console, 3)
    board.began(RUN)
    board.moved(RUN, 17, 40, "loss 0.31")
    board.settled(2)
    board.progress.refresh()
    seen = console.file.getvalue()
    assert "ERM on digits → print, trial 0, draw 0" in seen
    for text in ("17/40", "2/3", "loss 0.31"):
        assert text in seen
    board.ended(RUN)
    assert len(board.progress.tasks) == 1
    board.moved(RUN, 18, 40, "")  # a late word
    board.close()


def test_lines_for_a_file_go_there_and_not_above_the_bars(monkeypatch):
    out, console = io.StringIO(), Console(file=io.StringIO(), force_terminal=True, width=140)
    monkeypatch.setattr(sys, "stdout", out)
    board = Bars(console, 1)
    print("[1/1] finished")
    board.close()
    assert out.getvalue() == "[1/1] finished\n"
