"""A run's folder: whose it is, and whether it can be trusted."""

import errno
import json
import os
import random
import subprocess
import sys
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

from dspreg.errors import ConfigError, IntegrityError, ResourceError
from dspreg.runs.folder import RunFolder, differences, identity
from helpers.faults import as_nobody
from helpers.runs import seal

DESCRIBED = {
    "settings": {"dataset": "digits", "targets": ["print"], "lr": 0.001, "steps": 301},
    "data": {"classes": ["0", "1"], "fingerprints": {"print": "ab", "sign": "cd"}},
    "environment": {"torch": "2.10.0", "threads": 2},
    "where": {"root": "/data", "workers": 4},
}


def changed(path, value):
    """DESCRIBED with one leaf changed."""
    copy = json.loads(json.dumps(DESCRIBED))
    *above, last = path.split(".")
    place = copy
    for name in above:
        place = place[name]
    place[last] = value
    return copy


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "run").mkdir()
    return RunFolder(tmp_path / "run")


# Whose it is.


def test_the_id_of_a_run_stays_what_it_is(folder):
    """Literally: whoever changes how ids are made changes what every stored run belongs to."""
    assert folder.agree(DESCRIBED) == "2d93c6ce2d46a874a47c1ec8824973361ecb1167a000ae6af60ad79f8edd4442"
    assert (
        json.loads((folder / "run.json").read_text())["id"]
        == "2d93c6ce2d46a874a47c1ec8824973361ecb1167a000ae6af60ad79f8edd4442"
    )


def test_the_id_does_not_depend_on_where_the_run_is_or_on_the_order_of_keys():
    moved = changed("where.root", "/elsewhere")
    backwards = {name: DESCRIBED[name] for name in reversed(DESCRIBED)}
    assert identity(moved) == identity(backwards) == identity(DESCRIBED)
    assert identity({**DESCRIBED, "id": "x"}) == identity(DESCRIBED)
    for path, value in (("settings.lr", 0.002), ("environment.threads", 1), ("data.classes", ["1", "0"])):
        assert identity(changed(path, value)) != identity(DESCRIBED)


def test_a_new_folder_is_written_and_the_same_training_agrees_with_it(folder):
    first = folder.agree(DESCRIBED)
    before = (folder / "run.json").read_bytes()
    assert folder.agree(DESCRIBED) == first
    assert (folder / "run.json").read_bytes() == before
    assert folder.description() == {**DESCRIBED, "format": "dspreg.run/1", "id": first}
    moved = changed("where.root", "/elsewhere")
    assert folder.agree(moved) == first
    assert folder.description() == {**moved, "format": "dspreg.run/1", "id": first}  # where to look for it now


def test_a_tuple_is_the_list_that_json_makes_of_it(folder):
    described = changed("settings.targets", ("print", "sign"))
    assert folder.agree(described) == folder.agree(described)


@pytest.mark.parametrize(
    ("path", "value", "shown"),
    [
        ("settings.lr", 0.01, "  settings.lr: 0.001 → 0.01\n"),
        ("settings.targets", ["sign"], "  settings.targets: ['print'] → ['sign']\n"),
        ("settings.new", 3, "  settings.new: None → 3\n"),
        ("data.fingerprints.sign", "ef", "  data.fingerprints.sign: 'cd' → 'ef'\n"),
    ],
)
@pytest.mark.parametrize("allowed", [True, False])
def test_another_training_is_refused_and_the_difference_shown(folder, path, value, shown, allowed):
    folder.agree(DESCRIBED)
    before = (folder / "run.json").read_bytes()
    with pytest.raises(ConfigError) as caught:
        folder.agree(changed(path, value), changed_environment=allowed)
    assert str(caught.value).startswith(f"{folder.path} holds another training:\n{shown}")
    assert str(caught.value).endswith("resume with the settings it has, or give another --out")
    assert str(caught.value).count("→") == 1
    assert (folder / "run.json").read_bytes() == before


