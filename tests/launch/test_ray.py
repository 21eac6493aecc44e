"""Sweeps on Ray: a real cluster of this machine, and the bits of the launcher that needs none."""

import json
import signal
import socket
import sys
import tempfile
import threading
import time
import types
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from dspreg.cli import main
from dspreg.config.train_config import Execution
from dspreg.errors import ConfigError, Preempted, ResourceError
from dspreg.io.atomic_files import sha256_of_file
from dspreg.launch import ray_cluster
from dspreg.launch.queue import RunQueue
from dspreg.launch.ray_cluster import connected, require_cluster
from dspreg.launch.ray_launcher import (
    RayLauncher,
    RayTransport,
    cluster_device,
    describe_error,
    fill_for_cluster,
    use_absolute_paths,
)
from dspreg.runs.run import Run
from dspreg.runs.store import RunStore
from helpers.small_runs import EXECUTION
from helpers.sweeps import Seen, launched, three
from helpers.sweeps import alone as serial
from helpers.tampered import plant

OWN = """
import os, signal, time
from dspreg import ERM
from pathlib import Path

class Broken(ERM):
    def loss(self, out):
        return 1 / 0

class Killed(ERM):
    '''Its process is killed in its fourth step; the next one finds the file and goes on.'''

    def loss(self, out):
        if self.t == 3 and not Path({place!r}, "killed").exists():
            Path({place!r}, "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().loss(out)

class Sleeping(ERM):
    def loss(self, out):
        if self.t == 3 and not Path({place!r}, "asleep").exists():
            Path({place!r}, "asleep").touch()
            time.sleep(1000)
        return super().loss(out)
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    """Where tasks have their folders."""
    return tmp_path_factory.mktemp("node")


@pytest.fixture(scope="module")
def ray(node):
    pytest.importorskip("ray", reason="the extra ray is not installed")
    before, told = signal.getsignal(signal.SIGTERM), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", tempfile.gettempdir())  # its sockets need short names
        patch.setenv("TMPDIR", str(node))
        patch.setenv("RAY_worker_niceness", "0")  # on a busy machine its processes would come last
        with connected("local", 2, told.append) as found:
            assert signal.getsignal(signal.SIGTERM) is before
            assert told == ["a Ray cluster of this machine was started, CPUs: 2"]
            yield found


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A module of the user's, and the folder where its methods leave word."""
    place = tmp_path_factory.mktemp("own")
    (place / "own_of_a_ray_test.py").write_text(OWN.format(place=str(place)))
    sys.path.append(str(place))
    yield place
    sys.path.remove(str(place))


def made(path):
    store = RunStore(path)
    store.make()
    return store


def swept(runs, store, **more):
    return launched(RayLauncher(), runs, store, EXECUTION, **more)


def bits(store, run):
    """All of a finished run that no clock and no path has a part in."""
    folder = store.folder(run)
    records = [{k: v for k, v in record.items() if k != "seconds"} for record in folder.records]
    result = folder.result()
    names = ("last.safetensors", "selected.safetensors", "README.md")
    return records, {name: result["files"][name] for name in names}, result["run"], result["selected"]


def files_of(store):
    return {p: sha256_of_file(p) for p in sorted(store.path.rglob("runs/*/*")) if p.is_file()}


def test_the_bits_are_those_of_one_process(ray, images, store, tmp_path, monkeypatch):
    monkeypatch.chdir(images.parent)  # the machines don't start here
    runs, seen = three("photos", steps=4, evaluate_every=1), []
    ended = swept(runs, store, on_run=lambda run, status, already: seen.append((run.id, already)))
    assert [ended[run.id].status for run in runs] == ["finished"] * 3
    assert sorted(seen) == sorted((run.id, False) for run in runs)
    assert store.leases().list_all() == []
    other = made(tmp_path / "other")
    serial(runs, other, EXECUTION)
    for run in runs:
        assert bits(store, run) == bits(other, run)
        assert {p.name for p in store.folder(run).path.iterdir()} == {p.name for p in other.folder(run).path.iterdir()}
    before, seen = files_of(store), []
    again = swept(runs, store, on_run=lambda run, status, already: seen.append((run.id, already)))
    assert sorted(seen) == sorted((run.id, True) for run in runs)
    assert again == ended
    assert files_of(store) == before


