"""Sweeps from Python: `dspreg.launch.sweep`, and the interface of launchers."""

import subprocess
import sys

import pytest

from dspreg.errors import ConfigError, Preempted
from dspreg.launch import LAUNCHERS, sweep
from dspreg.launch.launcher import make_launcher
from dspreg.launch.messages import Outcome
from dspreg.launch.serial import SerialLauncher
from dspreg.protocol.sweep_file import Sweep
from dspreg.runs.store import RunStore
from helpers.small_runs import EXECUTION
from helpers.sweeps import OPTIONS, Seen, three


@pytest.mark.parametrize(("launcher", "jobs"), [("serial", None), ("pool", 2)])
def test_a_sweep_without_a_command_line(images, tmp_path, launcher, jobs):
    (broken, *_), runs, seen, progress = three(images, model="no-such-network"), three(images), [], Seen()
    runs = [broken, *runs]
    statuses = sweep(
        runs, tmp_path / "store", launcher=launcher, jobs=jobs, execution=EXECUTION, attempts=1, progress=progress,
        on_run=lambda run, status, already: seen.append((run.id, status.status, already)),
    )  # fmt: skip
    assert list(statuses) == [run.id for run in runs]
    assert [status.status for status in statuses.values()] == ["failed", *["finished"] * 3]
    assert "no-such-network" in statuses[broken.id].reason
    assert sorted(seen) == sorted((run, status.status, False) for run, status in statuses.items())
    assert {run.id for run in progress.started} == set(statuses)
    assert {run.id for run, each in progress.updates if each.steps == 2} == {run.id for run in runs[1:]}
    store = RunStore(tmp_path / "store")
    assert [run.id for run in store.planned_runs()] == [run.id for run in runs]
    seen.clear()
    again = sweep(runs, store, attempts=1, execution=EXECUTION, on_run=lambda *values: seen.append(values[2]))
    assert again == statuses
    assert seen == [True] * 4


def test_a_sweep_as_a_file_says_it(images, tmp_path):
    plan = Sweep(
        datasets=(f"folder:{images}",), algorithms=("ERM",), targets=("dusk",), trials=1, draws=1, only="training",
        settings=OPTIONS, execution={"profile": "never", "check_images": "never", "keep": "none"},
    )  # fmt: skip
    (status,) = sweep(plan, tmp_path / "store").values()
    assert status.result["targets"] == ["dusk"]
    (run,) = RunStore(tmp_path / "store").planned_runs()
    where = RunStore(tmp_path / "store").folder(run).description()["where"]
    assert (where["keep"], where["threads"], where["workers"]) == ("none", 1, 0)


def test_a_launcher_of_ones_own(images, tmp_path, monkeypatch):
    """All it has to do is to empty the queue; here, by calling every run cancelled."""

    class Cancelling:
        def __init__(self, jobs=None):
            self.jobs = jobs

        def setup(self, execution):
            return execution

        def launch(self, queue, execution, *, progress, pause):
            while not queue.done:
                leased = queue.claim()
                queue.store.cancel(leased.run)
                queue.complete(leased, Outcome(queue.store.status(leased.run)))

    statuses = sweep(three(images), tmp_path / "one", launcher=Cancelling())
    assert {status.status for status in statuses.values()} == {"cancelled"}
    module = sys.modules[__name__]
    monkeypatch.setattr(module, "Cancelling", Cancelling, raising=False)
    monkeypatch.setitem(LAUNCHERS, "cancelling", f"{__name__}.Cancelling")
    assert make_launcher("cancelling", jobs=4).jobs == 4
    assert sweep(three(images), tmp_path / "two", launcher="cancelling") == statuses


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"launcher": "poll"}, "no launcher 'poll'. Did you mean 'pool'? There are: serial, pool, ray"),
        ({"launcher": "serial", "jobs": 4}, "'serial' has one run at a time; 'pool' takes several"),
        ({"launcher": "pool", "jobs": 0}, "jobs=0; wanted at least 1"),
        (
            {"launcher": SerialLauncher(), "jobs": 1},
            "jobs=1 is for a launcher given by name",
        ),
        ({"attempts": 0}, "attempts=0; wanted at least 1"),
    ],
)
def test_what_is_refused_before_anything_is_written(images, tmp_path, given, message):
    with pytest.raises(ConfigError) as refused:
        sweep(three(images), tmp_path / "store", **given)
    assert message in str(refused.value)
    with pytest.raises(ConfigError, match="unknown algorithm 'ERN'"):
        sweep(three(images, "ERN"), tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_progress_is_closed_however_it_ends(images, tmp_path):
    class Closing(Seen):
        closed = 0

        def close(self):
            self.closed += 1

    progress = Closing()
    with pytest.raises(ConfigError):
        sweep(three(images), tmp_path / "store", launcher="none", progress=progress)

    def pause():
        raise Preempted("stopped by the test")

    with pytest.raises(Preempted):
        sweep(three(images), tmp_path / "store", pause=pause, progress=progress)
    assert progress.closed == 2
    assert RunStore(tmp_path / "store").leases().list_all() == []


def test_the_registry_loads_no_torch_before_a_launcher_is_made():
    program = "import sys, dspreg.launch, dspreg.launch.queue; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
