"""Some of the operations at which `tests/faults/every_operation.py` crashes, and that its model of a disk is one."""

import random

import pytest

from dspreg.io import atomic_files
from faults import small
from faults.disk import RecordedDisk, Replay, read_tree
from faults.every_operation import Crashes, Sweep, Training, impatient


@pytest.fixture
def place():
    with small.make_place() as folder:
        yield small.Path(folder)


def replayed(operations):
    replay = Replay()
    for operation in operations:
        replay.apply(operation)
    return replay


def test_a_training_survives_a_crash_anywhere(place):
    crashes = Crashes(Training(place), place)
    found = crashes.try_all(every=6)
    assert found["wrong"] == 0, crashes.examples
    assert found["operations"] > 80
    assert found["different disks"] > 15
    found = crashes.refuse_all(("ENOSPC",), every=25)
    assert found["refusals wrong"] == 0, found


def test_a_sweep_survives_a_crash_anywhere(place, monkeypatch):
    impatient(monkeypatch.setattr)
    crashes = Crashes(Sweep(place), place)
    found = crashes.try_all(every=29)
    assert found["wrong"] == 0, crashes.examples
    assert found["operations"] > 150


def test_all_that_is_written_is_recorded(tmp_path):
    disk = RecordedDisk(tmp_path)
    with disk.recorded():
        atomic_files.make_folder(tmp_path / "a" / "b")
        atomic_files.write(tmp_path / "a" / "file", b"first")
        atomic_files.write(tmp_path / "a" / "file", b"second")
        lines = atomic_files.Lines(tmp_path / "a" / "b" / "lines")
        for n in range(3):
            lines.append(n)
        lines.rewind(None)
        lines.append(7)
        atomic_files.remove(tmp_path / "a" / "file")
        (tmp_path / "plain").write_text("text")
    replay = replayed(disk.operations)
    assert replay.tree() == read_tree(tmp_path)
    assert replay.after_power_cut("none") == {"a": None, "a/b": None, "a/b/lines": b"7\n", "a/file": b"second"}
    assert replay.after_power_cut("all") == {"a": None, "a/b": None, "a/b/lines": b"7\n", "plain": b""}


def test_a_power_cut_takes_what_was_not_synced(tmp_path):
    disk = RecordedDisk(tmp_path)
    with disk.recorded():
        atomic_files.write(tmp_path / "file", b"old")
        with (tmp_path / "new").open("wb") as file:
            file.write(b"never synced")
        (tmp_path / "new").replace(tmp_path / "file")
    replay = replayed(disk.operations)
    assert replay.tree() == {"file": b"never synced"}
    assert replay.after_power_cut("none") == {"file": b"old"}
    assert replay.after_power_cut("all") == {"file": b""}
    seen = {replay.after_power_cut("some", random.Random(n)).get("file") for n in range(50)}
    assert seen == {b"old", b"", b"never ", b"never synced"}
