"""A file that one holds at a time, among threads and processes, whatever becomes of the holder."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import filelock
import pytest

from dspreg.errors import CantWrite, IntegrityError, InUse
from dspreg.io import locks
from dspreg.io.locks import holding, waiting_for


@pytest.fixture(autouse=True, params=["fcntl", "filelock"])
def by(request, monkeypatch):
    """As on this system, and as where `fcntl` is missing."""
    monkeypatch.setattr(locks, "LOCKS_OPEN_FILES", request.param == "fcntl")
    monkeypatch.setattr(filelock, "FileLock", filelock.SoftFileLock)  # what it is there


def test_one_at_a_time(tmp_path):
    inside, most, lock = [], [], tmp_path / "lock"
    times = 200 if locks.LOCKS_OPEN_FILES else 40

    def work(number):
        with holding(lock, wait=lambda: None):
            inside.append(number)
            most.append(len(inside))
            os.listdir(tmp_path)  # gives way to other threads
            inside.remove(number)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(times)))
    assert most == [1] * times
    assert not lock.exists()


def test_waiting_is_one_at_a_time(tmp_path):
    inside, most = [], []

    def work(number):
        with waiting_for(tmp_path / "lock"):
            inside.append(number)
            most.append(len(inside))
            os.listdir(tmp_path)
            inside.remove(number)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(40)))
    assert most == [1] * 40


def test_without_waiting_it_is_refused_by_name(tmp_path):
    lock = tmp_path / "lock"
    with holding(lock), pytest.raises(InUse, match=r"another process has .*lock; wait for it"), holding(lock):
        pass
    with holding(lock):
        pass


def test_an_error_lets_go(tmp_path):
    with pytest.raises(ZeroDivisionError), holding(tmp_path / "lock"):
        raise ZeroDivisionError
    assert [*tmp_path.iterdir()] == []


def test_a_killed_holder_holds_nothing(tmp_path):
    code = (
        "import sys, time, pathlib\n"
        f"if not {locks.LOCKS_OPEN_FILES}: sys.modules['fcntl'] = None\n"
        "from dspreg.io.locks import holding\n"
        "with holding(pathlib.Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "lock")], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"held\n"
    with pytest.raises(InUse), holding(tmp_path / "lock"):
        pass
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    with holding(tmp_path / "lock"):
        pass


def test_a_link_is_no_lock(tmp_path):
    (tmp_path / "dear").write_text("dear")
    (tmp_path / "lock").symlink_to(tmp_path / "dear")
    with pytest.raises(IntegrityError, match="is a link"), holding(tmp_path / "lock"):
        pass
    assert (tmp_path / "dear").read_text() == "dear"


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(CantWrite), holding(tmp_path / "none" / "lock"):
        pass
