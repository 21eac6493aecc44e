"""`backward(accelerator, penalty, closure)` is the plain loop, to the bit."""

from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F

import dspreg
from dspreg.randomness import untouched

accelerate = pytest.importorskip("accelerate", reason="needs accelerate: make integrations")

from dspreg.integrations.accelerate import backward  # noqa: E402
from helpers.plain_loop import EVERY, MEASURE, OPTIONS, domains, equal, loader, network, plain  # noqa: E402


def make(**how):
    accelerator = accelerate.Accelerator(cpu=True, **how)
    model = network().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-2)
    model, optimizer = accelerator.prepare(model, optimizer)
    penalty = dspreg.Penalty(model, **OPTIONS)
    accelerator.register_for_checkpointing(penalty)
    return accelerator, model, optimizer, penalty


def go(made, steps):
    accelerator, model, optimizer, penalty = made
    losses = []
    with untouched() if steps.start else nullcontext():  # a loader draws a number when it begins
        batches = list(enumerate(loader()))[steps]
    for step, (x, y) in batches:
        if step and step % EVERY == 0:
            penalty.refresh(domains(), **MEASURE)
        with accelerator.accumulate(model):
            losses.append(backward(accelerator, penalty, lambda: F.cross_entropy(model(x), y)).item())  # noqa: B023
            optimizer.step()
            optimizer.zero_grad()
    return losses


def test_it_is_the_plain_loop_to_the_bit():
    other, losses, _ = plain()
    made = make()
    torch.manual_seed(1)
    assert go(made, slice(None)) == losses
    assert equal(made[1], other)


def test_its_checkpoints_hold_the_penalty(tmp_path):
    _, losses, _ = plain()
    made, again = make(), make()
    torch.manual_seed(1)
    first = go(made, slice(0, 4))
    made[0].save_state(str(tmp_path))
    again[0].load_state(str(tmp_path))
    assert again[3].steps == 4
    assert first + go(again, slice(4, None)) == losses


@pytest.mark.parametrize("engine", ["exact", "lookahead"])
def test_accumulated_gradients_are_the_mean_of_the_penalised_ones(engine):
    """In float64, where g and g/k times λk are compared."""
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = network().double().eval()
    batches = [(x.double(), y) for x, y in loader()][:2]
    penalty = dspreg.Penalty(model, weight=0.05, engine=engine)
    seen = [backward(accelerator, penalty, lambda: F.cross_entropy(model(x), y)).item() for x, y in batches]  # noqa: B023
    found = [p.grad.clone() for p in model.parameters()]
    assert penalty.weight == 0.05
    model.zero_grad()
    wanted = [0.0 for _ in found]
    for i, (x, y) in enumerate(batches):
        plain = dspreg.Penalty(model, weight=0.05, engine=engine)
        loss = plain.backward(lambda: F.cross_entropy(model(x), y))  # noqa: B023
        assert loss.item() == seen[i]
        wanted = [w + p.grad / 2 for w, p in zip(wanted, model.parameters(), strict=True)]
        model.zero_grad()
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-13)