def test_a_changed_environment_is_refused_unless_allowed_and_keeps_the_id(folder):
    first = folder.agree(DESCRIBED)
    newer = changed("environment.torch", "2.11.0")
    with pytest.raises(
        ConfigError, match=r"environment\.torch: '2\.10\.0' → '2\.11\.0'\n.*--allow-changed-environment"
    ):
        folder.agree(newer)
    assert folder.agree(newer, changed_environment=True) == first
    assert folder.agree(newer, changed_environment=True) == first
    assert folder.description()["environment"] == DESCRIBED["environment"]
    assert folder.description()["where"]["environments"] == [newer["environment"]]  # it leaves a trace


def test_a_changed_environment_and_other_settings_are_not_excused_as_an_environment(folder):
    folder.agree(DESCRIBED)
    both = changed("environment.torch", "2.11.0")
    both["settings"]["lr"] = 1.0
    with pytest.raises(ConfigError, match="give another --out"):
        folder.agree(both)


def test_every_leaf_that_differs_is_named():
    was = {"a": {"b": 1, "c": [1, 2]}, "d": None, "same": {"x": 1}}
    now = {"a": {"b": 2, "c": [1, 3]}, "e": {"f": 1}, "same": {"x": 1}}
    found = list(differences(was, now))
    assert found == [("a.b", 1, 2), ("a.c", [1, 2], [1, 3]), ("e", None, {"f": 1})]


@pytest.mark.parametrize("name", ["thesis.tex", ".hidden", "result.json", "records.jsonl"])
def test_a_folder_with_something_else_in_it_is_refused_and_left_alone(folder, name):
    (folder / name).write_text("mine")
    (folder / ".other.download.part").write_text("mine too")
    (folder / "lock").write_text("also mine")
    with pytest.raises(ConfigError, match=r"is not empty and holds no run .*; take a new folder"), folder.locked():
        pass
    assert sorted(p.name for p in folder.path.iterdir()) == sorted([".other.download.part", "lock", name])
    assert (folder / "lock").read_text() == "also mine"


def test_a_first_start_that_crashed_can_be_repeated(folder):
    (folder / ".run.json.123.part").write_text('{"id": ')
    with folder.locked():
        folder.agree(DESCRIBED)
    assert sorted(p.name for p in folder.path.iterdir()) == ["lock", "run.json"]


def test_what_a_crash_left_is_cleared_once_the_folder_is_known_to_be_ours(folder):
    folder.agree(DESCRIBED)
    (folder / "profiles").mkdir()
    for name in (".result.json.5.part", "profiles/.start.safetensors.5.part"):
        (folder / name).touch()
    folder.agree(DESCRIBED)
    assert [str(p.relative_to(folder.path)) for p in folder.path.rglob("*") if p.is_file()] == ["run.json"]


def test_a_folder_without_a_run_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"holds no run: there is no run.json. Give the --out folder of a training"):
        RunFolder(tmp_path).description()


@pytest.mark.parametrize("content", ["", "{", "[]", "3", '{"format": "dspreg.run/2"}', "{}"])
def test_a_run_of_another_format_is_refused(folder, content):
    (folder / "run.json").write_text(content)
    with pytest.raises(IntegrityError, match=r"run\.json"):
        folder.description()
    with pytest.raises(IntegrityError, match=r"run\.json"):
        folder.agree(DESCRIBED)


def test_no_flipped_bit_of_run_json_changes_what_is_trained_unnoticed(folder):
    folder.agree(DESCRIBED)
    whole = (folder / "run.json").read_bytes()
    noticed, bits = 0, random.Random(2).sample(range(8 * len(whole)), 600)
    for bit in bits:
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        (folder / "run.json").write_bytes(damaged)
        try:
            found = folder.description()
        except IntegrityError:
            noticed += 1
        else:  # where it ran decides nothing
            assert {**found, "where": None} == {**json.loads(whole), "where": None}
    assert noticed > 0.8 * len(bits)


