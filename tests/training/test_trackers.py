"""A killed and resumed run is one curve to a tracker: no step twice, none missing."""

import os
import struct
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import torch

from dspreg.config.train_config import TRACKERS
from dspreg.errors import ConfigError, Notice, Preempted
from dspreg.runs.folder import RunFolder
from dspreg.training import loop, train
from dspreg.training.callbacks import Callback
from dspreg.training.trackers import Tracker, make_trackers
from dspreg.training.trackers import tracker as shared
from dspreg.training.trackers.tracker import key_of, scalars_of
from helpers import tiny

pytestmark = pytest.mark.filterwarnings("ignore::dspreg.Notice")
QUICK = {"algorithm": "ERM", "steps": 5, "evaluate_every": 2}  # evaluations after steps 0, 2, 4


class Killed(BaseException):
    """As a signal that no code of the training sees."""


class Remembering(Tracker):
    """Keeps what it is sent, in a list that outlives it, as a server does."""

    name = "the server"

    def __init__(self, folder, server):
        super().__init__(folder)
        self.server = server

    def open(self, run):
        self.server.setdefault("keys", []).append(run.key)
        self.there = {(name, step) for name, step, _ in self.server.setdefault("sent", [])}

    def has(self, name, step):
        return (name, step) in self.there

    def send(self, step, scalars):
        torch.rand(3)  # a tracker may draw random numbers, and the training must not notice
        self.server["sent"] += [(name, step, value) for name, value in scalars.items()]

    def select(self, scalars):
        self.server.setdefault("selected", []).append(dict(scalars))

    def close(self, status):
        self.server.setdefault("closed", []).append(status)


class Kill(Callback):
    """Ends the training as soon as one of its events has come so many times."""

    def __init__(self, event, at):
        self.left = at
        setattr(self, event, self.strike)

    def strike(self, *_):
        self.left -= 1
        if not self.left:
            raise Killed


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return tiny.make_images(tmp_path_factory.mktemp("images") / "woods", per_class=3)


@pytest.fixture
def server(monkeypatch):
    found = {}
    monkeypatch.setattr(loop, "make_trackers", lambda _, folder: [Remembering(folder, found)])
    return found


def go(images, out, *callbacks, pause=lambda: None, **how):
    return train(tiny.settings(images, **QUICK), tiny.execution(**how), out, callbacks=callbacks, pause=pause)


def expected(out):
    """Name and step of every scalar that a record has, with its value."""
    return sorted((n, record["step"], v) for record in RunFolder(out).records for n, v in scalars_of(record).items())


# Killed at which call of which event, with a checkpoint every so many steps: before a record is sent; after it and
# before the checkpoint that follows, where there is none, and where there is one of the same step; later.
KILLS = [("on_evaluation", 2, 1), ("saving", 1, 100), ("saving", 4, 1), ("on_step_end", 4, 100), ("on_selected", 1, 1)]


@pytest.mark.parametrize(("event", "at", "save_every"), KILLS)
def test_a_killed_and_resumed_run_is_one_curve(images, server, tmp_path, monkeypatch, event, at, save_every):
    kill_at(images, tmp_path / "run", monkeypatch, event, at, save_every=save_every)
    go(images, tmp_path / "run", save_every=save_every)
    assert sorted(server["sent"]) == expected(tmp_path / "run")
    assert {step for _, step, _ in server["sent"]} == {0, 2, 4}
    assert len(set(server["keys"])) == 1
    assert server["closed"] == ["finished"]


def kill_at(images, out, monkeypatch, event, at, **how):
    """Train until it is killed, and no tracker is told."""
    kill, save = Kill(event, at), loop.Checkpoints.save
    with monkeypatch.context() as patch:
        if how.get("track") != "wandb":  # which knows its runs of one process
            patch.setattr(Tracker, "on_train_end", lambda self: None)
        if event == "saving":  # the tracker has the record, and no checkpoint does
            patch.setattr(loop.Checkpoints, "save", lambda *a: (kill.strike(), save(*a)))
        with pytest.raises(Killed):
            go(images, out, kill, **how)


