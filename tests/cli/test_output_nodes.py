"""Every flag that names an output writes to what the user means; stores from strangers end in exit code 4."""

import json
import os
import stat
import threading

import pytest

from dspreg.cli import main
from helpers.small_runs import photos, trained
from helpers.stores import finish, planned

COMMANDS = ("report", "measure --out", "measure --html", "compare --html", "export")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("place")


@pytest.fixture(scope="module")
def run(place):
    return trained(photos(place / "photos", each=6), place / "run")


@pytest.fixture(scope="module")
def profile(place, run):
    path = place / "profile.safetensors"
    assert main([*measuring(run), "--out", str(path)]) == 0
    return path


def measuring(run):
    return ["measure", "--model", str(run), "--images", "8", "--batch", "4", "--no-null", "--threads", "1"]


@pytest.fixture
def typed(run, profile):
    """A command without the output it is given."""
    return {
        "report": ["report", str(run), "--format", "csv", "--out"],
        "measure --out": [*measuring(run), "--out"],
        "measure --html": [*measuring(run), "--html"],
        "compare --html": ["measure", "--compare", str(profile), str(profile), "--html"],
        "export": ["export", str(run), "--format", "safetensors", "--out"],
    }.__getitem__


@pytest.mark.parametrize("command", COMMANDS)
def test_links_stay_and_devices_and_fifos_are_written_to(typed, tmp_path, command):
    name = "f.safetensors"  # what `export` asks for
    new = tmp_path / "new" / name
    new.parent.mkdir()
    assert main([*typed(command), str(new)]) == 0
    whole = new.read_bytes()
    assert len(whole) > 50

    (tmp_path / "link").mkdir()
    link, target = tmp_path / "link" / name, tmp_path / "target"
    link.symlink_to(target)
    for _ in ("a link that leads nowhere", "a link to a file"):
        assert main([*typed(command), str(link)]) == 0
        assert link.is_symlink()
        assert len(target.read_bytes()) == len(whole)

    (tmp_path / "fifo").mkdir()
    fifo, found = tmp_path / "fifo" / name, []
    os.mkfifo(fifo)
    assert main([*typed(command), str(fifo)]) == 6  # nobody reads it
    held = os.open(fifo, os.O_RDWR)  # so that the reader waits, and the writer does not
    reader = threading.Thread(target=drain, args=(held, found, len(whole)), daemon=True)
    reader.start()
    assert main([*typed(command), str(fifo)]) == 0
    reader.join(30)
    os.close(held)
    assert sum(map(len, found)) == len(whole)
    assert stat.S_ISFIFO(fifo.stat().st_mode)

    (tmp_path / "null").mkdir()
    null = tmp_path / "null" / name
    try:
        os.mknod(null, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        return
    assert main([*typed(command), str(null)]) == 0
    assert stat.S_ISCHR(null.stat().st_mode)
    assert os.listdir(null.parent) == [name]


def drain(handle, found, size):
    while sum(map(len, found)) < size:
        found.append(os.read(handle, size))


@pytest.mark.parametrize("name", ["-", "/dev/stdout"])
@pytest.mark.parametrize("command", ["report", "measure --html", "compare --html"])
def test_standard_output_holds_the_file_and_nothing_else(typed, tmp_path, capsysbinary, command, name):
    assert main([*typed(command), str(tmp_path / "f")]) == 0
    capsysbinary.readouterr()
    assert main([*typed(command), name]) == 0
    assert capsysbinary.readouterr().out == (tmp_path / "f").read_bytes()


def test_files_of_an_evaluation_follow_links_only_where_the_user_named_the_folder(run, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "scores.json").symlink_to("elsewhere.json")
    assert main(["evaluate", str(run), "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "scores.json").is_symlink()
    assert json.loads((tmp_path / "out" / "elsewhere.json").read_text())["format"] == "dspreg.scores/1"


def test_a_strangers_run_does_not_say_where_evaluations_and_exports_go(run, tmp_path, capsys):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "scores.json").write_text("dear")
    folder = run / "evaluation-photos"
    folder.symlink_to(outside)
    (run / "exported").symlink_to(outside)
    try:
        assert main(["evaluate", str(run)]) == 4
        assert main(["export", str(run), "--format", "safetensors"]) == 4
        assert "is a link; wanted a folder" in capsys.readouterr().err
        folder.unlink()
        folder.mkdir()
        (folder / "scores.json").symlink_to(outside / "scores.json")
        assert main(["evaluate", str(run)]) == 0
        assert not (folder / "scores.json").is_symlink()
    finally:
        (run / "exported").unlink()
    assert os.listdir(outside) == ["scores.json"]
    assert (outside / "scores.json").read_text() == "dear"


# Stores from strangers.


def readers(store):
    sweep = [
        "sweep",
        "--dataset",
        "digits",
        "--algorithms",
        "ERM",
        "--trials",
        "1",
        "--draws",
        "1",
        "--only",
        "training",
    ]
    return [
        ["status", str(store)],
        ["report", str(store)],
        ["retry", str(store)],
        [*sweep, "--store", str(store)],
    ]


def newer(store):
    (store.path / "store.json").write_text('{"format": "dspreg.store/9"}')


def fifo_as_plan(store):
    (plan,) = store.plans()
    plan.unlink()
    os.mkfifo(plan)


def linked_runs(store):
    (store.path / "runs").rename(store.path.parent / "elsewhere")
    (store.path / "runs").symlink_to(store.path.parent / "elsewhere")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [(newer, "dspreg.store/9"), (fifo_as_plan, "is a FIFO; wanted a regular file"), (linked_runs, "runs is a link")],
)
def test_a_store_that_is_not_to_be_trusted_ends_every_command_with_exit_code_4(tmp_path, capsys, spoil, said):
    store, runs = planned(tmp_path / "store", ("ERM",))
    finish(store, runs[0])
    spoil(store)
    for command in readers(store.path):
        assert main(command) == 4, command
        assert said in capsys.readouterr().err


@pytest.mark.parametrize("content", ["folder", "garbage", "FIFO", "link"])
def test_leases_that_are_none_are_refused_by_sweeps_and_status(tmp_path, capsys, content):
    store, _ = planned(tmp_path / "store", ("ERM",))
    path = store.path / "claims.db"
    (tmp_path / "dear").write_text("dear")
    if content == "folder":
        path.mkdir()
    elif content == "FIFO":
        os.mkfifo(path)
    elif content == "link":
        path.symlink_to(tmp_path / "dear")
    else:
        path.write_bytes(b"garbage" * 1000)
    for command in (readers(store.path)[0], readers(store.path)[3]):
        assert main(command) == 4, command
        assert "claims.db" in capsys.readouterr().err
    assert (tmp_path / "dear").read_text() == "dear"
