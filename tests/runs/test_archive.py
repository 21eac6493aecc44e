"""A store as one file: equal bytes, read as the folder was, and nothing believed that the file says."""

import io
import json
import lzma
import os
import tarfile
from pathlib import Path

import pytest

from dspreg.cli import main
from dspreg.errors import CantWrite, ConfigError, IntegrityError, InUse
from dspreg.protocol.leave_one_out import leave_one_out
from dspreg.runs import archive as runs_archive
from dspreg.runs.archive import open_store, pack_store, unpack_store
from dspreg.runs.store import RunStore
from helpers.runs import DOMAINS, single, write_run
from helpers.stores import finish, planned


@pytest.fixture
def store(tmp_path):
    """Finished runs of two methods, as a sweep leaves them."""
    made = RunStore(tmp_path / "here" / "store")
    made.make()
    runs = list(leave_one_out({"trees": DOMAINS}, ("ERM", "CORAL"), trials=2, draws=1, only="training"))
    made.plan(runs)
    for n, run in enumerate(runs):
        (target,) = run.targets
        records = [single(0, target, 0.5 + 0.01 * n, 0.5)]
        about = {"algorithm": run.algorithm, "targets": run.targets, "trial": run.trial, "plan": run.to_json()}
        write_run(made.folder(run).path, records, **about)
    return made


@pytest.fixture
def archive(store, tmp_path):
    pack_store(store.path, tmp_path / "store.tar.xz")
    return tmp_path / "store.tar.xz"


def contents(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in Path(folder).rglob("*") if p.is_file()}


def write_tar(path, *entries, end=True):
    """entries: name or TarInfo, and content."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for entry, data in entries:
            info = tarfile.TarInfo(entry) if isinstance(entry, str) else entry
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        size = tar.offset
    path.write_bytes(lzma.compress(raw.getvalue() if end else raw.getvalue()[:size]))
    return path


def entry(name, kind, link=""):
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, link
    return made


# Packing.


def test_packed_and_unpacked_all_files_are_as_they_were(store, archive, tmp_path):
    unpack_store(archive, tmp_path / "there")
    assert contents(tmp_path / "there") == contents(store.path)


def test_the_same_files_give_the_same_bytes(store, archive, tmp_path):
    unpack_store(archive, tmp_path / "elsewhere/of/another/name")
    for path in sorted((tmp_path / "elsewhere").rglob("*"), reverse=True):
        os.utime(path, (1, 1))
        path.chmod(0o700)
    pack_store(tmp_path / "elsewhere/of/another/name", tmp_path / "again.tar.xz")
    assert (tmp_path / "again.tar.xz").read_bytes() == archive.read_bytes()


def test_an_archive_says_nothing_of_the_machine(archive):
    with tarfile.open(archive) as tar:
        entries = tar.getmembers()
    assert [each.name for each in entries] == sorted(each.name for each in entries)
    assert {(e.mtime, e.uid, e.gid, e.uname, e.gname, e.mode, e.type) for e in entries} == {
        (0, 0, 0, "", "", 0o644, tarfile.REGTYPE)
    }


def test_the_work_on_a_store_stays_behind(store, archive, tmp_path):
    before = archive.read_bytes()
    folder = next((store.path / "runs").iterdir())
    store.leases().close()
    (folder / "checkpoints").mkdir()
    for name in ("lock", "checkpoints/step-3.safetensors", ".records.jsonl.77.part"):
        (folder / name).write_text("of the machine")
    assert (store.path / "claims.db").exists()
    pack_store(store.path, archive)
    assert archive.read_bytes() == before


def test_other_files_of_a_run_are_packed_too(store, archive, tmp_path):
    """A scheduler's log, say, of whatever name."""
    (next((store.path / "runs").iterdir()) / "node:3 \\ ümlaut.out").write_text("epilogue")
    pack_store(store.path, archive)
    unpack_store(archive, tmp_path / "there")
    assert contents(tmp_path / "there") == contents(store.path)


def test_a_store_that_is_being_worked_on_is_not_packed(tmp_path):
    store, runs = planned(tmp_path / "store")
    assert store.leases().acquire([run.id for run in runs])
    with pytest.raises(InUse, match="a sweep is at work"):
        pack_store(store.path, tmp_path / "store.tar.xz")
    assert not (tmp_path / "store.tar.xz").exists()


def test_what_can_not_be_packed_is_refused_and_leaves_the_old_archive(store, archive, tmp_path):
    before = sorted(tmp_path.iterdir()), archive.read_bytes()
    with pytest.raises(ConfigError, match="is no store of runs"):
        pack_store(tmp_path / "here", archive)
    with pytest.raises(ConfigError, match=r"called \*\.tar\.xz"):
        pack_store(store.path, tmp_path / "store.zip")
    with pytest.raises(CantWrite):
        pack_store(store.path, tmp_path / "missing/store.tar.xz")
    (store.path / "runs/link").symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="runs/link is a link"):
        pack_store(store.path, archive)
    assert (sorted(tmp_path.iterdir()), archive.read_bytes()) == before


# Reading.


