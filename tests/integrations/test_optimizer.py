"""An optimiser with a closure is the plain loop, to the bit."""

from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dspreg
from dspreg.errors import ConfigError
from dspreg.integrations.optimizer import PenaltyOptimizer
from dspreg.randomness import untouched
from helpers.plain_loop import EVERY, MEASURE, OPTIONS, domains, equal, loader, network, plain


def make(clip=False):
    model = network().train()
    inside = torch.optim.AdamW(model.parameters(), lr=3e-2)
    more = {"clip": lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.1)} if clip else {}
    return model, PenaltyOptimizer(inside, dspreg.Penalty(model, **OPTIONS), **more)


def go(model, optimizer, steps, rate=None):
    losses = []
    with untouched() if steps.start else nullcontext():  # a loader draws a number when it begins
        batches = list(enumerate(loader()))[steps]
    for step, (x, y) in batches:
        if step and step % EVERY == 0:
            optimizer.penalty.refresh(domains(), **MEASURE)
        losses.append(optimizer.step(lambda: F.cross_entropy(model(x), y)).item())  # noqa: B023
        if rate:
            rate.step()
    return losses


@pytest.mark.parametrize(("schedule", "clip"), [(False, False), (True, True)])
def test_it_is_the_plain_loop_to_the_bit_with_schedules_and_clipping(schedule, clip):
    other, losses, _ = plain(schedule=schedule, clip=clip)
    model, optimizer = make(clip)
    rate = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5) if schedule else None
    torch.manual_seed(1)
    assert go(model, optimizer, slice(None), rate) == losses
    assert equal(model, other)
    without, *_ = plain(schedule=schedule, clip=clip, options={"weight": 0})
    assert not equal(model, without)  # there is something to be equal to


def test_resumed_from_its_state_it_goes_on_to_the_same_bits():
    other, losses, _ = plain()
    (model, optimizer), (again, fresh) = make(), make()
    torch.manual_seed(1)
    first = go(model, optimizer, slice(0, 4))
    again.load_state_dict(model.state_dict())
    fresh.load_state_dict(optimizer.state_dict())
    assert first + go(again, fresh, slice(4, None)) == losses
    assert equal(again, other)


def test_groups_added_later_are_the_inner_ones():
    _, optimizer = make()
    extra = nn.Parameter(torch.zeros(1))
    optimizer.add_param_group({"params": [extra], "lr": 1.0})
    assert optimizer.param_groups is optimizer.optimizer.param_groups
    assert len(optimizer.param_groups) == 2
    assert optimizer.param_groups[1]["lr"] == 1.0


def test_what_it_can_not_do_is_refused():
    model, optimizer = make()
    x, y = next(iter(loader()))

    def backward():
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    with pytest.raises(ConfigError, match="the closure calls backward"):
        optimizer.step(backward)
    with pytest.raises(ConfigError, match="no closure"):
        optimizer.step()
    with pytest.raises(ConfigError, match="LBFGS"):
        PenaltyOptimizer(torch.optim.LBFGS(model.parameters()), optimizer.penalty)
