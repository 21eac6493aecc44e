"""How batches get to a GPU: from pinned memory, without waiting, one ahead. Seen by what is called."""

import pytest
import torch

from dspreg.config.train_config import TrainConfig
from dspreg.data import loader
from dspreg.data.loader import send_ahead
from dspreg.devices import send
from dspreg.training.optimizers import make_adam


class Told:
    """In place of a tensor: writes down what is asked of it."""

    def __init__(self):
        self.calls = []

    def pin_memory(self):
        self.calls.append("pin_memory")
        return self

    def to(self, device, **how):
        self.calls.append((str(device), how))
        return self


@pytest.mark.parametrize("device", ["cuda", "cuda:1", torch.device("cuda:1")])
def test_a_gpu_gets_pinned_memory_and_is_not_waited_for(device):
    told = Told()
    assert send(told, device) is told
    assert told.calls == ["pin_memory", (str(device), {"non_blocking": True})]


@pytest.mark.parametrize("device", ["cpu", "mps"])
def test_others_get_a_plain_copy(device):
    """Without pinned memory a copy in the background may read what has changed since."""
    told = Told()
    send(told, device)
    assert told.calls == [(device, {})]


def test_on_the_cpu_nothing_is_copied():
    x = torch.ones(3)
    assert send(x, "cpu") is x


def made(number, events):
    """The batches of some steps, of two domains each."""
    try:
        for t in range(number):
            events.append(f"made {t}")
            yield [(torch.full((1,), t), torch.full((1,), 10 * t)), (torch.full((1,), -t), torch.full((1,), t))]
    finally:
        events.append("closed")


@pytest.fixture
def events(monkeypatch):
    found = []

    def note(tensor, device):
        found.append(f"sent {int(tensor)} to {device}")
        return tensor

    monkeypatch.setattr(loader, "send", note)
    return found


def test_the_next_batch_is_on_its_way_when_one_is_handed_over(events):
    batches = send_ahead(made(3, events), "cuda")
    first = next(batches)
    assert [int(x) for x, _ in first] == [0, 0]
    assert [each for each in events if each.startswith("made")] == ["made 0", "made 1"]
    assert events.count("sent 1 to cuda") == 2  # an image and a label of step 1
    assert [[int(x) for x, _ in each] for each in batches] == [[1, -1], [2, -2]]
    assert events[-1] == "closed"


@pytest.mark.parametrize("number", [0, 1, 2])
def test_none_is_lost_and_none_comes_twice(events, number):
    found = [int(each[0][0]) for each in send_ahead(made(number, events), "cuda")]
    assert found == list(range(number))


def test_on_the_cpu_none_is_made_before_it_is_asked_for(events):
    batches = send_ahead(made(3, events), "cpu")
    next(batches)
    assert events == ["made 0"]
    batches.close()
    assert events == ["made 0", "closed"]


def test_who_stops_reading_ends_the_readers(events):
    batches = send_ahead(made(5, events), "cuda")
    next(batches)
    batches.close()
    assert events[-1] == "closed"


def test_adam_is_one_kernel_on_a_gpu_and_what_it_was_on_the_cpu():
    settings = TrainConfig(dataset="digits", lr=0.1, weight_decay=0.01)
    weight = torch.nn.Parameter(torch.ones(2))
    assert [make_adam([weight], settings, device).defaults["fused"] for device in ("cuda:1", "mps")] == [True, True]
    ours, plain = make_adam([weight], settings, "cpu"), torch.optim.Adam([weight], lr=0.1, weight_decay=0.01)
    assert ours.state_dict() == plain.state_dict()
    assert not ours.defaults["fused"]