def test_a_folder_is_opened_as_it_is(store):
    with open_store(store.path) as folder:
        assert folder == store.path


def test_an_archive_is_a_folder_while_it_is_read(store, archive):
    with open_store(archive) as folder:
        assert contents(folder) == contents(store.path)
        assert folder.name == "store.tar.xz"
    assert not folder.parent.exists()


def test_errors_name_the_archive_and_leave_no_folder(archive):
    with pytest.raises(IntegrityError) as raised, open_store(archive) as folder:
        raise IntegrityError(f"{folder}/runs/a is damaged")
    assert str(raised.value) == f"{archive}/runs/a is damaged"
    assert not folder.parent.exists()


def test_a_folder_that_is_there_is_not_unpacked_into(archive, tmp_path):
    (tmp_path / "there").mkdir()
    with pytest.raises(ConfigError, match="is there already"):
        unpack_store(archive, tmp_path / "there")


def reports(capsys, path, *options):
    code = main(["report", str(path), *options])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.mark.parametrize("options", [(), ("--selection", "late"), ("--format", "json"), ("--contrast", "CORAL", "ERM")])
def test_the_report_of_an_archive_is_that_of_the_store(capsys, store, archive, options):
    code, out, err = reports(capsys, archive, *options)
    assert (code, err) == (0, "")
    assert out == reports(capsys, store.path, *options)[1] != ""


def test_a_page_of_an_archive_has_its_name(capsys, store, archive):
    code, out, _ = reports(capsys, archive, "--format", "html")
    assert code == 0
    assert out.replace("store.tar.xz", "store") == reports(capsys, store.path, "--format", "html")[1]


def test_an_archive_as_folders_of_domainbed(capsys, store, archive, tmp_path):
    assert main(["report", str(archive), "--write-domainbed", str(tmp_path / "a")]) == 0
    assert main(["report", str(store.path), "--write-domainbed", str(tmp_path / "b")]) == 0
    there = contents(tmp_path / "b")
    assert len(there) == 2 * len(list((store.path / "runs").iterdir()))
    assert {k: v.replace(b"/a/", b"/b/") for k, v in contents(tmp_path / "a").items()} == there


@pytest.mark.parametrize("form", ["text", "latex", "json", "html"])
def test_a_damaged_run_of_an_archive_is_named_without_the_temporary_folder(capsys, store, archive, form):
    folder = sorted((store.path / "runs").iterdir())[0]
    with (folder / "records.jsonl").open("a") as file:
        file.write("{}\n")
    pack_store(store.path, archive)
    code, out, err = reports(capsys, archive, "--format", form)
    assert code == 0
    assert f"left out: runs/{folder.name}/records.jsonl is damaged or was changed" in " ".join(err.split())
    assert folder.name in out
    assert "dspreg-" not in out + err


