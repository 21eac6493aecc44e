"""Files after a crash: every durable operation is stopped in turn, and what is left is old or new, never a mixture."""

import builtins
import errno
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
from contextlib import contextmanager, nullcontext

import pytest

from dspreg.errors import IntegrityError, ResourceError
from dspreg.io import atomic_files as files
from dspreg.io.atomic_files import (
    UNFINISHED,
    Lines,
    canonical_json,
    read_json,
    remove,
    remove_partial_files,
    sha256,
    sha256_of_file,
    write,
    write_json,
    write_output,
)
from helpers.faults import Crash, as_nobody, operations, stopped

OLD, NEW = b"old" * 50, b"something new, and longer" * 30
WRITES = {
    "write": (lambda p: write(p, NEW), NEW),
    "write_json": (lambda p: write_json(p, {"a": [1, 0.1]}), b'{\n "a": [\n  1,\n  0.1\n ]\n}\n'),
}
POINTS = [(stop, how) for stop in range(5) for how in ("before", "torn", "after")]


def test_the_durable_operations_of_a_write_are_these(tmp_path):
    """In this order: contents are safe before the name points to them, and the name before we go on."""
    assert operations(lambda: write(tmp_path / "f", NEW)) == ["open", "write", "fsync", "replace", "fsync"]


@pytest.mark.parametrize("which", WRITES)
@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize(("stop", "how"), POINTS)
def test_a_crash_at_any_point_leaves_the_old_file_or_the_new_one(tmp_path, which, there, stop, how):
    act, new = WRITES[which]
    path = tmp_path / "result.json"
    if there:
        path.write_bytes(OLD)
    with pytest.raises(Crash):
        stopped(lambda: act(path), stop, how)
    found = path.read_bytes() if path.exists() else None
    renamed = stop > 3 or (stop, how) == (3, "after")
    assert found == (new if renamed else OLD if there else None)
    others = [p for p in tmp_path.iterdir() if p != path]
    assert all(p.name.startswith(".") and p.name.endswith(".part") for p in others)
    assert len(others) <= 1
    remove_partial_files(tmp_path)
    assert [p for p in tmp_path.iterdir() if p != path] == []
    act(path)
    assert path.read_bytes() == new


REFUSALS = [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EACCES, errno.EDQUOT, errno.EMFILE]


@pytest.mark.parametrize("number", REFUSALS, ids=errno.errorcode.get)
@pytest.mark.parametrize(("stop", "how"), POINTS)
def test_a_refusal_at_any_point_is_a_resource_error_and_leaves_no_litter(tmp_path, number, stop, how):
    path = tmp_path / "model.safetensors"
    path.write_bytes(OLD)
    with pytest.raises(ResourceError) as caught:
        stopped(lambda: write(path, NEW), stop, how, OSError(number, os.strerror(number)))
    free = shutil.disk_usage(tmp_path).free
    said = str(caught.value)
    assert caught.value.exit_code == 6
    assert said.startswith(f"{path} can't be written: {os.strerror(number)}; {len(NEW):,} bytes wanted, ")
    told = int(said.split(" bytes wanted, ")[1].removesuffix(" free").replace(",", ""))
    assert abs(told - free) < 2**32  # others write to the same disk
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() in (OLD, NEW)
    if stop < 3:
        assert path.read_bytes() == OLD


