"""Devices, FIFOs and links in the place of files: what is ours is a regular file, and what a user names is meant."""

import os
import select
import socket
import stat
import threading
from contextlib import contextmanager

import pytest

from dspreg.errors import ConfigError, IntegrityError, ResourceError
from dspreg.io.atomic_files import (
    Lines,
    is_standard_output,
    read_json,
    read_regular_file,
    remove_partial_files,
    require_folder,
    sha256_of_file,
    write,
    write_output,
)

DATA = b"a report\n" * 3


@pytest.fixture
def null(tmp_path):
    """A null device of our own making."""
    path = tmp_path / "null"
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        path.write_bytes(b"taken")
    except PermissionError:
        pytest.skip("only root makes devices, and not everywhere")
    return path


@contextmanager
def read_from(fifo):
    """What comes out of a FIFO, its reader there before the writer."""
    handle, found = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK), []
    os.set_blocking(handle, True)

    def read():
        select.select([handle], [], [], 30)  # before a writer came, reading is at the end already
        with open(handle, "rb") as stream:
            found.append(stream.read())

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    yield found
    reader.join(30)


# What a user named.


def test_a_device_is_written_to_and_stays_a_device(null):
    write_output(null, DATA)
    assert stat.S_ISCHR(null.stat().st_mode)
    assert os.listdir(null.parent) == ["null"]


def test_a_fifo_is_written_to_however_much_it_is(tmp_path):
    fifo, much = tmp_path / "fifo", bytes(range(256)) * 4096  # more than a pipe holds
    os.mkfifo(fifo)
    with read_from(fifo) as found:
        write_output(fifo, much)
    assert found == [much]
    assert stat.S_ISFIFO(fifo.stat().st_mode)


def test_a_fifo_that_nobody_reads_is_said_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ResourceError, match="fifo can't be written: no process reads this FIFO; start its reader"):
        write_output(tmp_path / "fifo", DATA)


def test_a_reader_that_goes_away_is_a_refusal(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    handle = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    threading.Timer(0.05, os.close, [handle]).start()
    with pytest.raises(ResourceError, match="fifo can't be written: Broken pipe"):
        write_output(tmp_path / "fifo", bytes(2**20))


def test_of_a_link_the_target_is_replaced_and_the_link_stays(tmp_path):
    (tmp_path / "else").mkdir()
    target, link, second = tmp_path / "else" / "target", tmp_path / "link", tmp_path / "second"
    target.write_bytes(b"old")
    link.symlink_to("else/target")
    second.symlink_to("link")
    write_output(second, DATA)
    assert target.read_bytes() == DATA
    assert os.readlink(link) == "else/target"
    assert os.readlink(second) == "link"
    assert os.listdir(tmp_path / "else") == ["target"]


def test_a_link_that_leads_nowhere_gets_its_target(tmp_path):
    (tmp_path / "link").symlink_to("new")
    write_output(tmp_path / "link", DATA)
    assert (tmp_path / "new").read_bytes() == DATA
    assert (tmp_path / "link").is_symlink()
    (tmp_path / "far").symlink_to("no/such/folder")
    with pytest.raises(ResourceError, match="can't be written: No such file"):
        write_output(tmp_path / "far", DATA)
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(ResourceError, match="loop can't be written: Too many levels of symbolic links"):
        write_output(tmp_path / "loop", DATA)


def test_a_link_to_a_device_or_a_fifo_is_written_to(tmp_path, null):
    (tmp_path / "link").symlink_to("null")
    write_output(tmp_path / "link", DATA)
    assert stat.S_ISCHR(null.stat().st_mode)
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "to fifo").symlink_to("fifo")
    with read_from(tmp_path / "fifo") as found:
        write_output(tmp_path / "to fifo", DATA)
    assert found == [DATA]


def test_new_names_and_regular_files_are_replaced_as_a_whole(tmp_path):
    write_output(tmp_path / "f", b"old")
    first = (tmp_path / "f").stat().st_ino
    keep = (tmp_path / "f").open("rb")
    write_output(str(tmp_path / "f"), DATA)
    assert (tmp_path / "f").read_bytes() == DATA
    assert (tmp_path / "f").stat().st_ino != first
    assert keep.read() == b"old"  # who reads the old one reads all of it
    keep.close()


def test_folders_and_sockets_are_refused(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="is a folder; wanted a file"):
        write_output(tmp_path, DATA)
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        with pytest.raises(ConfigError, match="socket is a socket; wanted a file"):
            write_output("socket", DATA)


def test_a_disk_is_not_overwritten_with_a_report(tmp_path):
    try:
        os.mknod(tmp_path / "disk", 0o600 | stat.S_IFBLK, os.makedev(240, 1))
    except PermissionError:
        pytest.skip("only root makes devices")
    with pytest.raises(ConfigError, match="disk is a disk; wanted a file"):
        write_output(tmp_path / "disk", DATA)