def test_the_status_of_an_archive_is_that_of_the_store(capsys, tmp_path):
    store, runs = planned(tmp_path / "store")
    finish(store, runs[0])
    pack_store(store.path, tmp_path / "store.tar.xz")
    found = []
    for path in (store.path, tmp_path / "store.tar.xz"):
        assert main(["status", str(path), "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1]
    assert found[0]["all"]["finished"] == 1


def test_the_status_of_an_archive_is_not_watched(capsys, monkeypatch, tmp_path):
    """Nothing changes in it: on a terminal, too, it is printed once."""
    store, _ = planned(tmp_path / "store")
    pack_store(store.path, tmp_path / "store.tar.xz")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert main(["status", str(tmp_path / "store.tar.xz")]) == 0
    assert "waiting" in capsys.readouterr().out


def test_a_file_that_is_no_archive_is_refused_as_before(capsys, tmp_path):
    (tmp_path / "runs.csv").write_text("a,b\n")
    code, _, err = reports(capsys, tmp_path / "runs.csv")
    assert code == 2
    assert "is no folder" in err


# Damage and malice.


def test_any_changed_byte_is_found(tmp_path):
    """Of the whole file, whatever it stands for; some would otherwise end the archive early without a word."""
    good = write_tar(
        tmp_path / "good.tar.xz", ("store.json", b"{}"), ("runs/a/run.json", bytes(range(256)))
    ).read_bytes()
    for n in range(len(good)):
        (tmp_path / "bad.tar.xz").write_bytes(good[:n] + bytes([good[n] ^ 0x10]) + good[n + 1 :])
        with pytest.raises(IntegrityError, match="bad"):
            unpack_store(tmp_path / "bad.tar.xz", tmp_path / f"to{n}")


def test_an_interrupted_unpacking_leaves_nothing(archive, tmp_path, monkeypatch):
    """Half a store would look like a store, and could be packed again."""
    there = sorted(tmp_path.iterdir())

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(runs_archive, "_read_to_the_end", interrupt)
    with pytest.raises(KeyboardInterrupt):
        unpack_store(archive, tmp_path / "to")
    assert sorted(tmp_path.iterdir()) == there


def test_any_missing_end_is_found(tmp_path):
    good = write_tar(
        tmp_path / "good.tar.xz", ("store.json", b"{}"), ("runs/a/run.json", bytes(range(256)))
    ).read_bytes()
    for n in range(len(good)):
        (tmp_path / "bad.tar.xz").write_bytes(good[:n])
        with pytest.raises(IntegrityError, match="bad"):
            unpack_store(tmp_path / "bad.tar.xz", tmp_path / f"to{n}")


def test_a_tar_without_its_end_is_found(tmp_path):
    """Whole to xz, and ending where a file ends."""
    with pytest.raises(IntegrityError, match="its end is missing"):
        unpack_store(write_tar(tmp_path / "bad.tar.xz", ("store.json", b"{}"), end=False), tmp_path / "to")


def test_a_damaged_header_is_not_the_end(tmp_path):
    path = write_tar(tmp_path / "bad.tar.xz", ("a", b"1"), ("b", b"2"), ("c", b"3"))
    tar = bytearray(lzma.decompress(path.read_bytes()))
    tar[1024] ^= 1  # in the name of b, so that the sum of its header is wrong
    path.write_bytes(lzma.compress(bytes(tar)))
    with pytest.raises(IntegrityError, match="one of its headers is damaged"):
        unpack_store(path, tmp_path / "to")


@pytest.mark.parametrize(
    ("strange", "says"),
    [
        (entry("runs/a", tarfile.SYMTYPE, "/etc"), "is a link or a device"),
        (entry("runs/a", tarfile.LNKTYPE, "store.json"), "is a link or a device"),
        (entry("runs/a", tarfile.CHRTYPE), "is a link or a device"),
        (entry("runs/a", tarfile.BLKTYPE), "is a link or a device"),
        (entry("runs/a", tarfile.FIFOTYPE), "is a link or a device"),
        ("/tmp/outside.json", "would lie outside"),
        ("../outside.json", "would lie outside"),
        ("runs/../../outside.json", "would lie outside"),
        (entry("../outside", tarfile.DIRTYPE), "would lie outside"),
        (".", "would lie outside"),
        ("store.json", "twice"),
        ("store.json/run.json", "a file where it has a folder"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value.name} of type {value.type!r}",
)
def test_what_no_store_holds_is_refused(tmp_path, strange, says):
    (tmp_path / "in").mkdir()
    path = write_tar(tmp_path / "in/bad.tar.xz", ("store.json", b"{}"), (strange, b""))
    with pytest.raises(IntegrityError, match=says):
        unpack_store(path, tmp_path / "in/to")
    assert not list(tmp_path.glob("outside*"))
    assert main(["report", str(path)]) == 4


@pytest.mark.parametrize(("most", "value"), [("MOST_FILES", 3), ("MOST_BYTES", 30)])
def test_too_much_is_refused(tmp_path, monkeypatch, most, value):
    entries = [(f"runs/{n}", b"0123456789") for n in range(4)]
    monkeypatch.setattr(runs_archive, most, value)
    unpack_store(write_tar(tmp_path / "few.tar.xz", *entries[:3]), tmp_path / "few")
    with pytest.raises(IntegrityError, match=r"holds more than .*unpack it with tar"):
        unpack_store(write_tar(tmp_path / "many.tar.xz", *entries), tmp_path / "many")


def test_a_file_that_claims_to_be_huge_is_refused_before_it_is_read(tmp_path):
    path = write_tar(tmp_path / "bad.tar.xz", ("a", b"1" * 700))
    tar = bytearray(lzma.decompress(path.read_bytes()))
    info = tarfile.TarInfo("a")
    info.size = 2**40
    tar[:512] = info.tobuf(tarfile.GNU_FORMAT)
    path.write_bytes(lzma.compress(bytes(tar)))
    with pytest.raises(IntegrityError, match="holds more than"):
        unpack_store(path, tmp_path / "to")


def test_a_header_that_would_fill_the_memory_is_refused(tmp_path):
    """A name of 20 MB packs into some kilobytes."""
    info = tarfile.TarInfo("a" * 20_000_000)
    path = tmp_path / "bad.tar.xz"
    path.write_bytes(lzma.compress(info.tobuf(tarfile.PAX_FORMAT) + bytes(10240), preset=0))
    assert path.stat().st_size < 20_000
    with pytest.raises(IntegrityError, match="between two files"):
        unpack_store(path, tmp_path / "to")


def test_a_damaged_archive_ends_the_command_with_4(capsys, archive):
    archive.write_bytes(archive.read_bytes()[:-100])
    code, out, err = reports(capsys, archive)
    assert (code, out) == (4, "")
    assert "store.tar.xz is damaged" in " ".join(err.split())


def test_a_full_disk_is_told(archive, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    class Full(io.BytesIO):
        write = full

    real = Path.open
    monkeypatch.setattr(Path, "open", lambda self, mode="r", *a: Full() if mode == "xb" else real(self, mode, *a))
    with pytest.raises(CantWrite, match="No space left on device"):
        unpack_store(archive, tmp_path / "to")


def test_xz_keeps_a_sha256_of_the_whole(archive):
    stream = lzma.LZMADecompressor()
    assert stream.decompress(archive.read_bytes())
    assert stream.check == lzma.CHECK_SHA256
