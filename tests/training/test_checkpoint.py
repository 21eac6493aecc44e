"""Checkpoints: whatever happens to them, what is loaded is what was saved, or nothing."""

import os
import random
import shutil
import warnings

import pytest
import torch

from dspreg.algorithms import parse
from dspreg.errors import IntegrityError, Notice, ResourceError
from dspreg.io.atomic_files import sha256
from dspreg.runs.folder import RunFolder
from dspreg.testing import ready, toy_batches
from dspreg.training import train_step
from dspreg.training.checkpoint import FORMAT, Checkpoints
from dspreg.training.loop import resume
from dspreg.training.serialization import pack, same
from dspreg.training.state import State
from helpers.faults import Crash, operations, stopped


def state(step):
    return {"w": torch.arange(50.0) + step, "steps": step, "log": {"loss": [0.5, step]}}


@pytest.fixture
def two(tmp_path):
    """A run with checkpoints of steps 10 and 20."""
    checkpoints = Checkpoints(tmp_path / "checkpoints", "run-a")
    for step in (10, 20):
        checkpoints.save(step, state(step))
    return checkpoints


def found(checkpoints):
    """What `good` gives, and whether it gave notice."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        result = list(checkpoints.good())
    assert all(issubclass(each.category, Notice) for each in said)
    return result, [str(each.message) for each in said]


def test_the_newest_comes_first_and_two_are_kept(two):
    for step in (30, 400, 5_000):
        two.save(step, state(step))
    steps = [step for step, _ in found(two)[0]]
    assert steps == [5_000, 400]
    assert all(same(saved, state(step)) for step, saved in found(two)[0])
    for path in two.files():
        assert path.name == f"step-{int(path.name[5:13]):08d}-{sha256(path.read_bytes())}.safetensors"


def test_after_a_damaged_one_two_good_ones_are_kept_again(two):
    """The damaged one is of a later step: it kept a place for itself as the newest."""
    two.save(100, state(100))
    damaged = two.files()[0]
    damaged.write_bytes(damaged.read_bytes()[:-1])
    for step in (30, 40):
        two.save(step, state(step))
    assert [step for step, _ in found(two)[0]] == [40, 30]
    assert damaged not in two.files()


def test_the_same_step_and_state_is_the_same_file(two):
    before = two.files()
    two.save(20, state(20))
    assert two.files() == before


def test_nothing_saved_is_nothing_found(tmp_path):
    checkpoints = Checkpoints(tmp_path / "none", "r")
    assert found(checkpoints) == ([], [])
    checkpoints.clear()
    assert not (tmp_path / "none").exists()


# Damage.


def damages(path, older, other):
    """(name, how) of a hundred ways to spoil the newest checkpoint."""
    pick, whole = random.Random(7), path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")

    def put(data):
        return lambda: path.write_bytes(data)

    for n in range(50):
        at, bit = pick.randrange(header if n < 25 else len(whole)), pick.randrange(8)
        yield f"bit {bit} of byte {at}", put(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
    for n in range(25):
        size = 0 if n == 0 else len(whole) - n if n < 5 else pick.randrange(len(whole))
        yield f"cut to {size}", put(whole[:size])
    for n in range(12):
        start = 0 if n == 0 else pick.randrange(len(whole) - 60)
        yield f"zeros from {start}", put(whole[:start] + bytes(len(whole) - start))
    for n in range(5):
        yield f"{n + 1} bytes more", put(whole + bytes(n + 1))
    yield "contents of the older one", put(older.read_bytes())
    yield "contents of another run", put(other.read_bytes())

    def renamed(name, data=whole):
        def act():
            path.unlink()
            path.with_name(name).write_bytes(data)

        return act

    yield "another step in its name", renamed(f"step-00000030-{sha256(whole)}.safetensors")
    yield "no number in its name", renamed(f"step-newest-{sha256(whole)}.safetensors")
    yield "no hash in its name", renamed("step-00000020.safetensors")
    yield "more in its name", renamed(f"step-00000020-{sha256(whole)}-copy.safetensors")
    yield (
        "of another run under its own name",
        renamed(f"step-00000020-{sha256(other.read_bytes())}.safetensors", other.read_bytes()),
    )
    for about in (
        {"format": "dspreg.checkpoint/2"},
        {"format": "dspreg.checkpoint/0"},
        {},
        {"format": "dspreg.model/1"},
    ):
        data = pack(state(20), **about, run="run-a", step="20")
        yield f"format {about}", renamed(f"step-00000020-{sha256(data)}.safetensors", data)
    data = pack(state(20), format=FORMAT, run="run-a")
    yield "no step inside", renamed(f"step-00000020-{sha256(data)}.safetensors", data)
    data = b"not safetensors at all"
    yield "something else with its own hash", renamed(f"step-00000020-{sha256(data)}.safetensors", data)

    def folder():
        path.unlink()
        path.mkdir()

    yield "a folder", folder


def test_a_hundred_damages_of_a_hundred_are_noticed_and_the_one_before_is_taken(two, tmp_path):
    other = Checkpoints(tmp_path / "other", "run-b")
    other.save(20, state(20))
    backup = tmp_path / "backup"
    shutil.copytree(two.folder, backup)
    newest, older = two.files()
    count = 0
    for name, spoil in damages(newest, older, other.files()[0]):
        spoil()
        result, said = found(two)
        assert [step for step, _ in result] == [10], name
        assert same(result[0][1], state(10))
        assert len(said) == 1
        assert "step-" in said[0]
        assert said[0].endswith("; trying the checkpoint before it"), name
        shutil.rmtree(two.folder)
        shutil.copytree(backup, two.folder)
        count += 1
    assert count == 106


def test_a_checkpoint_of_another_run_is_refused(two):
    with pytest.raises(IntegrityError, match="belongs to another run or step"):
        Checkpoints(two.folder, "run-b").read(two.files()[0])


# Crashes.


def test_the_new_one_is_whole_before_an_old_one_goes(two):
    done = operations(lambda: two.save(30, state(30)))
    assert done == ["open", "write", "fsync", "replace", "fsync", "unlink"]


@pytest.mark.parametrize("how", ["before", "torn", "after"])
@pytest.mark.parametrize("stop", range(6))
def test_a_crash_at_any_point_leaves_the_newest_or_the_one_before(two, stop, how):
    with pytest.raises(Crash):
        stopped(lambda: two.save(30, state(30)), stop, how)
    result, said = found(two)
    assert said == []
    assert [step for step, _ in result][:2] in ([30, 20], [20, 10])
    assert all(same(saved, state(step)) for step, saved in result)
    assert not list(two.folder.glob(".*"))
    two.save(30, state(30))
    assert [step for step, _ in found(two)[0]] == [30, 20]


@pytest.mark.parametrize("stop", range(6))
def test_a_full_disk_leaves_what_was_there(two, stop):
    with pytest.raises(ResourceError, match="No space left"):
        stopped(lambda: two.save(30, state(30)), stop, "torn", OSError(28, "No space left on device"))
    assert [step for step, _ in found(two)[0]][:2] in ([30, 20], [20, 10])


def test_a_folder_that_cannot_be_made_is_a_resource_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ResourceError, match="can't be written: Not a directory"):
        Checkpoints(tmp_path / "file" / "checkpoints", "r").save(1, state(1))


def test_clearing_takes_ours_and_leaves_what_is_not(two):
    (two.folder / ".step-1.5.part").touch()
    two.clear()
    assert not two.folder.exists()
    two.save(10, state(10))
    (two.folder / "notes.txt").touch()
    two.clear()  # the run is finished: a stranger's file is no reason to fail
    assert os.listdir(two.folder) == ["notes.txt"]


# Through the trainer's `resume`.


def toy(tmp_path, steps=0):
    """A toy training that stands at `steps`, with a record per step."""
    folder = RunFolder(tmp_path)
    stands = State(ready(parse("CORAL+DSPReg(refresh_steps=2)")), folder)
    for t in range(steps):
        values = {name: float(v) for name, v in train_step(stands.algorithm, toy_batches(t)).items()}
        stands.took(values, 0.25)
        folder.records.append({"step": t})
    return stands


def test_resuming_goes_to_the_newest_sound_checkpoint_and_forgets_later_lines(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints", "r")
    stands = toy(tmp_path, 3)
    checkpoints.save(3, stands.pack())
    kept = pack(stands.pack())
    stands.folder.records.append({"step": "never finished"})
    again = toy(tmp_path)
    resume(again, checkpoints)
    assert again.t == 3
    assert list(again.folder.records) == [{"step": n} for n in range(3)]
    assert pack(again.pack()) == kept
    for stack in (stands, again):
        train_step(stack.algorithm, toy_batches(3))
    assert pack(dict(again.algorithm.state_dict())) == pack(dict(stands.algorithm.state_dict()))


def test_where_no_checkpoint_is_sound_nothing_is_trained_anew(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints", "r")
    checkpoints.save(2, toy(tmp_path, 2).pack())
    checkpoints.files()[0].write_bytes(b"")
    with pytest.raises(IntegrityError, match=r"no checkpoint in .* can be used; all are damaged.* remove "), \
            pytest.warns(Notice, match="damaged"):  # fmt: skip
        resume(toy(tmp_path), checkpoints)
    assert len(list(RunFolder(tmp_path).records)) == 2


LOST = [b'{"step":9}\n', b"", b'{"step":0}\n{"step":', b"\0" * 30, None]


@pytest.mark.parametrize("damage", LOST, ids=repr)
def test_records_that_were_changed_come_back_from_the_checkpoint(tmp_path, damage):
    checkpoints = Checkpoints(tmp_path / "checkpoints", "r")
    checkpoints.save(2, toy(tmp_path, 2).pack())
    path = tmp_path / "records.jsonl"
    whole = path.read_bytes()
    path.unlink() if damage is None else path.write_bytes(damage)
    again = toy(tmp_path)
    with pytest.warns(Notice, match=r"records.jsonl is not what it was .*; it was written again from there"):
        resume(again, checkpoints)
    assert path.read_bytes() == whole
    assert again.t == 2
    assert again.folder.records.mark() == {"bytes": len(whole), "sha256": sha256(whole)}


def as_before(saved):
    """A checkpoint of an earlier version, which kept marks alone."""
    return {name: value for name, value in saved.items() if name not in ("lines", "files", "where")}


def test_records_that_no_checkpoint_has_a_copy_of_are_noticed_too(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints", "r")
    checkpoints.save(2, as_before(toy(tmp_path, 2).pack()))
    (tmp_path / "records.jsonl").write_bytes(b'{"step":9}\n')
    said = (
        r"no checkpoint in .* can be used: .*records.jsonl is not what .* With a copy of .* remove .*checkpoints, and"
    )
    with pytest.raises(IntegrityError, match=said), pytest.warns(Notice, match="records.jsonl is not what"):
        resume(toy(tmp_path), checkpoints)
    assert (tmp_path / "records.jsonl").read_bytes() == b'{"step":9}\n'


def test_the_checkpoint_before_the_damage_is_taken_where_only_marks_are_known(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints", "r")
    for steps in (1, 2):
        (tmp_path / "records.jsonl").unlink(missing_ok=True)
        checkpoints.save(steps, as_before(toy(tmp_path, steps).pack()))
    (tmp_path / "records.jsonl").write_bytes(b'{"step":0}\n{"step":9}\n')
    again = toy(tmp_path)
    with pytest.warns(Notice, match="trying the checkpoint before it"):
        resume(again, checkpoints)
    assert (again.t, list(again.folder.records)) == (1, [{"step": 0}])


def test_without_any_checkpoint_it_starts_from_the_beginning(tmp_path):
    toy(tmp_path, 2)
    again = toy(tmp_path)
    resume(again, Checkpoints(tmp_path / "checkpoints", "r"))
    assert again.t == 0
    assert list(again.folder.records) == []
