"""What people see of a sweep."""

import io
import sys

from rich.console import Console

from dspreg.launch.messages import Progress
from dspreg.launch.progress import SweepClock, SweepProgressBars, SweepProgressLog
from dspreg.runs.run import Run
from dspreg.runs.store import RunStore
from helpers.runs import seal
from helpers.stores import planned

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


def forged(tmp_path):
    """A store of eight runs of 40 steps, one of them finished in 105 seconds, and one in training."""
    store, runs = planned(tmp_path / "store")
    clock = {"step_seconds": 2.0, "evaluate_seconds": 5.0}
    for run, steps in ((runs[0], (0, 10, 20, 30, 39)), (runs[1], ())):
        store.folder(run).path.mkdir()
        folder = store.folder(run)
        folder.agree({"settings": {"steps": 40, "evaluate_every": 10}, "where": {"plan": run.to_json()}})
        for step in steps:
            folder.records.append({"step": step, "seconds": clock})
        if steps:
            seal(folder, {"selected": {"step": 0}})
    return store, runs


def test_all_runs_have_a_remaining_time(tmp_path):
    store, runs = forged(tmp_path)
    leases = store.leases()
    leases.acquire([runs[1].id])
    console = Console(file=io.StringIO(), force_terminal=True, width=140)
    progress = SweepProgressBars(console, 4, SweepClock(store, runs[:4]))
    progress.start(runs[1])
    progress.update(runs[1], Progress(3, 40, "loss 0.31", left=4000.0, whole=9000.0))
    shown = {task.description: task.fields["left"] for task in progress.bars.tasks}
    progress.close()
    assert shown == {"all runs": "70 min", str(runs[1]): "67 min"}  # 4000 + 2·105 s, one at a time
    leases.close()


def test_without_a_terminal_it_is_a_line(tmp_path):
    store, runs = forged(tmp_path)
    leases, said = store.leases(), []
    leases.acquire([runs[1].id])
    progress = SweepProgressLog(said.append, SweepClock(store, runs[:4], jobs=2))
    for _ in range(3):
        progress.update(runs[1], Progress(3, 40, left=400.0, whole=900.0))
    assert said == ["about 7 min left: 3 runs, 2 at a time, as 1 finished one took"]
    (store.path / "store.json").write_text("{}")
    (store.path / "plans").rename(store.path / "gone")
    assert SweepClock(RunStore(store.path), runs).time_left().left == 0  # a store that vanishes ends nothing
    leases.close()