def test_a_failure_has_its_reason_and_the_others_go_on(ray, images, own, store):
    (broken, *_), (good, *_) = three(images, "own_of_a_ray_test.Broken"), three(images)
    (diverges, *_) = three(images, "CORAL(weight=1e300)")
    missing = Run(dataset="folder:nowhere/at-all", targets=("a",), algorithm="ERM", options=broken.options)
    told = []
    ended = swept(
        [broken, diverges, missing, good], store, attempts=2, on_run=lambda run, s, _: told.append((run.id, s.attempts))
    )
    assert [ended[run.id].status for run in (broken, diverges, missing, good)] == ["failed"] * 3 + ["finished"]
    assert ended[broken.id].reason == "ZeroDivisionError: division by zero"
    assert "not finite" in ended[diverges.id].reason
    assert "at-all" in ended[missing.id].reason
    assert [n for run, n in told if run == broken.id] == [1, 2]
    assert [n for run, n in told if run == diverges.id] == [0]  # it would come to the same bits
    failure = json.loads((store.path / "failures" / f"{broken.id}.json").read_text())
    assert "own_of_a_ray_test.py" in "".join(failure["traceback"])
    assert (store.folder(diverges) / "failure.json").exists()


def stopping(store, run, least=2):
    """Stops the sweep once so many checkpoints of a run were seen."""
    seen = set()

    def pause():
        seen.update(p.name for p in (store.folder(run) / "checkpoints").glob("step-*"))
        if len(seen) >= least:
            raise Preempted("stopped by the test")

    return pause


@pytest.mark.parametrize("first", ["here", "on ray"])
def test_begun_in_one_place_and_finished_in_the_other(ray, node, images, store, tmp_path, first):
    (run, *_) = three(images, steps=60, evaluate_every=1)
    begin = partial(serial, execution=EXECUTION) if first == "here" else swept
    with pytest.raises(Preempted):
        begin([run], store, pause=stopping(store, run))
    assert store.status(run).status == "stopped"
    assert store.leases().list_all() == []
    assert list(node.iterdir()) == []
    if first == "here":
        seen = Seen()
        swept([run], store, progress=seen)
        assert next(progress.step for _, progress in seen.updates if progress.steps) > 0
    else:
        serial([run], store, EXECUTION)
    other = made(tmp_path / "other")
    serial([run], other, EXECUTION)
    assert bits(store, run) == bits(other, run)


def test_names_that_only_the_store_holds_are_not_imported(ray, images, own, store):
    (run, *_) = three(images, steps=60, evaluate_every=1)
    with pytest.raises(Preempted):
        serial([run], store, EXECUTION, pause=stopping(store, run))
    mark = plant(store, run, own)  # where tasks look for modules
    ended = swept([run], store)
    assert ended[run.id].status == "finished"
    assert not mark.exists()


def test_a_killed_process_costs_an_attempt_and_no_work(ray, images, own, store, tmp_path):
    (run, *_), told = three(images, "own_of_a_ray_test.Killed", steps=5, evaluate_every=1), []
    ended = swept([run], store, on_run=lambda run, s, _: told.append((s.status, s.attempts, s.reason)))
    assert [state for state, *_ in told] == ["failed", "finished"]
    assert told[0][1] == 1
    assert "the Ray task that trained it died: WorkerCrashedError" in told[0][2]
    assert ended[run.id].status == "finished"
    assert not list((store.path / "failures").iterdir())
    other = made(tmp_path / "other")
    serial([run], other, EXECUTION)  # the file is there: nobody is killed
    assert bits(store, run) == bits(other, run)


def test_a_task_that_hangs_is_ended_and_its_run_goes_on(ray, images, own, store):
    (run, *_), told, stalled = three(images, "own_of_a_ray_test.Sleeping", steps=5, evaluate_every=1), [], []

    def change(queue):
        def over():
            if (own / "asleep").exists() and not stalled and (store.folder(run) / "checkpoints").exists():
                stalled.extend(queue.claimed.values())
                return stalled
            return []

        queue.stalled = over

    ended = swept([run], store, on_run=lambda run, s, _: told.append((s.status, s.reason)), change=change)
    assert told[0] == ("failed", "it made no progress for 600 s and was stopped")
    assert ended[run.id].status == "finished"


