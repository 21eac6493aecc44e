"""Runs and stores from strangers: links, FIFOs and names that lead elsewhere reach nothing outside, and are named."""

import json
import os
import shutil
import sqlite3
import stat
from contextlib import closing

import pytest

from dspreg.errors import ConfigError, DspregError, IntegrityError
from dspreg.io.atomic_files import canonical_json, sha256
from dspreg.runs.archive import pack_store
from dspreg.runs.folder import RunFolder
from dspreg.runs.leases import Leases, list_leases
from dspreg.runs.status import RunStatus, read_failure, scan_store
from dspreg.runs.store import RunStore
from helpers.stores import diverge, fail, finish, planned, start

DESCRIBED = {"settings": {"steps": 3}, "environment": {"torch": "2.10.0"}, "where": {"root": "/data"}}
PARTS = ("run.json", "records.jsonl", "refreshes.jsonl", "results.jsonl", "README.md", "selected.safetensors",
         "last.safetensors", "trained_images.bin", "result.json", "failure.json", "lock")  # fmt: skip
FOLDERS = ("profiles", "models", "checkpoints", "tensorboard")
KINDS = ("link", "dangling link", "FIFO")


def put(path, kind, outside):
    """Something in the place of a part."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    if kind == "FIFO":
        os.mkfifo(path)
    else:
        path.symlink_to(outside if kind == "link" else outside / "nowhere")


@pytest.fixture
def outside(tmp_path):
    """What a stranger would like to reach; compared in the end."""
    folder = tmp_path / "outside"
    (folder / "sub").mkdir(parents=True)
    for name in ("file", "step-00000001-0.safetensors", ".x.1.part", "sub/file"):
        (folder / name).write_text("dear\n")
    before = contents(folder)
    yield folder
    assert contents(folder) == before


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


@pytest.fixture
def run(tmp_path):
    """Begun, not finished."""
    folder = RunFolder(tmp_path / "run")
    with folder.locked():
        folder.agree(DESCRIBED)
        folder.records.append({"step": 0})
        folder.write("profiles/start.safetensors", b"profile")
    return RunFolder(tmp_path / "run")


# Runs.


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", PARTS)
def test_a_file_of_a_run_is_itself_or_refused_before_anything_is_written(run, outside, name, kind):
    put(run / name, kind, outside / "file")
    before = sorted(os.listdir(run.path))
    with pytest.raises(IntegrityError, match=f"{run / name} is a {kind.split()[-1]}; wanted"), run.locked():
        pass
    assert sorted(os.listdir(run.path)) == before


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_of_a_run_is_itself_or_refused(run, outside, name):
    put(run / name, "link", outside)
    with pytest.raises(IntegrityError, match=f"{name} is a link; wanted a folder. Put the folder itself there"), \
            run.locked():  # fmt: skip
        pass
    for act in (lambda: run.write(f"{name}/file", b"mine"), lambda: run.remove(f"{name}/file")):
        with pytest.raises(IntegrityError, match=f"{name} is a link"):
            act()


def test_the_run_itself_may_be_a_link(run, tmp_path):
    (tmp_path / "link").symlink_to("run")
    folder = RunFolder(tmp_path / "link")
    with folder.locked():
        folder.agree(DESCRIBED)
        folder.finish({"a": 1})
    assert run.result()["a"] == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["run.json", "records.jsonl", "result.json", "profiles/start.safetensors"])
def test_no_reader_waits_or_follows(run, outside, name, kind):
    run.agree(DESCRIBED)
    run.written["profiles/start.safetensors"] = sha256(b"profile")
    run.finish({})
    assert run.result() is not None
    put(run / name, kind, outside / "file")
    for read in (run.result, run.contents):
        with pytest.raises(IntegrityError, match=rf"{name} is a {kind.split()[-1]}"):
            read()


def test_a_lock_that_has_other_names_is_not_emptied(run, tmp_path):
    (tmp_path / "dear").write_text("dear\n")
    (run / "lock").unlink()
    os.link(tmp_path / "dear", run / "lock")
    with run.locked(), pytest.raises(DspregError, match="in use by another training"), RunFolder(run.path).locked():
        pass
    assert (tmp_path / "dear").read_text() == "dear\n"


def sealed(run, files):
    """result.json as a stranger writes it: stamped, and naming what it likes."""
    result = {"format": "dspreg.result/1", "files": files}
    (run / "result.json").write_text(json.dumps({**result, "sha256": sha256(canonical_json(result).encode())}))


NAMES = ["../outside/file", "/etc/hostname", "../../proc/kmsg", "models/../../outside/file", "lock", "result.json",
         "models/a/b.safetensors", "checkpoints/x.safetensors", "", ".", "profiles/.safetensors/", "models\\x", "a\0b",
         "README.md/", "./run.json", "models//x.safetensors"]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_result_names_files_of_a_run_and_no_others(run, outside, name):
    files = {each: sha256((run / each).read_bytes()) for each in ("run.json", "records.jsonl")}
    sealed(run, files)
    assert run.result() is not None
    sealed(run, {**files, name: sha256(b"dear\n")})
    for read in (run.result, run.contents, lambda: run.result(weights=False)):
        with pytest.raises(IntegrityError, match=r"result\.json names '.*', which is no file of a run"):
            read()


@pytest.mark.parametrize("files", [{}, {"run.json"}, {"records.jsonl"}, None, [], "run.json"])
def test_a_result_that_vouches_for_less_than_every_run_has_is_none(run, files):
    if isinstance(files, set):
        files = {name: sha256((run / name).read_bytes()) for name in files}
    sealed(run, files)
    with pytest.raises(IntegrityError, match=r"result\.json (does not name|names no files)"):
        run.result()


# Files that change before the end.


@pytest.mark.parametrize("name", ["run.json", "records.jsonl", "profiles/start.safetensors", "README.md"])
@pytest.mark.parametrize("how", ["changed", "missing"])
def test_what_changes_between_writing_and_the_end_is_not_sealed(tmp_path, name, how):
    run = RunFolder(tmp_path / "run")
    with run.locked():
        run.agree(DESCRIBED)
        run.records.append({"step": 0})
        run.write("profiles/start.safetensors", b"profile")
        run.write("README.md", b"card")
        data = (run / name).read_bytes()
        (run / name).write_bytes(data[:-2] + bytes([data[-2] ^ 1]) + data[-1:])
        if how == "missing":
            (run / name).unlink()
        with pytest.raises(IntegrityError, match=rf"{name} is (damaged|missing).* The same command again resumes"):
            run.finish({})
    assert not (run / "result.json").exists()


def test_what_nobody_wrote_in_this_run_is_not_named(run):
    run.agree(DESCRIBED)
    (run / "profiles" / "mine.safetensors").write_bytes(b"of a user")
    run.finish({})
    assert sorted(run.result()["files"]) == ["records.jsonl", "run.json"]


# Stores.


@pytest.fixture
def store(tmp_path):
    store, runs = planned(tmp_path / "store", ("ERM",))
    finish(store, runs[0])
    start(store, runs[1])
    fail(store, runs[2], 1)
    diverge(store, runs[3])
    store.leases().close()
    return store


@pytest.mark.parametrize("name", ["plans", "runs", "failures"])
def test_folders_of_a_store_are_not_followed(store, outside, name):
    put(store.path / name, "link", outside)
    for act in (store.check, store.make):
        with pytest.raises(IntegrityError, match=f"{name} is a link; wanted a folder"):
            act()


@pytest.mark.parametrize("kind", KINDS)
def test_neither_store_json_nor_a_plan_is_waited_for_or_followed(store, outside, kind):
    (plan,) = store.plans()
    put(plan, kind, outside / "file")
    fresh = RunStore(store.path)
    for read in (fresh.planned_runs, fresh.planned_entries, lambda: scan_store(fresh, 3)):
        with pytest.raises(IntegrityError, match=rf"{plan.name} is a {kind.split()[-1]}"):
            read()
    put(store.path / "store.json", kind, outside / "file")
    for act in (fresh.check, fresh.make):
        with pytest.raises(IntegrityError, match=rf"store.json is a {kind.split()[-1]}"):
            act()


@pytest.mark.parametrize("kind", KINDS)
def test_a_failure_record_is_not_waited_for_or_followed(store, outside, kind):
    failed = store.planned_runs()[2]
    put(store.path / "failures" / f"{failed.id}.json", kind, outside / "file")
    with pytest.raises(IntegrityError, match=rf"{failed.id}.json is a {kind.split()[-1]}"):
        read_failure(store.path / "failures" / f"{failed.id}.json")
    assert store.status(failed).status is RunStatus.DAMAGED
    assert scan_store(store, 3).states[failed.id].status is RunStatus.DAMAGED
    assert len([s for s in scan_store(store, 3).states.values() if s.status is RunStatus.DAMAGED]) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["result.json", "failure.json", "run.json"])
def test_one_bad_run_is_damaged_and_the_others_are_as_they_were(store, outside, name, kind):
    runs = store.planned_runs()
    before = scan_store(store, 3).summaries
    put(store.folder(runs[1]) / name, kind, outside / "file")
    found = scan_store(store, 3)
    assert found.states[runs[1].id].status is RunStatus.DAMAGED
    assert name in found.states[runs[1].id].reason
    assert {r: s for r, s in found.summaries.items() if r != runs[1].id} == {
        r: s for r, s in before.items() if r != runs[1].id
    }
    assert store.status(runs[1]).status is RunStatus.DAMAGED


def test_a_runs_folder_that_is_a_link_is_neither_read_nor_written(store, tmp_path):
    runs = store.planned_runs()
    elsewhere = tmp_path / "elsewhere"
    (store.folder(runs[3]).path).rename(elsewhere)
    (elsewhere / "checkpoints").mkdir()
    (elsewhere / "checkpoints" / "step-00000001-0.safetensors").touch()
    store.folder(runs[3]).path.symlink_to(elsewhere)
    before = contents(elsewhere)
    assert store.status(runs[3]).status is RunStatus.DAMAGED
    assert scan_store(store, 3).states[runs[3].id].status is RunStatus.DAMAGED
    for act in (store.retry, store.succeed):
        with pytest.raises(IntegrityError, match="is a link; wanted a folder"):
            act(runs[3])
    with pytest.raises(IntegrityError, match="is a link; wanted a folder"), store.folder(runs[3]).locked():
        pass
    assert contents(elsewhere) == before


def test_checkpoints_that_are_a_link_are_not_cleared(store, outside):
    (finished, *_) = store.planned_runs()
    (store.folder(finished) / "checkpoints").symlink_to(outside)
    with pytest.raises(IntegrityError, match="checkpoints is a link"):
        store.succeed(finished)


@pytest.mark.parametrize("name", ["step-x", "step-", "step-00000007-0.safetensors", "step-" + "9" * 5000 + "-0"])
def test_names_of_checkpoints_are_read_with_care(store, name):
    failed = store.planned_runs()[1]
    (store.folder(failed) / "checkpoints").mkdir()
    (store.folder(failed) / "checkpoints" / name[:200]).touch()
    state = store.fail(failed, ConfigError("no images"))
    assert (state.status, state.attempts) == (RunStatus.FAILED, 1)


def test_the_store_itself_may_be_a_link(store, tmp_path):
    (tmp_path / "link").symlink_to("store")
    again = RunStore(tmp_path / "link")
    again.make()
    assert scan_store(again, 3).summaries == scan_store(store, 3).summaries


@pytest.mark.parametrize("ids", [["../../outside"] * 4, ["a" * 15] * 4, [3] * 4, ["A" * 16] * 4, [], {}])
def test_ids_of_a_plan_name_no_folders_elsewhere(store, ids):
    (plan,) = store.plans()
    value = json.loads(plan.read_text())
    plan.write_text(json.dumps(value | {"ids": ids}))
    with pytest.raises(IntegrityError, match="its ids and runs are not as they are written"):
        RunStore(store.path).planned_entries()


@pytest.mark.parametrize("entry", [None, 3, {}, {"dataset": 3}, [], {"dataset": "PACS", "targets": "x"}])
def test_an_entry_of_a_plan_that_is_no_run_is_named_with_its_file(store, entry):
    (plan,) = store.plans()
    value = json.loads(plan.read_text())
    plan.write_text(json.dumps(value | {"runs": [entry]}))
    with pytest.raises(IntegrityError, match=f"{plan.name} is damaged"):
        RunStore(store.path).planned_runs()


@pytest.mark.parametrize("name", ["store.json", "plans"])
def test_a_newer_format_is_named(store, name):
    path = store.plans()[0] if name == "plans" else store.path / name
    kind = name.removesuffix("s").removesuffix(".json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": f"dspreg.{kind}/7"}))
    with pytest.raises(IntegrityError, match=rf"of the format 'dspreg.{kind}/7'; this version .* 'dspreg.{kind}/1'"):
        (store.planned_runs if name == "plans" else store.check)()


@pytest.mark.parametrize("where", ["runs/x.fifo", "plans/y"])
def test_an_archive_is_not_waited_for(store, tmp_path, where):
    os.mkfifo(store.path / where)
    with pytest.raises(IntegrityError, match="is a FIFO; wanted a regular file"):
        pack_store(store.path, tmp_path / "store.tar.xz")
    assert not (tmp_path / "store.tar.xz").exists()


def test_an_archive_goes_where_a_link_leads(store, tmp_path):
    (tmp_path / "link.tar.xz").symlink_to("real.tar.xz")
    pack_store(store.path, tmp_path / "link.tar.xz")
    assert (tmp_path / "link.tar.xz").is_symlink()
    assert stat.S_ISREG(os.lstat(tmp_path / "real.tar.xz").st_mode)


# Leases.

READS = {"Leases": lambda path: Leases(path).close(), "list_leases": list_leases}


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("kind", [*KINDS, "folder"])
@pytest.mark.parametrize("name", ["claims.db", "claims.db-wal", "claims.db-shm", "claims.db-journal"])
def test_files_of_leases_are_themselves(store, outside, name, kind, read):
    if kind == "folder":
        (store.path / name).unlink(missing_ok=True)
        (store.path / name).mkdir()
    else:
        put(store.path / name, kind, outside / "file")
    with pytest.raises(IntegrityError, match=rf"{name} is a {kind.split()[-1]}; wanted a regular file"):
        READS[read](store.path / "claims.db")


@pytest.mark.parametrize("read", READS)
def test_leases_that_share_a_file_outside_are_refused(store, tmp_path, read):
    os.link(store.path / "claims.db", tmp_path / "copy")
    before = (tmp_path / "copy").read_bytes()
    with pytest.raises(IntegrityError, match=r"has several names.* stop all sweeps and remove it"):
        READS[read](store.path / "claims.db")
    assert (tmp_path / "copy").read_bytes() == before


def change(path, *statements):
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


DATABASES = {
    "newer": (["PRAGMA user_version = 2"], "is of the format 2; this version of dspreg knows 1"),
    "a view": (["DROP TABLE claims", "CREATE VIEW claims AS SELECT 1 AS run"], "something else than leases"),
    "a trigger": (["CREATE TRIGGER t AFTER INSERT ON claims BEGIN DELETE FROM claims; END"], "something else"),
    "another table": (["CREATE TABLE mine (a)"], "something else than leases"),
    "other columns": (["DROP TABLE claims", "CREATE TABLE claims (run TEXT)"], "something else than leases"),
}


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("which", DATABASES)
def test_a_database_of_something_else_is_refused(store, which, read):
    statements, said = DATABASES[which]
    change(store.path / "claims.db", *statements)
    with pytest.raises(IntegrityError, match=said):
        READS[read](store.path / "claims.db")


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("content", [b"garbage" * 1000, b"SQLite format 3\0" + b"\xff" * 5000])
def test_garbage_is_refused(store, content, read):
    (store.path / "claims.db").write_bytes(content)
    with pytest.raises(IntegrityError, match=r"is damaged: .* stop all sweeps and remove it"):
        READS[read](store.path / "claims.db")


def test_a_database_that_was_only_just_made_has_no_leases(store):
    (store.path / "claims.db").write_bytes(b"")
    assert list_leases(store.path / "claims.db") == []
    with closing(Leases(store.path / "claims.db")) as leases:
        assert leases.acquire(["a"]) is not None


ROW = {"run": "'r'", "token": "1", "holder": "'h p'", "boot": "'b'", "expires": "1.5", "progress": "0", "step": "0"}


@pytest.mark.parametrize("change_of", [{"step": "'x'"}, {"expires": "'soon'"}, {"holder": "x'00'"}, {"boot": "x'00'"}])
def test_a_lease_that_nobody_wrote_is_named(store, change_of):
    path = store.path / "claims.db"
    change(path, f"INSERT INTO claims VALUES ({', '.join((ROW | change_of).values())})")
    with pytest.raises(IntegrityError, match="a lease of 'r' is not as it is written"):
        list_leases(path)
    with closing(Leases(path)) as leases, pytest.raises(IntegrityError, match="a lease of 'r'"):
        leases.list_all()


def test_a_holder_of_a_number_too_long_is_no_process(store):
    path = store.path / "claims.db"
    with closing(Leases(path)) as leases:
        place = leases.holder.rsplit(" ", 2)[0]
    change(path, f"INSERT INTO claims VALUES ('r', 1, '{place} {'9' * 5000} 1', 'b', 1.5, 0, 0)")
    assert [lease.alive for lease in list_leases(path)] == [False]
    with closing(Leases(path)) as leases:
        assert leases.expire_dead() == 0
