"""What a class of DomainBed's holds beside its parameters: a resumed one goes on as one that was never stopped."""

import math
import random
from collections import Counter, OrderedDict, defaultdict, deque

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, MultiStepLR, ReduceLROnPlateau, StepLR

from dspreg.algorithms.foreign_state import restore_attributes, saved_attributes_of
from dspreg.training.serialization import pack, unpack

SCHEDULERS = {
    "step": lambda o: StepLR(o, 2, 0.5),
    "milestones": lambda o: MultiStepLR(o, [2, 2, 5], 0.5),
    "cosine": lambda o: CosineAnnealingLR(o, 7),
    "lambda": lambda o: LambdaLR(o, lambda epoch: 1 / (1 + epoch)),
    "plateau": lambda o: ReduceLROnPlateau(o, patience=0),
}


class Method(nn.Module):
    """Everything it has moves in a step, and all of it decides the next one."""

    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.ones(2)) for _ in SCHEDULERS])
        self.optimizers = [torch.optim.SGD([w], lr=1.0) for w in self.weights]
        self.schedulers = {name: make(o) for (name, make), o in zip(SCHEDULERS.items(), self.optimizers, strict=True)}
        self.recent, self.seen, self.array = deque([0.0], maxlen=3), {0}, np.zeros(2)
        self.by_name, self.ordered, self.counts = defaultdict(list), OrderedDict(a=1), Counter()
        self.torch, self.numpy, self.python = (
            torch.Generator().manual_seed(1),
            np.random.RandomState(1),
            random.Random(1),
        )
        self.best = math.inf

    def step(self):
        noise = torch.rand((), generator=self.torch).item() + self.numpy.rand() + self.python.random()
        before = sum(self.recent) + len(self.seen) + float(self.array.sum()) + len(self.by_name["x"]) + self.counts["y"]
        for w, optimizer in zip(self.weights, self.optimizers, strict=True):
            optimizer.zero_grad()
            ((w * before + noise) * torch.arange(2)).sum().backward()
            optimizer.step()
        for name, scheduler in self.schedulers.items():
            scheduler.step(*([1.0] if name == "plateau" else []))
        self.recent.append(noise)
        self.seen.add(len(self.seen))
        self.array += noise
        self.by_name["x"].append(noise)
        self.counts["y"] += 1
        self.ordered[str(len(self.ordered))] = noise
        self.best = min(self.best, noise)


def test_a_resumed_method_goes_on_as_if_it_had_never_stopped():
    whole, first = Method(), Method()
    for _ in range(7):
        whole.step()
    for _ in range(3):
        first.step()
    saved, _ = unpack(pack(saved_attributes_of(first)), "here")
    second = Method()
    second.load_state_dict(first.state_dict())
    restore_attributes(second, saved)
    for _ in range(4):
        second.step()
    for ours, theirs in zip(second.weights, whole.weights, strict=True):
        assert torch.equal(ours, theirs)
    assert [o.param_groups[0]["lr"] for o in second.optimizers] == [o.param_groups[0]["lr"] for o in whole.optimizers]
    for name in ("recent", "seen", "by_name", "ordered", "counts", "best"):
        assert getattr(second, name) == getattr(whole, name), name
        assert type(getattr(second, name)) is type(getattr(whole, name)), name
    assert second.recent.maxlen == 3
    assert second.by_name["new"] == []
    assert np.array_equal(second.array, whole.array)
    assert second.schedulers["step"].optimizer is second.optimizers[0]


def test_equal_states_have_equal_bytes():
    one, other = Method(), Method()
    one.seen, other.seen = {"a", "b", "c", 1}, {1, "c", "b", "a"}
    assert pack(saved_attributes_of(one)) == pack(saved_attributes_of(other))