@pytest.mark.parametrize("name", ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_standard_output_has_these_names_and_keeps_its_order(tmp_path, capsys, name):
    print("before")
    assert is_standard_output(name)
    write_output(name, DATA)
    print("after")
    assert capsys.readouterr().out == f"before\n{DATA.decode()}after\n"
    assert not is_standard_output(tmp_path / "-")


def test_what_a_shell_has_open_is_written_where_it_stands(tmp_path):
    """As in `dspreg report --out >(gzip > x)`, or --out /dev/stdout > file."""
    read, written = os.pipe()
    write_output(f"/dev/fd/{written}", DATA)
    os.close(written)
    with open(read, "rb") as stream:
        assert stream.read() == DATA
    with (tmp_path / "f").open("wb") as file:
        file.write(b"before\n")
        file.flush()
        write_output(f"/proc/self/fd/{file.fileno()}", DATA)
        file.write(b"after\n")
    assert (tmp_path / "f").read_bytes() == b"before\n" + DATA + b"after\n"
    with pytest.raises(ResourceError, match="Bad file descriptor"):
        write_output("/dev/fd/987", DATA)


# What is ours.

READERS = {
    "read_regular_file": read_regular_file,
    "read_json": read_json,
    "sha256_of_file": sha256_of_file,
    "lines": lambda path: list(Lines(path)),
    "mark": lambda path: Lines(path).mark(),
    "append": lambda path: Lines(path).append(1),
    "rewind": lambda path: Lines(path).rewind(None),
}


def node(path, kind):
    """Something that is no regular file; returns what it would reach."""
    outside = path.with_name("outside")
    outside.write_bytes(b'{"mine": 1}\n')
    if kind == "link":
        path.symlink_to("outside")
    elif kind == "dangling link":
        path.symlink_to("nowhere")
    elif kind == "FIFO":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        try:
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        except PermissionError:
            pytest.skip("only root makes devices")
    return outside


@pytest.mark.parametrize("kind", ["link", "dangling link", "FIFO", "folder", "device"])
@pytest.mark.parametrize("how", READERS)
def test_nothing_but_a_regular_file_is_opened(tmp_path, how, kind):
    path = tmp_path / "records.jsonl"
    outside = node(path, kind)
    with pytest.raises(IntegrityError, match=rf"records.jsonl is a {kind.split()[-1]}; wanted a regular file"):
        READERS[how](path)
    assert outside.read_bytes() == b'{"mine": 1}\n'
    assert not (tmp_path / "nowhere").exists()


def test_what_a_user_names_may_be_a_link_and_still_no_fifo(tmp_path):
    (tmp_path / "file").write_bytes(DATA)
    (tmp_path / "link").symlink_to("file")
    assert read_regular_file(tmp_path / "link", follow=True) == DATA
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "to fifo").symlink_to("fifo")
    for name in ("fifo", "to fifo"):
        with pytest.raises(IntegrityError, match=f"{name} is a FIFO; wanted a regular file"):
            read_regular_file(tmp_path / name, follow=True)


def test_a_file_may_have_no_more_than_its_limit(tmp_path):
    (tmp_path / "f").write_bytes(DATA)
    assert read_regular_file(tmp_path / "f", limit=len(DATA)) == DATA
    with pytest.raises(IntegrityError, match=r"f has 27 bytes; wanted at most 26"):
        read_regular_file(tmp_path / "f", limit=len(DATA) - 1)
    with (tmp_path / "large").open("wb") as file:
        file.truncate(2**42)  # sparse: it is on no disk, and would not fit into memory
    with pytest.raises(IntegrityError, match="large has 4,398,046,511,104 bytes; wanted at most"):
        read_json(tmp_path / "large")
    with pytest.raises(FileNotFoundError):
        read_regular_file(tmp_path / "gone")


@pytest.mark.parametrize("kind", ["link", "dangling link", "FIFO", "device"])
def test_a_write_replaces_whatever_has_the_name_and_follows_nothing(tmp_path, kind):
    """Neither under the name itself nor under that of the unfinished file, which can be guessed."""
    outside = node(tmp_path / "result.json", kind)
    node(tmp_path / f".result.json.{os.getpid()}.part", kind)
    write(tmp_path / "result.json", DATA)
    assert stat.S_ISREG(os.lstat(tmp_path / "result.json").st_mode)
    assert (tmp_path / "result.json").read_bytes() == DATA
    assert outside.read_bytes() == b'{"mine": 1}\n'
    assert sorted(os.listdir(tmp_path)) == ["outside", "result.json"]


def test_what_shares_its_bytes_with_another_name_is_copied_before_it_changes(tmp_path):
    """`cp -al` makes such copies, and an archive may bring them."""
    lines = Lines(tmp_path / "l")
    lines.append(1)
    mark = lines.mark()
    os.link(tmp_path / "l", tmp_path / "copy")
    lines.append(2)
    assert list(lines) == [1, 2]
    assert list(Lines(tmp_path / "copy")) == [1]
    os.link(tmp_path / "l", tmp_path / "second")
    lines.rewind(mark)
    assert list(lines) == [1]
    assert list(Lines(tmp_path / "second")) == [1, 2]


def test_partial_files_behind_a_link_are_not_ours(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "outside" / ".x.1.part").touch()
    (tmp_path / "run" / "models").symlink_to(tmp_path / "outside")
    (tmp_path / "run" / ".y.1.part").symlink_to(tmp_path / "outside" / ".x.1.part")
    remove_partial_files(tmp_path / "run")
    assert os.listdir(tmp_path / "outside") == [".x.1.part"]
    assert os.listdir(tmp_path / "run") == ["models"]


def test_a_folder_is_itself_or_absent(tmp_path):
    require_folder(tmp_path / "none")
    require_folder(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "fifo")
    for name, kind in (("link", "a link"), ("file", "a file"), ("fifo", "a FIFO")):
        with pytest.raises(IntegrityError, match=f"{name} is {kind}; wanted a folder"):
            require_folder(tmp_path / name)