def test_after_a_lost_lease_nothing_is_written(ray, images, store):
    (run, *_), others = three(images, steps=2000, evaluate_every=1), store.leases()

    def pause():
        if (store.folder(run) / "checkpoints").exists() and others.list_all():
            store.cancel(run)
            assert others.revoke(run.id)
            others.before = files_of(store)

    ended = swept([run], store, pause=pause)
    assert ended[run.id].status == "cancelled"
    assert files_of(store) == others.before
    others.close()


def test_the_folder_is_locked_against_training_by_hand_meanwhile(ray, images, store):
    (run, *_), refused = three(images, steps=60, evaluate_every=1), []

    def pause():
        if (store.folder(run) / "checkpoints").exists() and not refused:
            try:
                with store.folder(run).locked():
                    pass
            except Exception as error:
                refused.append(str(error))
                raise Preempted("enough") from error

    with pytest.raises(Preempted):
        swept([run], store, pause=pause)
    assert "in use by another training" in refused[0]
    with store.folder(run).locked():  # and it is let go of
        pass


def test_as_it_is_typed(ray, images, tmp_path, capsys):
    how = ["--threads", "1", "--profile", "never", "--workers", "0", "--check-images", "never"]
    small = ["model=small-cnn", "weights=none", "image_size=28", "steps=2", "batch_size=4", "augment=no"]
    what = ["sweep", "--dataset", f"folder:{images}", "--algorithms", "ERM", "--trials", "1", "--draws", "1",
            "--only", "training", *[word for text in small for word in ("--set", text)], *how]  # fmt: skip
    assert main([*what, "--store", str(tmp_path / "store"), "--on", "ray", "--jobs", "1"]) == 0
    assert "3 of 3 runs finished" in capsys.readouterr().out
    assert main([*what, "--store", str(tmp_path / "store"), "--ray-address", "auto"]) == 2
    assert "--ray-address auto is for --on ray" in capsys.readouterr().err
    assert main([*what, "--store", str(tmp_path / "store"), "--on", "ray", "--jobs", "0"]) == 2
    assert "--jobs '0'; wanted a whole number at least 1" in capsys.readouterr().err


# What needs no cluster.


def test_without_ray_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'dspreg\[ray\]'"), connected(None, 1):
        pass


def test_rays_client_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(is_initialized=lambda: False))
    with pytest.raises(ConfigError, match="ray://host: sweeps don't go through"), connected("ray://host", 1):
        pass


class Starting:
    """Ray's `init`, on a machine where there is a cluster, or none."""

    def __init__(self, there):
        self.there, self.calls = there, []
        self._private = types.SimpleNamespace(worker=types.SimpleNamespace())

    def init(self, **given):
        self.calls.append(given)
        exists = self.there and given["address"] != "local"
        if exists and "num_cpus" in given:
            raise ValueError("When connecting to an existing cluster, num_cpus and num_gpus must not be provided.")
        if given["address"] not in (None, "local") and not exists:
            raise ConnectionError("nobody answers")
        return types.SimpleNamespace(address_info={"gcs_address": "there:1"})

    def is_initialized(self):
        return False

    def shutdown(self):
        self.calls.append("shutdown")


@pytest.mark.parametrize(
    ("address", "there", "said"),
    [
        (None, False, "a Ray cluster of this machine was started, CPUs: 3"),
        (None, True, "connected to the Ray cluster at there:1"),
        ("local", True, "a Ray cluster of this machine was started, CPUs: 3"),
        ("auto", True, "connected to the Ray cluster at there:1"),
    ],
)
def test_a_cluster_is_taken_where_there_is_one(monkeypatch, address, there, said):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    ray, told = Starting(there), []
    monkeypatch.setitem(sys.modules, "ray", ray)
    with connected(address, 3, told.append):
        assert told == [said]
        assert ("num_cpus" in ray.calls[-1]) is ("started" in said)
        assert not any(call["log_to_driver"] for call in ray.calls)
    assert ray.calls[-1] == "shutdown"


