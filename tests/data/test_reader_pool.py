"""Passes that share their processes: each has its own batches, in its own order, whatever the others do."""

import multiprocessing
import os
import signal
from contextlib import closing
from itertools import islice

import pytest
import torch

from dspreg.data import readers
from dspreg.data.loader import DomainSplit, Positions, SequentialBatches, TrainingSteps
from dspreg.data.reader_messages import pack_request
from dspreg.data.readers import AHEAD, ReaderPool, iterate_batches
from dspreg.data.transforms import Transform
from dspreg.errors import ResourceError


class Named:
    """i → its name, i, some numbers, and who made it."""

    def __init__(self, name, size=10):
        self.name, self.size = name, size

    def __getitem__(self, i):
        return self.name, i, torch.full((self.size,), i), os.getpid()


class Failing(Named):
    def __getitem__(self, i):
        if i == 3:
            raise ValueError(f"{self.name} at 3")
        return super().__getitem__(i)


class Killing(Named):
    def __getitem__(self, i):
        if i == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(i)


class Noted(Named):
    """Leaves a file for every batch that it makes."""

    def __getitem__(self, i):
        open(f"{self.name}/{i}", "w").close()
        return super().__getitem__(i)


@pytest.fixture(autouse=True)
def none_is_left():
    yield
    assert multiprocessing.active_children() == []


def order_of(made):
    return [(name, i) for name, i, _, _ in made]


@pytest.mark.parametrize("size", [10, 100_000])  # through the pipe, and as memory
@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_passes_take_turns_and_keep_their_order(workers, size):
    one, two = Named("one", size), Named("two", size)
    with ReaderPool(workers, [one, two]) as pool:
        steps = iterate_batches(one, range(20), pool)
        made = list(islice(steps, 5))
        for _ in range(3):
            other = list(iterate_batches(two, [4, 2, 9, 9, 0, 1, 7], pool))
            assert order_of(other) == [("two", i) for i in (4, 2, 9, 9, 0, 1, 7)]
            assert all(torch.equal(x, torch.full((size,), i)) for _, i, x, _ in other)
            made += islice(steps, 5)
        assert order_of(made) == [("one", i) for i in range(20)]
        assert all(torch.equal(x, torch.full((size,), i)) for _, i, x, _ in made)
        assert next(steps, None) is None
        pids = {pid for *_, pid in made + other}
        assert len(pids) == max(1, workers)
        assert (os.getpid() in pids) == (workers == 0)


def test_a_pass_reads_so_far_ahead_and_no_further_while_others_go_on(tmp_path):
    steps, other = Noted(tmp_path), Named("other")
    with ReaderPool(2, [steps, other]) as pool:
        made = iterate_batches(steps, range(100), pool)
        next(made)
        for _ in range(3):
            assert len(list(iterate_batches(other, range(20), pool))) == 20
        assert len(list(tmp_path.iterdir())) == 1 + 2 * AHEAD  # all were asked for before those of the others
        assert [i for _, i, _, _ in islice(made, 5)] == [1, 2, 3, 4, 5]


def test_a_pass_that_is_left_does_not_disturb_the_others():
    with ReaderPool(2, []) as pool:
        steps = iterate_batches(Named("steps"), range(10), pool)
        made = [next(steps)]
        for _ in range(3):
            with closing(iterate_batches(Named("left", 100_000), range(50), pool)) as left:
                assert next(left)[:2] == ("left", 0)
            made.append(next(steps))
        assert order_of([*made, *steps]) == [("steps", i) for i in range(10)]


def test_an_error_is_of_its_own_pass_and_comes_in_its_turn():
    with ReaderPool(2, []) as pool:
        failing = iterate_batches(Failing("failing"), range(10), pool)
        assert next(failing)[1] == 0
        assert len(list(iterate_batches(Named("other"), range(9), pool))) == 9  # the error is there by now
        assert order_of(islice(failing, 2)) == [("failing", 1), ("failing", 2)]
        with pytest.raises(ValueError, match="failing at 3"):
            next(failing)
        assert len(list(iterate_batches(Named("other"), range(9), pool))) == 9


def test_a_reader_that_dies_is_named_in_whichever_pass_waits_for_it():
    with ReaderPool(1, []) as pool:
        steps = iterate_batches(Killing("steps"), range(10), pool)
        assert [next(steps)[1] for _ in range(2)] == [0, 1]  # the process makes 2, and dies
        with pytest.raises(ResourceError, match=r"reads images died \(process \d+, SIGKILL\)"):
            list(iterate_batches(Named("other"), range(3), pool))


def test_what_is_shared_is_not_sent():
    """So that it need not be small, nor made for sending."""
    source = Named("shared")
    source.large, source.unsendable = torch.rand(1_000_000), lambda: None
    with ReaderPool(1, [source]) as pool:
        assert len(pack_request(source, 3, pool.places)) < 200
        assert len(list(iterate_batches(source, range(4), pool))) == 4


@pytest.mark.parametrize("kind", ["steps", "evaluation", "measuring"])
def test_requests_of_a_training_are_short(kind):
    """Parts of 10,000 images are known to the process."""
    transform = Transform(24, (0.5,) * 3, (0.5,) * 3, augment="domainbed")
    parts = [DomainSplit(f"d{n}", [(None, 0)] * 10_000, list(range(10_000)), transform) for n in range(4)]
    key = ("data", ("d3",), 0, 0)
    source, which = {
        "steps": (TrainingSteps(parts, 32, key), 4_999),
        "evaluation": (SequentialBatches(parts, 64, (*key, 300, "evaluate")), (3, 150)),
        "measuring": (Positions(parts), (2, tuple(range(9_000, 9_032)))),
    }[kind]
    places = {id(part): place for place, part in enumerate(parts)}
    assert len(pack_request(source, which, places)) < 500
    assert len(pack_request(source, which, {})) > 50_000


def test_after_its_end_batches_are_made_here():
    with ReaderPool(2, []) as pool:
        assert os.getpid() not in {pid for *_, pid in iterate_batches(Named("in"), range(4), pool)}
    assert multiprocessing.active_children() == []
    assert {pid for *_, pid in iterate_batches(Named("after"), range(4), pool)} == {os.getpid()}


def test_a_stopped_reader_that_takes_no_request_is_named(monkeypatch):
    monkeypatch.setattr(readers, "HALF_SENT", 1)
    large = Named("x" * 3_000_000)
    with ReaderPool(1, []) as pool:
        ((*_, pid),) = iterate_batches(Named("first"), range(1), pool)
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(ResourceError, match="it is stopped"):
            list(iterate_batches(large, range(1), pool))