def test_the_selected_step_is_told_and_how_it_ended(images, server, tmp_path):
    with pytest.raises(Preempted):
        go(images, tmp_path / "run", pause=tiny.stop_at(8))
    assert server["closed"] == ["stopped"]
    result = go(images, tmp_path / "run")
    assert server["closed"] == ["stopped", "finished"]
    selected = next(r for r in RunFolder(tmp_path / "run").records if r["step"] == result["selected"]["step"])
    assert server["selected"] == [{**scalars_of(selected), "selected_step": selected["step"]}]
    go(images, tmp_path / "run")  # which is finished, and says nothing more
    assert server["closed"] == ["stopped", "finished"]


def test_a_run_that_fails_is_closed_as_failed(images, server, tmp_path):
    class Broken(Callback):
        def on_step_end(self, step, log):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        go(images, tmp_path / "run", Broken())
    assert server["closed"] == ["failed"]


def test_tracking_changes_no_bit(images, server, tmp_path):
    go(images, tmp_path / "tracked")
    loop.make_trackers = lambda *_: []  # undone by the fixture
    go(images, tmp_path / "plain")
    tracked, plain = tiny.ending(tmp_path / "tracked"), tiny.ending(tmp_path / "plain")
    assert tracked["files"].pop("tracking.json")
    assert tracked == plain
    assert server["sent"]


def test_a_server_that_is_away_does_not_end_the_training(images, server, tmp_path, monkeypatch):
    monkeypatch.setattr(shared, "AGAIN", 0.0)
    away, send = iter([True, True, False]), Remembering.send

    def unreliable(self, step, scalars):
        if next(away, False):
            half = dict(list(scalars.items())[:2])
            send(self, step, half)  # some of it arrives
            raise ConnectionError("no route to host\nmore of this")
        send(self, step, scalars)

    monkeypatch.setattr(Remembering, "send", unreliable)
    with pytest.warns(Notice, match=r"the server can't be reached, and the training goes on without it: no route to"):
        go(images, tmp_path / "run")
    assert sorted(server["sent"]) == expected(tmp_path / "run")
    assert len(server["selected"]) == 1


def test_what_did_not_arrive_is_said_and_sent_by_the_next_start(images, server, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Remembering, "open", lambda *_: 1 / 0)
        with (
            pytest.warns(Notice, match=r"2 records of .*run did not reach the server; the next start sends them"),
            pytest.raises(Killed),
        ):
            go(images, tmp_path / "run", Kill("on_step_end", 5))
    go(images, tmp_path / "run")
    assert sorted(server["sent"]) == expected(tmp_path / "run")