def test_a_refused_tidying_up_does_not_hide_the_refusal(tmp_path, monkeypatch):
    """A disk that goes read-only refuses the unlink as well; what is said is still an error of ours."""
    path = tmp_path / "f"

    def refuse(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(files.os, "replace", refuse)
    monkeypatch.setattr(pathlib.Path, "unlink", refuse)
    with pytest.raises(ResourceError, match="Read-only file system"):
        write(path, NEW)


def test_a_full_device_is_told_as_such():
    """/dev/full refuses every write with ENOSPC: the system's own words, not a stand-in of ours."""
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    said = r"/dev/full can't be written: No space left on device; 8 bytes wanted, [\d,]+ free"
    with pytest.raises(ResourceError, match=said):
        write_output("/dev/full", b'{"a":1}\n')


def test_a_size_limit_leaves_the_old_file(tmp_path):
    """RLIMIT_FSIZE gives EFBIG after a partial write: a real torn file."""
    program = f"""
import resource, signal
from pathlib import Path
from dspreg.errors import ResourceError
from dspreg.io.atomic_files import write
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path = Path({str(tmp_path)!r}) / "f"
write(path, b"old")
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write(path, bytes(5000))
except ResourceError as error:
    print(error.exit_code, error)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.startswith(f"6 {tmp_path / 'f'} can't be written: File too large; 5,000 bytes wanted, ")
    assert (tmp_path / "f").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["f"]


def test_a_place_that_may_not_even_be_looked_into_is_a_resource_error(tmp_path):
    """The message wants to tell the free space, and must not fail itself where nothing may be asked."""
    hidden = tmp_path / "hidden"
    (hidden / "deeper").mkdir(parents=True)
    hidden.chmod(0)
    tmp_path.chmod(0o755)
    program = f"""
from pathlib import Path
from dspreg.errors import ResourceError
from dspreg.io.atomic_files import write
try:
    write(Path({str(hidden)!r}) / "deeper" / "f", b"12345")
except ResourceError as error:
    print(error)
"""
    try:
        said = as_nobody(program, tmp_path)
    finally:
        hidden.chmod(0o755)
    assert "can't be written: Permission denied; 5 bytes wanted" in said


def test_unfinished_files_go_and_others_stay(tmp_path):
    (tmp_path / "profiles").mkdir()
    for name in (".a.json.12.part", "b.part", ".hidden", "kept.json", "profiles/.c.34.part", "profiles/d"):
        (tmp_path / name).touch()
    remove_partial_files(tmp_path)
    left = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file())
    assert left == [".hidden", "b.part", "kept.json", "profiles/d"]


def test_making_a_folder_says_why_it_could_not(tmp_path):
    files.make_folder(tmp_path / "a" / "b")
    files.make_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(ResourceError, match="deeper can't be written: Not a directory"):
        files.make_folder(tmp_path / "file" / "deeper")


def test_removing_says_why_it_could_not(tmp_path, monkeypatch):
    remove(tmp_path / "never was")

    def refuse(*_, **__):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(pathlib.Path, "unlink", refuse)
    with pytest.raises(ResourceError, match="there can't be written: Permission denied"):
        remove(tmp_path / "there")


# JSON.


def test_the_canonical_text_does_not_depend_on_the_order_of_keys():
    assert canonical_json({"b": [1, None, True], "a": {"é": 0.1}}) == '{"a":{"é":0.1},"b":[1,null,true]}'
    assert canonical_json({"x": 1, "y": 2}) == canonical_json({"y": 2, "x": 1})
    assert json.loads(canonical_json({"x": 0.1 + 0.2}))["x"] == 0.1 + 0.2


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_a_number_is_not_written(tmp_path, bad):
    path = tmp_path / "f"
    for act in (lambda: write_json(path, {"a": bad}), lambda: Lines(path).append([bad]), lambda: canonical_json(bad)):
        with pytest.raises(ValueError):
            act()
    assert list(tmp_path.iterdir()) == []


def test_json_comes_back_as_it_was(tmp_path):
    value = {"ü": [0.1, 1e-300, -0.0, 2**70, None, True, "\n"], "": {}}
    write_json(tmp_path / "f", value)
    assert read_json(tmp_path / "f") == value
    assert (tmp_path / "f").read_bytes().endswith(b"}\n")


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b'{"a": 1}}', b"\xff", b'{"a": NaN}', b"[-Infinity]", b'{"a": 1e999}', b"[-1e400]", b'"\\ud800"',
     b'{"\\uDC00": 1}', b"[" * 100_000],
)  # fmt: skip
def test_what_could_not_have_been_written_is_not_read(tmp_path, content):
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(IntegrityError, match="f can't be read: "):
        read_json(tmp_path / "f")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(IntegrityError, match=r"gone can't be read: .*No such file"):
        read_json(tmp_path / "gone")


def test_digests_are_those_of_sha256sum(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"abc")
    known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2, B.1
    assert sha256(b"abc") == sha256_of_file(path) == known


# Lines.


def test_lines_come_back_in_order_and_the_file_only_grows(tmp_path):
    lines, sizes = Lines(tmp_path / "l"), []
    assert list(lines) == []
    for value in ({"b": 1, "a": 0.1}, [], "é\n"):
        lines.append(value)
        sizes.append(lines.mark()["bytes"])
    assert list(lines) == [{"b": 1, "a": 0.1}, [], "é\n"]
    assert sizes == sorted(set(sizes))
    assert (tmp_path / "l").read_bytes() == '{"a":0.1,"b":1}\n[]\n"é\\n"\n'.encode()


def test_the_first_line_also_makes_the_name_of_the_file_durable(tmp_path):
    """A new file that was synced, in a folder that was not, may be gone after the power was."""
    assert operations(lambda: Lines(tmp_path / "l").append(1)) == ["open", "write", "fsync", "fsync"]
    assert operations(lambda: Lines(tmp_path / "l").append(2)) == ["open", "write", "fsync"]


@pytest.mark.parametrize("how", ["before", "torn", "after"])
@pytest.mark.parametrize("stop", range(3))
@pytest.mark.parametrize("kind", [Crash(), OSError(errno.ENOSPC, "No space left on device")], ids=["crash", "ENOSPC"])
def test_a_crash_while_appending_leaves_all_lines_before_and_the_new_one_whole_or_not_at_all(tmp_path, stop, how, kind):
    lines = Lines(tmp_path / "l")
    lines.append({"step": 0})
    mark = lines.mark()
    with pytest.raises(Crash if isinstance(kind, Crash) else ResourceError):
        stopped(lambda: lines.append({"step": 1, "loss": 0.123456789}), stop, how, kind)
    whole = (stop, how) in [(1, "after"), (2, "before"), (2, "torn"), (2, "after")]
    assert list(lines) == [{"step": 0}] + [{"step": 1, "loss": 0.123456789}] * whole
    lines.rewind(mark)
    lines.append({"step": 1})
    assert list(lines) == [{"step": 0}, {"step": 1}]


def test_a_tail_torn_at_any_byte_is_not_seen_and_can_be_rewound(tmp_path):
    lines = Lines(tmp_path / "l")
    lines.append({"step": 0, "é": "ü"})
    mark = lines.mark()
    lines.append({"step": 1, "é": "ü"})
    whole = (tmp_path / "l").read_bytes()
    for size in range(mark["bytes"], len(whole)):
        (tmp_path / "l").write_bytes(whole[:size])
        assert list(lines) == [{"step": 0, "é": "ü"}]
        lines.rewind(mark)
        assert (tmp_path / "l").read_bytes() == whole[: mark["bytes"]]
    for size in range(mark["bytes"]):
        (tmp_path / "l").write_bytes(whole[:size])
        assert list(lines) == []
        with pytest.raises(IntegrityError, match="l is not what it was when the checkpoint was made"):
            lines.rewind(mark)


def test_rewinding_goes_to_any_mark_and_to_the_start(tmp_path):
    lines = Lines(tmp_path / "l")
    marks = [lines.mark()]
    for n in range(5):
        lines.append({"n": n})
        marks.append(lines.mark())
    assert marks[2] == {"bytes": 16, "sha256": sha256(b'{"n":0}\n{"n":1}\n')}
    for n in reversed(range(6)):
        lines.rewind(marks[n])
        assert list(lines) == [{"n": i} for i in range(n)]
        assert lines.mark() == marks[n]
    lines.append({"n": 9})
    lines.rewind(None)
    assert list(lines) == []
    Lines(tmp_path / "never").rewind(None)
    assert not (tmp_path / "never").exists()


def test_every_flipped_bit_before_the_mark_is_noticed_when_rewinding(tmp_path):
    lines = Lines(tmp_path / "l")
    lines.append({"a": 1})
    mark = lines.mark()
    lines.append({"a": 2})
    whole = (tmp_path / "l").read_bytes()
    for bit in range(8 * mark["bytes"]):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        (tmp_path / "l").write_bytes(damaged)
        with pytest.raises(IntegrityError):
            lines.rewind(mark)
        assert (tmp_path / "l").read_bytes() == damaged  # nothing is cut off a file that is not ours


def test_a_damaged_line_is_named_by_its_number(tmp_path):
    (tmp_path / "l").write_bytes(b'{"a":1}\n{"a":2}\n{"a":\n{"a":4}\n')
    lines = iter(Lines(tmp_path / "l"))
    assert [next(lines), next(lines)] == [{"a": 1}, {"a": 2}]
    with pytest.raises(IntegrityError, match=r"l, line 3, is damaged: "):
        next(lines)
    (tmp_path / "l").write_bytes(b'{"a":1}\n\xff\n')
    with pytest.raises(IntegrityError, match="line 2, is damaged"):
        list(Lines(tmp_path / "l"))


def test_bytes_read_before_give_the_same_lines_and_the_same_complaint(tmp_path):
    lines = Lines(tmp_path / "l")
    for data in (b"", b'{"a":1}\n', b'{"a":1}\n[2.5]\n"\xc3\xa9"\n', b'{"a":1}\n{"a":2', b'{"a":1}\n7\n'):
        (tmp_path / "l").write_bytes(data)
        assert lines.of(data) == list(lines)
    for data in (b'{"a":1}\n{"a":\n{"a":4}\n', b"1\n\xff\n", b"1\n2,3\n", b"1\n\n3\n", b"1\n[2\n3]\n"):
        (tmp_path / "l").write_bytes(data)
        for act in (lambda data=data: lines.of(data), lambda: list(lines)):
            with pytest.raises(IntegrityError, match="l, line 2, is damaged"):
                act()


def test_what_is_nested_too_deeply_is_damaged_and_no_crash(tmp_path):
    deep = b"[" * 100_000
    (tmp_path / "f").write_bytes(deep)
    with pytest.raises(IntegrityError, match="f can't be read"):
        read_json(tmp_path / "f")
    with pytest.raises(IntegrityError, match="line 1, is damaged"):
        Lines(tmp_path / "l").of(deep + b"\n")


def test_the_shim_sees_what_the_system_sees(tmp_path):
    """Every write of the module goes through what the shim counts: no other call opens a file for writing."""
    calls = []
    with pytest.MonkeyPatch.context() as patch:
        for place, name in ((builtins, "open"), (io, "open"), (os, "open"), (os, "rename"), (os, "write")):
            real = getattr(place, name)
            patch.setattr(place, name, lambda *a, _n=name, _r=real, **k: (calls.append((_n, a)), _r(*a, **k))[1])
        write(tmp_path / "f", b"a")
    opened = [args for name, args in calls if name == "open" and str(args[0]).startswith(str(tmp_path))]
    assert len(opened) == 2  # the unfinished file, and the folder to sync
    assert not [name for name, _ in calls if name in ("rename", "write")]


# A process that slept too long writes nothing.


class Lost(Exception):
    """Another process works there by now."""


@contextmanager
def refusing():
    raise Lost
    yield


def test_behind_a_fence_nothing_changes_once_it_refuses(tmp_path):
    write(tmp_path / "file", b"old")
    (tmp_path / f".file.1{UNFINISHED}").touch()
    lines = Lines(tmp_path / "lines")
    lines.append(1)
    mark = lines.mark()
    lines.append(2)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    changes = (
        lambda fence: write(tmp_path / "file", b"new", fence=fence),
        lambda fence: write_json(tmp_path / "new.json", {}, fence=fence),
        lambda fence: Lines(tmp_path / "lines", fence=fence).append(3),
        lambda fence: Lines(tmp_path / "lines", fence=fence).rewind(mark),
        lambda fence: remove(tmp_path / "file", fence=fence),
        lambda fence: remove_partial_files(tmp_path, fence=fence),
    )
    for change in changes:
        with pytest.raises(Lost):
            change(refusing)
        assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    for change in changes:
        change(nullcontext)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["lines", "new.json"]
    assert list(lines) == [1]


def test_a_file_gets_its_name_inside_of_the_fence_and_is_made_outside(tmp_path):
    seen = []

    @contextmanager
    def fence():
        seen.append(sorted(p.name for p in tmp_path.iterdir()))
        yield
        seen.append(sorted(p.name for p in tmp_path.iterdir()))

    write(tmp_path / "file", b"much", fence=fence)
    assert seen == [[f".file.{os.getpid()}.part"], ["file"]]


def test_no_process_waits_inside_of_the_fence_for_a_line_to_reach_the_disk(tmp_path, monkeypatch):
    inside, seen = [False], []

    @contextmanager
    def fence():
        inside[0] = True
        yield
        inside[0] = False

    monkeypatch.setattr(files.os, "fsync", lambda handle: seen.append(inside[0]))
    Lines(tmp_path / "lines", fence=fence).append(1)
    assert seen == [False, False]  # the file, and the folder it is new in
