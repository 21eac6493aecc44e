"""Processes that read: what they make arrives whole, and whatever happens to them is told and never waited for."""

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from dspreg.data import reader_messages, readers
from dspreg.data.decode import BadImage
from dspreg.data.readers import iterate_batches
from dspreg.errors import ConfigError, Notice, Preempted, ResourceError
from helpers import patient_reader
from helpers.limits import in_child, limit_descriptors, limit_shared_memory, require_mounts


class Numbers:
    """i → tensors that no other i gives."""

    def __init__(self, size=10):
        self.size = size

    def __getitem__(self, i):
        return [(torch.full((self.size,), i, dtype=torch.uint8), torch.tensor([i]))]


class Who:
    def __getitem__(self, i):
        return os.getpid(), i


class Failing:
    """Fails at 2 with the error given."""

    def __init__(self, error):
        self.error = error

    def __getitem__(self, i):
        if i == 2:
            raise self.error
        return i


class Ending:
    """The process ends itself at 2, by a signal."""

    def __init__(self, number):
        self.number = number

    def __getitem__(self, i):
        if i == 2:
            os.kill(os.getpid(), self.number)
        return i


KEPT = ()


def alive():
    return [p.pid for p in multiprocessing.active_children()]


@pytest.fixture(autouse=True)
def none_is_left():
    before = set(alive())
    yield
    assert set(alive()) <= before


def same(made, n, size):
    return [int(y) for ((_, y),) in made] == list(range(n)) and all(
        torch.equal(x, torch.full((size,), i, dtype=torch.uint8)) for i, ((x, _),) in enumerate(made)
    )


# What travels.

TENSORS = [
    torch.arange(7),
    torch.tensor(3.5, dtype=torch.float64),
    torch.empty(0, 3),
    torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
    torch.rand(200, 300)[::2, 1:],
    torch.rand(3, 70_000) > 0.5,
    torch.rand(50_000).to(torch.bfloat16),
]


class Odd:
    def __getitem__(self, i):
        return {"deep": [(TENSORS[i], "text", i)], "none": None}


@pytest.mark.parametrize("way", ["memory", "pipe"])
def test_tensors_arrive_with_their_bits_and_strides(way, monkeypatch):
    if way == "pipe":
        monkeypatch.setattr(reader_messages, "write_to_memory", lambda _: None)
    for i, made in enumerate(iterate_batches(Odd(), range(len(TENSORS)), 2)):
        ((x, text, n),) = made["deep"]
        assert (text, n, made["none"]) == ("text", i, None)
        assert x.dtype == TENSORS[i].dtype
        assert x.shape == TENSORS[i].shape
        assert torch.equal(x, TENSORS[i])
        assert x.is_contiguous(memory_format=torch.channels_last) == (
            TENSORS[i].ndim == 4 and TENSORS[i].is_contiguous(memory_format=torch.channels_last)
        )
        x.zero_()  # it is ours to write to


def test_more_readers_than_batches_and_no_batches():
    assert [i for _, i in iterate_batches(Who(), range(2), 5)] == [0, 1]
    assert list(iterate_batches(Who(), [], 3)) == []


def test_every_reader_has_its_share():
    made = list(iterate_batches(Who(), range(9), 3))
    assert [i for _, i in made] == list(range(9))
    assert len({pid for pid, _ in made}) == 3


def test_a_reader_that_was_not_forked_waits_for_its_trainer(monkeypatch):
    """The way of Python 3.14: its parent is another process."""
    context = multiprocessing.get_context("forkserver")
    monkeypatch.setattr(multiprocessing, "Process", context.Process)
    monkeypatch.setattr(readers, "make_batches", patient_reader.make_batches)
    monkeypatch.setattr(readers, "AHEAD", 1)
    with closing(iterate_batches(patient_reader.Squares(), range(4), 1)) as made:
        assert [next(made), next(made)] == [0, 1]
        time.sleep(0.2)  # it looks many times
        assert list(made) == [4, 9]


# Shared memory, file descriptors.