# Whether it is finished.

FILES = {
    "run.json": None,
    "records.jsonl": b'{"step":0}\n',
    "refreshes.jsonl": b"",
    "README.md": "# Ü".encode(),
    "selected.safetensors": bytes(range(256)) * 4,
    "profiles/start.safetensors": b"abc",
    "models/step-00000000.safetensors": b"def",
}
OUTCOME = {"format": "dspreg.result/1", "selected": {"step": 0, "validation": 0.75}}


def finished(path):
    folder = RunFolder(path)
    path.mkdir(parents=True, exist_ok=True)
    folder.agree(DESCRIBED)
    for name, content in FILES.items():
        if content is not None:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(content)
    seal(folder, OUTCOME)
    return folder


def test_a_run_is_unfinished_until_there_is_a_result(folder):
    assert folder.result() is None
    folder.agree(DESCRIBED)
    assert folder.result() is None


@pytest.mark.parametrize("place", ["run", "checkpoints/run", "tensorboard", "result.json/lock"])
def test_a_result_vouches_for_every_file_wherever_the_folder_lies(tmp_path, place):
    folder = finished(tmp_path / place)
    found = folder.result()
    assert sorted(found["files"]) == sorted(FILES)
    assert {name: found[name] for name in OUTCOME} == OUTCOME
    listed = "".join(f"{sha}  {name}\n" for name, sha in found["files"].items())
    subprocess.run(["sha256sum", "--check", "--quiet"], input=listed, cwd=folder.path, text=True, check=True)