def test_an_address_is_connected_to(monkeypatch):
    ray, told = Starting(True), []
    monkeypatch.setitem(sys.modules, "ray", ray)
    with speaking_grpc() as address, connected(address, 3, told.append):
        assert told == ["connected to the Ray cluster at there:1"]
        assert ray.calls[-1]["address"] == address


def test_a_cluster_that_does_not_answer_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", Starting(False))
    with speaking_grpc() as address:
        says = rf"\({address}\): nobody answers. With --ray-address local"
        with pytest.raises(ResourceError, match=says), connected(address, 3):
            pass


@contextmanager
def listening(answer):
    """An address of this machine where `answer` is all that is said."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            with suppress(OSError):
                while True:
                    caller, _ = server.accept()
                    callers.append(caller)
                    caller.sendall(answer)

        callers = []
        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        for caller in callers:
            caller.close()


def speaking_grpc():
    return listening(b"\0\0\0\x04\0\0\0\0\0")  # an empty frame of settings, from HTTP/2's RFC 9113


def test_an_address_where_nobody_listens_is_said_at_once(monkeypatch, store):
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = server.getsockname()[1]
    monkeypatch.setattr(Starting, "init", lambda *_, **__: pytest.fail("Ray would wait for minutes"))
    monkeypatch.setitem(sys.modules, "ray", Starting(False))
    says = f"--ray-address 127.0.0.1:{free}: no Ray cluster answers there .*refused.*--ray-address local"
    with pytest.raises(ResourceError, match=says), connected(f"127.0.0.1:{free}", 1):
        pass
    with pytest.raises(ResourceError, match=says):  # before anything is written
        RayLauncher(address=f"127.0.0.1:{free}").setup(Execution())
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{free}")
    with pytest.raises(ResourceError, match=f"RAY_ADDRESS=127.0.0.1:{free}: no Ray cluster"), connected(None, 1):
        pass


@pytest.mark.parametrize(("answer", "said"), [(b"HTTP/1.1 400 Bad\r\n", "something else"), (b"", "timed out")])
def test_a_port_where_something_else_listens(monkeypatch, answer, said):
    monkeypatch.setattr(ray_cluster, "ANSWER", 0.3)
    monkeypatch.setattr(Starting, "init", lambda *_, **__: pytest.fail("Ray would wait for minutes"))
    monkeypatch.setitem(sys.modules, "ray", Starting(False))
    with listening(answer) as address, pytest.raises(ResourceError, match=said), connected(address, 1):
        pass


def test_a_name_that_is_looked_up_for_ever(monkeypatch):
    monkeypatch.setattr(ray_cluster, "ANSWER", 0.1)
    monkeypatch.setattr(ray_cluster, "_look", lambda *_: time.sleep(5))
    with pytest.raises(ResourceError, match="no answer"):
        require_cluster("far.away:6379")


def test_the_last_cluster_of_this_machine_may_be_gone(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        gone = f"127.0.0.1:{server.getsockname()[1]}"
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    ray = Starting(False)
    ray._private.services = types.SimpleNamespace(find_bootstrap_address=lambda _: gone)
    monkeypatch.setitem(sys.modules, "ray", ray)
    for address in (None, "auto"):
        with pytest.raises(ResourceError, match="--ray-address auto: no Ray cluster answers"), connected(address, 1):
            pass


@pytest.mark.parametrize(
    "address", ["", "host", "host:", ":6379", "host:0", "host:70000", "host:x", "http://host:6379", "host:" + "9" * 400]
)
def test_what_is_no_address(address):
    with pytest.raises(ConfigError, match=r"wanted HOST:PORT such as 10\.0\.0\.5:6379, auto or local") as caught:
        require_cluster(address)
    assert len(str(caught.value)) < 250


def test_a_signal_while_ray_starts_stops_the_sweep(monkeypatch):
    class Slow(Starting):
        def init(self, **_):
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(15))  # as Ray does
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setitem(sys.modules, "ray", Slow(False))
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Preempted, match="run the same command again"), connected("local", 1):
        pass
    assert signal.getsignal(signal.SIGTERM) is before


def test_what_ray_says_is_one_line():
    assert describe_error(ConnectionError("It is dead. To see more, look elsewhere.")) == "ConnectionError: It is dead"
    told = RuntimeError("ray::attempt_run() (pid=1)\nTraceback\nModuleNotFoundError: No module named 'dspreg'")
    assert describe_error(told) == "RuntimeError: ray::attempt_run() (pid=1)"
    told.cause = ModuleNotFoundError("No module named 'dspreg'\nand more")
    assert describe_error(told) == "ModuleNotFoundError: No module named 'dspreg'"
    assert describe_error(StopIteration()) == "StopIteration"


def test_paths_are_those_of_this_machine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = Run(dataset="folder:photos", targets=("a",), algorithm="ERM", options={"weights": "w.safetensors"})
    settings, execution = use_absolute_paths(run, Execution())
    assert settings["dataset"] == f"folder:{tmp_path}/photos"
    assert settings["weights"] == f"{tmp_path}/w.safetensors"
    assert (execution.root, execution.name) == (None, "photos")
    settings, execution = use_absolute_paths(Run(dataset="PACS", targets=("photo",), algorithm="ERM"), Execution())
    assert (settings["dataset"], execution.root) == ("PACS", f"{tmp_path}/data")
    _, execution = use_absolute_paths(
        Run(dataset="index:some/list.csv", targets=("a",), algorithm="ERM"), Execution(root="there")
    )
    assert (execution.root, execution.name) == (f"{tmp_path}/there", "list")
    assert Path(use_absolute_paths(run, Execution(root="/mnt/data"))[1].root) == Path("/mnt/data")


class Machines:
    """What the launcher asks Ray for before anything is run."""

    def __init__(self, *nodes):
        self.found = [{"Alive": alive, "Resources": resources} for alive, resources in nodes]
        self.given = {}

    def nodes(self):
        return self.found

    def remote(self, function):
        return types.SimpleNamespace(options=self.given.update)


def test_room_is_what_all_machines_have(store):
    cpus = Machines((True, {"CPU": 4.0, "GPU": 1.0}), (True, {}), (True, {"CPU": 3.0}), (False, {"CPU": 64.0}))
    with RunQueue([], store) as queue:

        def room(jobs=None, **how):
            return RayTransport(cpus, queue, RayLauncher().setup(Execution(device="cpu", **how)), jobs).count_room()

        assert room() == 7
        assert room(threads=2) == 2 + 1  # no run is on two machines
        assert room(threads=8) == 1  # a machine may join
        assert room(jobs=5) == 5
        assert room(jobs=50) == 7
        assert (cpus.given["num_cpus"], cpus.given["num_gpus"], cpus.given["max_retries"]) == (1, 0, 0)


def test_what_is_left_open_does_not_depend_on_this_machine(monkeypatch):
    monkeypatch.setattr("dspreg.launch.resources.usable_gpus", lambda execution: [])
    setup = RayLauncher().setup
    on_cpu = setup(Execution(device="cpu"))
    assert (on_cpu.threads, on_cpu.workers) == (1, 0)
    assert setup(Execution(device="cpu", threads=3)).threads == 3
    assert setup(Execution(device="cuda")).workers == 4
    assert setup(Execution(device="cuda", workers=1)).workers == 1
    with pytest.raises(ConfigError, match="Give --device cuda"):
        setup(Execution(device="cuda:1"))
    with pytest.raises(ConfigError, match="jobs=0"):
        RayLauncher(0)


def test_a_gpu_each(store):
    machines = Machines((True, {"CPU": 16.0, "GPU": 2.0}), (True, {"CPU": 64.0}))
    with RunQueue([], store) as queue:
        execution = Execution(device="cuda", threads=1)
        assert RayTransport(machines, queue, execution, None).count_room() == 2
    assert machines.given["num_gpus"] == 1


def test_auto_is_what_the_cluster_has():
    """This machine may have none of it: a sweep is started where the store is."""
    with_gpus = Machines((True, {"CPU": 64.0}), (True, {"CPU": 16.0, "GPU": 2.0}))
    assert cluster_device(with_gpus) == "cuda"
    assert cluster_device(Machines((True, {"CPU": 64.0}), (False, {"GPU": 8.0}))) == "cpu"
    assert RayLauncher().setup(Execution()).device == "auto"  # nobody is connected yet
    filled = fill_for_cluster(Execution(device="cuda"))
    assert (filled.workers, filled.threads) == (4, 1)