@pytest.mark.parametrize("kib", [1024, 4])
def test_a_small_dev_shm_does_not_matter(kib):
    """Batches of 2 MB, 4 readers, and no room in /dev/shm for one of them."""
    require_mounts()

    def act():
        assert limit_shared_memory(kib * 1024)
        return same(list(iterate_batches(Numbers(2_000_000), range(20), 4)), 20, 2_000_000)

    assert in_child(act)


def test_few_file_descriptors():
    def act():
        limit_descriptors(5)
        with pytest.warns(Notice, match="Too many open files"):
            made = list(iterate_batches(Numbers(200_000), range(12), 8))
        return same(made, 12, 200_000)

    assert in_child(act)


def test_no_file_descriptor_at_all():
    def act():
        limit_descriptors(0)
        with pytest.warns(Notice, match="in the training's own process"):
            return same(list(iterate_batches(Numbers(), range(3), 2)), 3, 10)

    assert in_child(act)


def test_batches_hold_no_file_descriptors_but_their_own():
    before = len(os.listdir("/proc/self/fd"))
    made = iterate_batches(Numbers(200_000), range(30), 2)
    labels = [y for ((_, y),) in made]  # kept, as measuring keeps them: they must not hold the images
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before
    assert torch.cat(labels).tolist() == list(range(30))


# Errors.


def test_an_error_keeps_its_kind_its_words_and_what_it_carries():
    error = BadImage.of("a.jpg", "the file is empty")
    with pytest.raises(BadImage, match=r"a.jpg is not a usable image") as caught:
        list(iterate_batches(Failing(error), range(5), 2))
    assert caught.value.reason == "the file is empty"


class Picky(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


@pytest.mark.parametrize("error", [ValueError("bad"), Picky(1, 2), type("Local", (Exception,), {})("bad")])
def test_an_error_that_can_not_travel_says_what_it_was(error):
    with pytest.raises(Exception) as caught:
        list(iterate_batches(Failing(error), range(5), 1))
    assert str(error) in str(caught.value)
    assert isinstance(caught.value, (ValueError, RuntimeError))
    assert "in __getitem__" in str(caught.value.__cause__)  # where it happened


def test_readers_end_with_the_error_that_leaves_them():
    with pytest.raises(ValueError, match="bad") as kept:
        list(iterate_batches(Failing(ValueError("bad")), range(100), 2))
    assert alive() == []
    assert kept.value.args == ("bad",)


def test_readers_end_with_an_error_of_who_reads_them():
    def consume():
        with closing(iterate_batches(Who(), range(100), 2)) as made:
            next(made)
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as kept:
        consume()
    assert alive() == []
    assert kept.value.args == ("mine",)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGXCPU])
def test_a_reader_that_dies_is_named(number):
    with pytest.raises(ResourceError, match=rf"reads images died \(process \d+, {signal.Signals(number).name}\)"):
        list(iterate_batches(Ending(number), range(6), 2))


# Waiting.


def test_a_stopped_reader_is_named_and_not_waited_for_for_ever(monkeypatch):
    monkeypatch.setenv("DSPREG_READER_PATIENCE", "1.5")
    said = r"process that reads images \(\d+\) has sent nothing for [12] s.*it is stopped.*DSPREG_READER_PATIENCE"
    with pytest.raises(ResourceError, match=said):
        list(iterate_batches(Ending(signal.SIGSTOP), range(6), 2))


class Held:
    """Opens a file at 2, and sleeps."""

    def __init__(self, path):
        self.path = path

    def __getitem__(self, i):
        if i == 2:
            with open(self.path):
                time.sleep(60)
        return i


def test_what_a_slow_reader_has_open_is_said_while_it_is_waited_for(tmp_path, monkeypatch):
    (tmp_path / "slow.jpg").write_bytes(b"")
    monkeypatch.setenv("DSPREG_READER_PATIENCE", "2")
    monkeypatch.setattr(readers, "NOTICE_AFTER", 0.5)
    with (
        pytest.warns(Notice, match=r"waited for [01] s.*slow\.jpg") as said,
        pytest.raises(ResourceError, match=r"slow\.jpg"),
    ):
        list(iterate_batches(Held(tmp_path / "slow.jpg"), range(3), 1))
    assert len([w for w in said if w.category is Notice]) == 1