@pytest.mark.parametrize("name", FILES)
def test_every_damage_to_every_file_is_named(tmp_path, name):
    folder = finished(tmp_path / "run")
    path, whole = folder / name, (folder / name).read_bytes()
    pick = random.Random(name)
    damages = [whole + b"\0", b"\0" * (len(whole) + 1), None]
    if whole:
        flips = [(pick.randrange(len(whole)), pick.randrange(8)) for _ in range(20)]
        damages += [whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :] for at, bit in flips]
        damages += [whole[:-1], whole[: len(whole) // 2], b""]
    for damage in damages:
        if damage is None:
            path.unlink()
        else:
            path.write_bytes(damage)
        with pytest.raises(IntegrityError, match=f"{name} is (damaged|missing)"):
            folder.result()
        path.write_bytes(whole)
    assert folder.result() is not None


def test_no_prefix_and_no_flipped_bit_of_the_result_says_anything_else(tmp_path):
    folder = finished(tmp_path / "run")
    path, truth = folder / "result.json", folder.result()
    whole = path.read_bytes()
    damages = [whole[:size] for size in range(0, len(whole) - 1, 3)]
    pick = random.Random(1)
    for _ in range(500):
        at = pick.randrange(len(whole))
        damages.append(whole[:at] + bytes([whole[at] ^ 1 << pick.randrange(8)]) + whole[at + 1 :])
    for damage in damages:
        path.write_bytes(damage)
        with suppress(IntegrityError):
            assert folder.result() == truth  # 1e-3 and 1E-3, say


@pytest.mark.parametrize("content", ["[]", "null", "3", '{"files": {}}', '{"sha256": null}'])
def test_a_result_without_its_stamp_is_damaged(folder, content):
    (folder / "result.json").write_text(content)
    with pytest.raises(IntegrityError, match=r"result\.json is damaged"):
        folder.result()


def test_events_checkpoints_and_files_of_others_are_nobodys_result(tmp_path):
    folder = finished(tmp_path / "run")
    for name in ("tensorboard/events", "checkpoints/step-1.safetensors", "lock", "slurm-3.out", "profiles/notes.txt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("a")
    seal(folder, OUTCOME)
    assert sorted(folder.result()["files"]) == sorted(FILES)
    (folder / "slurm-3.out").write_text("b")
    assert folder.result() is not None


def test_the_same_outcome_twice_is_the_same_bytes(tmp_path):
    one, other = finished(tmp_path / "a"), finished(tmp_path / "b")
    seal(other, dict(reversed(OUTCOME.items())))
    assert (one / "result.json").read_bytes() == (other / "result.json").read_bytes()


# Who works on it.

HOLD = """
import sys
from dspreg.runs.folder import RunFolder
with RunFolder(sys.argv[1]).locked():
    print("held", flush=True)
    sys.stdin.read()
"""


def test_two_processes_cannot_work_in_one_folder(tmp_path):
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "run")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with other:
        assert other.stdout.readline() == "held\n"
        folder = RunFolder(tmp_path / "run")
        with pytest.raises(ResourceError, match="run is in use by another training; wait for it or stop it"):
            folder.locked().__enter__()
        other.kill()  # however it ends
        other.wait()
        with folder.locked():
            assert folder.path.is_dir()


FORK = """
import os, sys, time
from dspreg.runs.folder import RunFolder
with RunFolder(sys.argv[1]).locked():
    if os.fork() == 0:  # as a data loader does
        print("held", flush=True)
        sys.stdin.read()
        os._exit(0)
    time.sleep(600)
"""


def test_a_worker_that_outlives_the_trainer_does_not_keep_the_folder(tmp_path):
    trainer = subprocess.Popen(
        [sys.executable, "-c", FORK, str(tmp_path / "run")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with trainer:
        assert trainer.stdout.readline() == "held\n"
        with pytest.raises(ResourceError, match="in use"):
            RunFolder(tmp_path / "run").locked().__enter__()
        trainer.kill()
        trainer.wait()
        with RunFolder(tmp_path / "run").locked():
            pass


SLEEP = """
import sys
from contextlib import nullcontext
from dspreg.runs.folder import RunFolder
with RunFolder(sys.argv[1], fence=nullcontext if sys.argv[2] == "leased" else None).locked():
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("theirs", ["leased", "by hand"])
@pytest.mark.parametrize("ours", ["leased", "by hand"])
def test_only_work_under_a_lease_is_taken_over_and_only_under_a_lease(tmp_path, theirs, ours):
    place = tmp_path / "run"
    command = [sys.executable, "-c", SLEEP, str(place), theirs]
    folder = RunFolder(place, fence=nullcontext if ours == "leased" else None)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        if ours == theirs == "leased":
            with folder.locked():
                other.communicate("")  # it ends, and takes nothing of ours with it
                assert other.returncode == 0
                assert (place / "lock").exists()
                with pytest.raises(ResourceError, match="in use"):
                    RunFolder(place).locked().__enter__()
        else:
            with pytest.raises(ResourceError, match="in use"):
                folder.locked().__enter__()
            other.communicate("")


def test_the_lock_is_given_back_after_a_failure(folder):
    with pytest.raises(ZeroDivisionError), folder.locked():
        raise ZeroDivisionError
    with folder.locked():
        pass


def test_an_output_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file is a file; give --out a folder"):
        RunFolder(tmp_path / "file").locked().__enter__()
    with pytest.raises(ResourceError, match="below can't be written: "):
        RunFolder(tmp_path / "file" / "below").locked().__enter__()


def test_a_read_only_place_is_refused_before_anything_else(tmp_path):
    (tmp_path / "shut").mkdir(mode=0o555)
    program = f"""
from dspreg.errors import ResourceError
from dspreg.runs.folder import RunFolder
for place in ({str(tmp_path / "shut")!r}, {str(tmp_path / "shut" / "new")!r}):
    try:
        RunFolder(place).locked().__enter__()
    except ResourceError as error:
        print(error.exit_code, error)
"""
    said = as_nobody(program, tmp_path).splitlines()
    assert len(said) == 2
    assert all(line.startswith("6 ") and line.endswith("can't be written: Permission denied") for line in said)
    assert os.listdir(tmp_path / "shut") == []


def test_a_finished_run_can_be_read_where_nothing_can_be_written(tmp_path):
    folder = finished(tmp_path / "run")
    for path in (folder.path, *folder.path.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    program = f"""
from dspreg.runs.folder import RunFolder
folder = RunFolder({str(folder.path)!r})
print(folder.description()["id"], len(folder.result()["files"]), len(list(folder.records)))
"""
    said = as_nobody(program, tmp_path).split()
    assert said == [folder.description()["id"], str(len(FILES)), "1"]


def test_a_store_is_read_without_torch(tmp_path):
    finished(tmp_path / "run")
    program = (
        "import sys; from dspreg.runs.folder import RunFolder; RunFolder(sys.argv[1]).result(); "
        "print('torch' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", program, str(tmp_path / "run")], capture_output=True, text=True)
    assert said.stdout == "False\n"


# All of it at once.


def test_contents_are_what_the_files_say_one_by_one(folder):
    folder.agree(DESCRIBED)
    folder.records.append({"step": 0})
    assert folder.contents() == (folder.description(), None, [])  # unfinished: its records are not vouched for
    folder.write("README.md", "# Ü".encode())
    folder.finish(OUTCOME)
    assert folder.contents() == (folder.description(), folder.result(), [{"step": 0}])


@pytest.mark.parametrize("name", ["run.json", "records.jsonl", "README.md", "result.json"])
def test_contents_are_verified_but_for_weights(folder, name):
    folder.agree(DESCRIBED)
    folder.records.append({"step": 0})
    folder.write("README.md", "# Ü".encode())
    folder.write("last.safetensors", b"weights")
    folder.finish(OUTCOME)
    (folder / "last.safetensors").write_bytes(b"damaged")
    assert folder.contents().result == {k: v for k, v in json.loads((folder / "result.json").read_text()).items()
                                        if k != "sha256"}  # fmt: skip
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole.replace(b"0", b"1", 1) if b"0" in whole else whole + b" ")
    with pytest.raises(IntegrityError, match=name):
        folder.contents()
    (folder / name).unlink()
    if name == "result.json":
        assert folder.contents().result is None
    else:
        with pytest.raises(ConfigError if name == "run.json" else IntegrityError, match=name):
            folder.contents()
    (folder / name).write_bytes(whole)
    (folder / "last.safetensors").unlink()
    with pytest.raises(IntegrityError, match=r"last\.safetensors is missing"):
        folder.contents()


def test_records_that_result_json_does_not_vouch_for_are_not_told(folder):
    folder.agree(DESCRIBED)
    folder.finish(OUTCOME)
    folder.records.append({"step": 0, "accuracy": {"print": {"in": 1.0}}})
    with pytest.raises(IntegrityError, match=r"result\.json does not name records\.jsonl"):
        folder.contents()


@pytest.mark.parametrize("bad", ["NaN", "1e999", '"\\ud800"'])
@pytest.mark.parametrize("name", ["run.json", "result.json"])
def test_what_is_never_written_is_not_read_wherever_it_stands(folder, name, bad):
    folder.agree(DESCRIBED)
    folder.records.append({"step": 0})
    folder.finish(OUTCOME)
    text = (folder / name).read_text()
    for place in ('"workers": 4', '"lr": 0.001') if name == "run.json" else ('"step": 0',):
        assert place in text
        (folder / name).write_text(text.replace(place, f"{place.partition(':')[0]}: {bad}"))
        with pytest.raises(IntegrityError, match=f"{name} can't be read"):
            folder.contents()


def test_a_folder_that_cant_be_tidied_up_hides_no_reason(tmp_path, monkeypatch):
    def refuse(path, missing_ok=False):
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    with pytest.raises(ConfigError, match="the reason"), RunFolder(tmp_path / "run").locked():  # noqa: PT012
        monkeypatch.setattr(Path, "unlink", refuse)
        raise ConfigError("the reason")
    monkeypatch.undo()
    with RunFolder(tmp_path / "run").locked():
        assert (tmp_path / "run" / "lock").exists()
