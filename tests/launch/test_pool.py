"""Sweeps in several processes: the same bits as in one, whatever happens to the processes."""

import multiprocessing
import os
import signal
import warnings
from dataclasses import replace

import pytest

from dspreg.config.train_config import Execution
from dspreg.errors import ConfigError, Notice, Preempted, ResourceError
from dspreg.launch.dispatcher import Dispatcher
from dspreg.launch.messages import Outcome, Refused, Stopped
from dspreg.launch.pool import PoolLauncher, PoolTransport, Worker, describe_exit
from dspreg.launch.progress import SweepProgress
from dspreg.launch.queue import RunQueue
from dspreg.launch.resources import Slot, assign_slots, default_jobs, fill_execution, usable_gpus
from dspreg.runs.status import RunState, RunStatus
from dspreg.runs.store import RunStore
from helpers.small_runs import EXECUTION
from helpers.sweeps import Seen, alone, assert_same_bits, bytes_in, launched, three


def several(runs, store, *, jobs=2, execution=EXECUTION, **more):
    return launched(PoolLauncher(jobs), runs, store, execution, **more)


def children():
    """Processes of this one's pool; those that read images, of other tests, are forked."""
    pools = multiprocessing.context.ForkServerProcess
    return {child.pid for child in multiprocessing.active_children() if isinstance(child, pools)}


def test_the_bits_are_those_of_one_process(images, store, tmp_path):
    runs, told, seen = three(images, steps=6), [], Seen()
    ended = several(runs, store, on_run=lambda run, status, already: told.append((run.id, already)), progress=seen)
    assert sorted(told) == sorted((run.id, False) for run in runs)
    assert {run.id for run in seen.started} == {run.id for run in seen.ended} == {run.id for run in runs}
    assert {progress.steps for _, progress in seen.updates if not progress.doing} == {6}
    other = RunStore(tmp_path / "other")
    other.make()
    assert_same_bits(runs, ended, alone(runs, other, EXECUTION))
    assert store.leases().list_all() == []
    before = bytes_in(store)
    told.clear()
    several(runs, store, on_run=lambda run, status, already: told.append((run.id, already)))
    assert sorted(told) == sorted((run.id, True) for run in runs)
    assert bytes_in(store) == before
    assert not children()


def test_a_killed_process_is_replaced_and_its_run_goes_on(images, store, tmp_path):
    runs, told, victims = three(images, steps=40, evaluate_every=2), [], []

    def kill(run, step):
        if step >= 10 and not victims:
            victims.extend(children())
            for victim in victims:
                os.kill(victim, signal.SIGKILL)

    ended = several(runs, store, on_run=lambda run, s, _: told.append((s.status, s.reason)), progress=Seen(kill))
    assert len(victims) == 2
    assert {each.status for each in ended.values()} == {"finished"}
    died = [reason for state, reason in told if state == "failed"]
    assert 1 <= len(died) <= 2
    assert set(died) == {"the process that trained it was killed by SIGKILL; was there enough memory?"}
    other = RunStore(tmp_path / "other")
    other.make()
    assert_same_bits(runs, ended, alone(runs, other, EXECUTION))
    assert not list((store.path / "failures").iterdir())


