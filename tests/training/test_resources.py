"""What a machine may be short of: it is said, with what needs less, and the run can go on later."""

import multiprocessing
import resource

import pytest
import torch

from dspreg.data import readers
from dspreg.errors import ResourceError, missing_resource, resource_errors
from dspreg.training import train
from dspreg.training.callbacks import Callback
from helpers import tiny
from helpers.limits import in_child, limit_memory

pytestmark = pytest.mark.filterwarnings("ignore::dspreg.Notice")


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return tiny.make_images(tmp_path_factory.mktemp("images") / "woods")


def trained(images, out, **execution):
    settings = tiny.settings(images, steps=4, algorithm="ERM")
    return train(settings, tiny.execution(save_every=1, **execution), out)


def test_want_of_memory_in_a_step_is_told_and_resumed(images, tmp_path):
    """A real one: the address space is limited, and torch asks for more."""

    def act():
        class Greedy(Callback):
            def on_step_end(self, step, log):
                if step == 1:
                    limit_memory(2**26)
                    torch.ones(2**28)

        try:
            settings = tiny.settings(images, steps=4, algorithm="ERM")
            train(settings, tiny.execution(save_every=1), tmp_path / "run", callbacks=[Greedy()])
        except ResourceError as error:
            return str(error)
        return "nothing was raised"

    said = in_child(act)
    assert said.startswith("not enough memory; a smaller batch_size or image_size, or fewer --workers, need less")
    trained(images, tmp_path / "run")
    trained(images, tmp_path / "whole")
    assert tiny.ending(tmp_path / "run") == tiny.ending(tmp_path / "whole")


class Greedy:
    """Has too little memory at 1."""

    def __init__(self, make):
        self.make = make

    def __getitem__(self, i):
        if i == 1:
            limit_memory(2**26)
            return self.make(2**30)
        return i


@pytest.mark.parametrize("make", [bytearray, torch.ones])
def test_want_of_memory_in_a_reader_is_that_of_the_training(make):
    with pytest.raises(ResourceError, match="not enough memory; need less"), resource_errors("need less"):
        list(readers.iterate_batches(Greedy(make), range(4), 2))


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(12, "Cannot allocate memory"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you …"),
        RuntimeError("std::bad_alloc"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("can't start new thread"),
        OSError(24, "Too many open files"),
    ],
)
def test_errors_of_the_machine_are_known(error):
    assert missing_resource(error)
    with pytest.raises(ResourceError) as told, resource_errors("do less"):
        raise error
    assert told.value.exit_code == 6
    assert "do less" in str(told.value)


@pytest.mark.parametrize("error", [RuntimeError("shapes differ"), ValueError("out of memory"), OSError(2, "no file")])
def test_errors_of_other_kinds_stay(error):
    with pytest.raises(type(error)) as kept, resource_errors("do less"):
        raise error
    assert kept.value is error


def test_sixty_four_file_descriptors_are_enough(images, tmp_path):
    def act():
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        trained(images, tmp_path / "run", workers=4)
        return True

    assert in_child(act, 120)
    trained(images, tmp_path / "whole")
    assert tiny.ending(tmp_path / "run") == tiny.ending(tmp_path / "whole")


def test_a_failed_evaluation_leaves_no_reader(images, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise ValueError("in the middle")

    monkeypatch.setattr("dspreg.training.evaluate.Tally.counting", fail)
    with pytest.raises(ValueError, match="in the middle") as kept:
        trained(images, tmp_path / "run", workers=2)
    assert multiprocessing.active_children() == []
    assert kept.value.__traceback__ is not None