def test_who_waits_may_give_up():
    stop = threading.Event()
    threading.Timer(0.7, stop.set).start()

    def on_wait():
        if stop.is_set():
            raise Preempted("stopped")

    started = time.monotonic()
    with pytest.raises(Preempted):
        list(iterate_batches(Ending(signal.SIGSTOP), range(6), 2, on_wait))
    assert time.monotonic() - started < 60


@pytest.mark.parametrize("text", ["soon", "-1", "0", "nan"])
def test_an_impatience_that_is_none(monkeypatch, text):
    monkeypatch.setenv("DSPREG_READER_PATIENCE", text)
    with pytest.raises(ConfigError, match="DSPREG_READER_PATIENCE"):
        list(iterate_batches(Who(), range(2), 1))


def test_readers_end_when_their_trainer_is_gone():
    """Two pools, so that the readers of one are forked while the other's pipes are open."""

    def act():
        global KEPT
        KEPT = one, two = iterate_batches(Who(), range(99), 2), iterate_batches(Who(), range(99), 2)
        return [next(made)[0] for made in (one, two, one, two)]

    def trainer():
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writing, " ".join(map(str, act())).encode())
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(child, 0)
        pids = [int(text) for text in os.read(reading, 1000).split()]
        until = time.monotonic() + 30
        while any(running(pid) for pid in pids) and time.monotonic() < until:
            time.sleep(0.05)
        return [pid for pid in pids if running(pid)]

    assert in_child(trainer) == []


def running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def stop_halfway(connection, _batch):
    os.write(connection.fileno(), b"\0\0\1\0half")  # a length, and less than that
    os.kill(os.getpid(), signal.SIGSTOP)


def stop_before_the_memory(connection, batch):
    connection.send(reader_messages.SentBatch(batch, 100, True))
    os.kill(os.getpid(), signal.SIGSTOP)


@pytest.mark.parametrize("stop", [stop_halfway, stop_before_the_memory])
def test_a_reader_that_stops_while_it_sends_is_not_waited_for(stop, monkeypatch):
    monkeypatch.setattr(readers, "send_batch", stop)
    monkeypatch.setattr(readers, "HALF_SENT", 1)
    with pytest.raises(ResourceError, match="it is stopped"):
        list(iterate_batches(Who(), range(3), 1))


# Ending.

LEFT = """
import os, signal
from dspreg.data.readers import iterate_batches

class Slow:
    def __getitem__(self, i):
        return os.getpid(), i

left = iterate_batches(Slow(), range(1000), 1)
worker, _ = next(left)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    os.kill(worker, number)
assert [i for _, (_, i) in zip(range(50), left)] == list(range(1, 51))
os.kill(worker, signal.SIGSTOP)
print("done", flush=True)
"""


def test_readers_survive_a_signal_to_the_group_and_still_let_the_trainer_exit():
    """With batches left over: Python waits at exit for every process, without end for one that ignores SIGTERM."""
    said = subprocess.run([sys.executable, "-c", LEFT], capture_output=True, text=True, timeout=60)
    assert (said.returncode, said.stdout) == (0, "done\n"), said.stderr


def test_a_ctrl_c_while_readers_are_ended_leaves_none_of_them(monkeypatch):
    ended = []

    def end(name, _within):
        signal.raise_signal(signal.SIGINT)
        ended.append(name)

    pipe = SimpleNamespace(close=lambda: None)
    monkeypatch.setattr(readers, "READERS", [SimpleNamespace(connection=pipe, end=partial(end, name)) for name in "ab"])
    before = signal.getsignal(signal.SIGINT)
    try:
        readers._end_all()
    except KeyboardInterrupt:
        pytest.fail("interrupted")
    assert ended == ["a", "b"]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_batch_that_no_descriptor_is_left_for_is_told():
    def act():
        made = iterate_batches(Numbers(200_000), range(12), 2)
        next(made)
        limit_descriptors(1)  # which the socket takes that the batch comes through
        with pytest.raises(ResourceError, match="no file descriptor is left"):
            list(made)
        return True

    assert in_child(act)