def test_a_server_that_is_away_is_not_asked_at_every_record(images, server, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(Remembering, "open", lambda *_: asked.append(1) or 1 / 0)
    with pytest.warns(Notice, match=r"3 records of .*; they are in records\.jsonl"):
        go(images, tmp_path / "run")
    assert len(asked) == 3  # at the start; at the end, when the last step is selected and when all is over


def test_the_key_is_made_once_and_a_damaged_one_anew(tmp_path):
    folder = RunFolder(tmp_path)
    key = key_of(folder)
    assert key_of(RunFolder(tmp_path)) == key
    (tmp_path / "tracking.json").write_text('{"key": "../x"}')
    assert key_of(folder) not in (key, "../x")


@pytest.mark.parametrize("name", TRACKERS)
def test_what_is_missing_is_said_before_there_is_a_run(images, tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=rf"--track {name} needs {name}: pip install 'dspreg\[{name}\]'"):
        go(images, tmp_path / "run", track=name)
    assert not (tmp_path / "run").exists()


def test_the_old_flag_is_the_tracker_once(monkeypatch, tmp_path):
    monkeypatch.setattr("dspreg.training.trackers.is_installed", lambda _: True)
    for how in ({"tensorboard": True}, {"track": "tensorboard"}, {"track": "tensorboard", "tensorboard": True}):
        assert [each.name for each in make_trackers(tiny.execution(**how), RunFolder(tmp_path))] == ["TensorBoard"]
    both = make_trackers(tiny.execution(tensorboard=True, track="mlflow"), RunFolder(tmp_path))
    assert [each.name for each in both] == ["MLflow", "TensorBoard"]
    assert make_trackers(tiny.execution(), RunFolder(tmp_path)) == []


# The real ones, read back with what each of them offers for that.


def read_tensorboard(out):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(out / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    return [(name, each.step, each.value) for name in events.Tags()["scalars"] for each in events.Scalars(name)]


def read_mlflow(out):
    from mlflow import MlflowClient

    client = MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("dspreg").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["lr"] == str(tiny.SETTINGS["lr"])
    names = [name for name in run.data.metrics if not name.startswith("selected ")]
    assert run.data.metrics["selected selected_step"] in (0, 2, 4)
    values = {name: client.get_metric_history(run.info.run_id, name) for name in names}
    return [(name, each.step, each.value) for name, some in values.items() for each in some]


def read_wandb(out):
    """The newest of the folders that it keeps offline: all of the curve, by the one id."""
    import wandb
    from wandb.proto.wandb_internal_pb2 import Record

    wandb.teardown()  # waits until its own process has written everything
    kept = sorted(Path(os.environ["WANDB_DIR"]).glob("wandb/offline-run-*/*.wandb"))
    assert len(kept) == 3
    assert {path.stem for path in kept} == {f"run-{key_of(RunFolder(out))}"}
    found, names = [], None
    for data in entries_of(kept[-1].read_bytes()):
        record = Record.FromString(data)
        if record.HasField("history"):
            row = {"/".join(item.nested_key) or item.key: float(item.value_json) for item in record.history.item}
            names = row.keys() - {"_step", "_timestamp", "_runtime"}
            found += [(name, int(row["_step"]), row[name]) for name in names]
    return found


def entries_of(data):
    """The entries of a .wandb file, which is a log as LevelDB writes it: blocks of 32 KB, entries in pieces."""
    at, entry = 7, b""  # after its name and version
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, piece = struct.unpack("<IHB", data[at : at + 7])
        entry += data[at + 7 : at + 7 + length]
        at += 7 + length
        if piece in (1, 4):  # whole, or the last of several
            yield entry
            entry = b""


def read_trackio(out):
    from trackio.sqlite_storage import SQLiteStorage

    (run,) = SQLiteStorage.get_run_records("dspreg")
    rows = SQLiteStorage.get_logs("dspreg", run["name"], run_id=run["id"])
    return [(n, row["step"], v) for row in rows for n, v in row.items() if n not in ("step", "timestamp")]


READERS = {"tensorboard": read_tensorboard, "mlflow": read_mlflow, "wandb": read_wandb, "trackio": read_trackio}


@pytest.fixture
def places(tmp_path, monkeypatch):
    """Where each of them keeps runs, without a network."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.mark.filterwarnings("ignore")  # what they warn of is their developers' to mend
@pytest.mark.usefixtures("places")
@pytest.mark.parametrize("name", TRACKERS)
def test_in_the_tracker_a_run_killed_twice_is_one_curve(images, tmp_path, monkeypatch, name):
    pytest.importorskip(name, reason=f"needs the extra {name}")
    if name == "trackio":
        for module in ("trackio.utils", "trackio.sqlite_storage"):
            monkeypatch.setattr(f"{module}.TRACKIO_DIR", tmp_path / "trackio", raising=False)
    for event, at in (("saving", 4), ("on_evaluation", 1)):
        kill_at(images, tmp_path / "run", monkeypatch, event, at, track=name, save_every=1)
        time.sleep(1.1 if name == "wandb" else 0.0)  # its folders are named by the second; no process starts as fast
    go(images, tmp_path / "run", track=name, save_every=1)
    found, wanted = READERS[name](tmp_path / "run"), expected(tmp_path / "run")
    assert Counter((n, step) for n, step, _ in found) == Counter((n, step) for n, step, _ in wanted)
    values = {(n, step): v for n, step, v in found}
    assert all(values[n, step] == pytest.approx(v, rel=1e-6) for n, step, v in wanted)  # TensorBoard has float32