def test_a_run_that_always_kills_its_process_fails_alone(images, store, tmp_path, monkeypatch):
    (tmp_path / "deadly_method.py").write_text(
        "import os\nfrom dspreg import Algorithm\n\n"
        "class Deadly(Algorithm):\n    def loss(self, out):\n        os._exit(9)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    (deadly, *_), (good, *_) = three(images, "deadly_method.Deadly"), three(images)
    ended = several([deadly, good], store, attempts=2)
    assert ended[good.id].status == "finished"
    assert (ended[deadly.id].status, ended[deadly.id].attempts) == ("failed", 2)
    assert ended[deadly.id].reason == "the process that trained it ended with exit code 9"


def test_a_process_without_progress_is_ended(images, store, tmp_path, monkeypatch):
    (tmp_path / "endless_method.py").write_text(
        "import time\nfrom dspreg import Algorithm\n\n"
        "class Endless(Algorithm):\n    def loss(self, out):\n        time.sleep(600)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    (run, *_) = three(images, "endless_method.Endless")

    def change(queue):
        queue.leases.duration = 8.0  # long enough to start on a busy machine

    ended = several([run], store, jobs=1, attempts=1, change=change)
    assert ended[run.id].reason == "it made no progress for 8 s and was stopped"
    assert not children()


def test_without_forks_processes_are_spawned_and_stop_with_a_checkpoint(images, store, monkeypatch):
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    monkeypatch.setattr(multiprocessing.context.SpawnProcess, "terminate", None)  # on Windows it would kill
    run, *_ = three(images, steps=5000, evaluate_every=5000)
    kinds, steps = [], []

    def note(run, step):
        kinds.extend(type(child).__name__ for child in multiprocessing.active_children())
        steps.append(step)

    def pause():
        if steps and steps[-1] > 3:
            raise Preempted("stopped by the test")

    with pytest.raises(Preempted):
        several([run], store, jobs=1, progress=Seen(note), pause=pause)
    assert "SpawnProcess" in kinds
    assert store.status(run).status == "stopped"
    assert list(store.path.glob("runs/*/checkpoints/step-*"))
    assert not any(
        isinstance(child, multiprocessing.context.SpawnProcess) for child in multiprocessing.active_children()
    )


def test_a_stopped_sweep_stops_its_processes_with_a_checkpoint(images, store):
    runs, moves = three(images, steps=5000, evaluate_every=5000), []

    def pause():
        if len(moves) >= 2:
            raise Preempted("stopped by the test")

    seen = Seen(lambda run, step: moves.append(step) if step > 3 else None)
    with pytest.raises(Preempted):
        several(runs, store, pause=pause, progress=seen)
    assert not children()
    assert store.leases().list_all() == []
    saved = {int(p.name.split("-")[1]) for p in store.path.glob("runs/*/checkpoints/step-*")}
    assert max(saved) > 3
    assert max(saved) < 5000
    assert not list((store.path / "failures").iterdir())


def test_a_full_disk_ends_the_sweep(images, store, monkeypatch):
    runs = three(images)
    (store.path / "runs").rmdir()
    (store.path / "runs").touch()  # nothing can be made below a file, not even by root
    with pytest.raises(ResourceError, match="can't be written"):
        several(runs, store)
    assert not children()


def test_notices_of_the_processes_are_said_once(images, store):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        several(three(images, "IRM"), store)
    said = [str(w.message) for w in caught if issubclass(w.category, Notice)]
    assert sum("IRM: warmup" in text for text in said) == 1


def test_slots():
    cores = sorted(os.sched_getaffinity(0))
    assert assign_slots(len(cores), Execution(threads=1)) == [Slot((core,), None) for core in cores]
    assert assign_slots(len(cores) + 1, Execution(threads=1)) == [Slot(None, None)] * (len(cores) + 1)
    with pytest.raises(ConfigError, match="jobs=0; wanted at least 1"):
        PoolLauncher(0)


def test_every_gpu_has_a_process(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,GPU-x")
    execution = Execution(device="cuda")
    assert usable_gpus(execution) == ["2", "GPU-x"]
    assert usable_gpus(replace(execution, device="cpu")) == []
    assert [slot.gpu for slot in assign_slots(3, execution)] == ["2", "GPU-x", "2"]
    assert default_jobs(execution) == 2
    assert fill_execution(execution, 2).threads == 1


def test_what_is_left_open_does_not_depend_on_the_machine_but_for_how_many_at_once():
    cores = len(os.sched_getaffinity(0))
    assert default_jobs(Execution(device="cpu")) == cores
    execution = PoolLauncher().setup(Execution())
    assert (execution.threads, execution.workers) == (1, 0)
    assert default_jobs(Execution(device="cpu", threads=cores)) == 1
    execution = PoolLauncher(7).setup(Execution(threads=cores, workers=3))
    assert (execution.threads, execution.workers) == (cores, 3)


def test_ends_are_described_in_words():
    class Ended:
        exitcode = -signal.SIGSEGV

    assert describe_exit(Ended()) == "the process that trained it was killed by SIGSEGV"


class Process:
    """Of a worker that is tearing down: alive, and deaf."""

    exitcode = 0

    def __init__(self):
        self.alive = True

    def is_alive(self):
        return self.alive

    def join(self, seconds=None):
        self.alive = False

    terminate = kill = join


@pytest.fixture
def one_worker(images, store, monkeypatch):
    """A pool whose only process is made up; the other end of its pipe is ours."""
    ends = []

    def start_worker(transport, slot):
        ours, theirs = multiprocessing.Pipe()
        ends.append(theirs)
        return Worker(slot, Process(), ours)

    monkeypatch.setattr(PoolTransport, "start_worker", start_worker)
    with RunQueue(three(images), store) as queue:
        transport = PoolTransport(queue, EXECUTION, [Slot()])
        yield Dispatcher(queue, transport, SweepProgress(), lambda: None), transport, ends


def test_a_process_that_leaves_is_given_nothing_and_its_run_costs_no_attempt(one_worker, store):
    dispatcher, transport, ends = one_worker
    dispatcher.hand_out()
    (end,) = ends
    first = end.recv()
    end.send(Stopped())
    dispatcher.listen(0)
    dispatcher.hand_out()
    assert not end.poll()  # it is alive, and gets nothing
    transport.workers[0].process.alive = False
    dispatcher.listen(0)
    dispatcher.hand_out()
    assert ends[1].recv().run != first.run  # that one comes last
    assert not list((store.path / "failures").iterdir())


def test_a_pipe_without_a_reader_costs_no_attempt(one_worker, store):
    dispatcher, transport, ends = one_worker
    ends[0].close()
    dispatcher.hand_out()
    assert dispatcher.queue.claimed == {}
    assert len(dispatcher.queue.waiting) == 3
    transport.workers[0].process.alive = False
    dispatcher.listen(0)
    dispatcher.hand_out()
    assert ends[1].poll()
    assert not list((store.path / "failures").iterdir())


def test_the_last_words_of_a_process_are_heard(one_worker, store):
    dispatcher, transport, ends = one_worker
    dispatcher.hand_out()
    ends[0].send(Outcome(RunState(RunStatus.FAILED, "its own words", attempts=3)))
    ends[0].close()
    transport.workers[0].process.alive = False
    dispatcher.listen(0)
    assert [each.reason for each in dispatcher.queue.ended.values()] == ["its own words"]


def test_a_process_that_dies_without_a_word_costs_an_attempt(one_worker, store):
    dispatcher, transport, ends = one_worker
    dispatcher.hand_out()
    run = ends[0].recv().run
    transport.workers[0].process.alive = False
    dispatcher.listen(0)
    status = store.status(run)
    assert (status.status, status.attempts) == ("failed", 1)
    assert status.reason == "the process that trained it ended with exit code 0"
    assert len(dispatcher.queue.waiting) == 3
    assert transport.has_room()  # it was replaced


def test_a_refusal_of_the_disk_ends_the_sweep(one_worker, store):
    dispatcher, _, ends = one_worker
    dispatcher.hand_out()
    ends[0].send(Refused("no space"))
    with pytest.raises(ResourceError, match="no space"):
        dispatcher.listen(0)
    assert not list((store.path / "failures").iterdir())
