"""A trained stack as tensors and back: all of it, and nothing else."""

import pytest
import torch

from dspreg.algorithms import parse
from dspreg.errors import IntegrityError
from dspreg.testing import ready, toy_batches
from dspreg.training import train_step
from dspreg.training.model import Model, load_tensors, tensors_of


def trained(spec="GroupDRO+DSPReg", steps=3):
    stack = ready(parse(spec))
    for t in range(steps):
        train_step(stack, toy_batches(t))
    return stack


def test_the_network_keeps_its_names_and_what_layers_hold_is_beside_it():
    stack = trained()
    tensors = tensors_of(stack)
    own = {name for name in tensors if not name.startswith("stack.")}
    assert own == set(stack.net.state_dict())
    assert [name.rpartition(".")[2] for name in set(tensors) - own] == ["log_q"]
    assert sum(t.numel() for n, t in tensors.items() if n in own) == sum(p.numel() for p in stack.net.parameters())


def test_tensors_are_copies():
    stack = trained()
    tensors = tensors_of(stack)
    before = {name: t.clone() for name, t in tensors.items()}
    train_step(stack, toy_batches(9))
    assert all(torch.equal(tensors[name], t) for name, t in before.items())
    assert not any(t.requires_grad for t in tensors.values())


def test_a_fresh_stack_predicts_as_the_trained_one_after_loading():
    stack, fresh = trained(), trained(steps=0)
    x = toy_batches(5)[0].x
    stack.eval(), fresh.eval()
    assert not torch.equal(fresh.predict(x), stack.predict(x))
    load_tensors(fresh, tensors_of(stack), "here")
    assert torch.equal(Model(fresh, ("a", "b", "c")).eval()(x), stack.predict(x))
    again = tensors_of(fresh)
    assert all(torch.equal(again[name], t) for name, t in tensors_of(stack).items())


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda t: t.pop("classifier.bias"), r"^here: the tensor classifier\.bias is missing; the model has \(\(3,\)"),
        (lambda t: t.update(extra=torch.ones(1)), r"the tensor extra is \(\(1,\), torch.float32\); the model has none"),
        (lambda t: t.update({"classifier.bias": torch.ones(4).double()}), r"classifier\.bias is \(\(4,\), .* \(\(3,\)"),
        (lambda t: t.update({"classifier.bias": torch.ones(3)}), r"is \(\(3,\), torch\.float32\); .*torch\.float64"),
        (lambda t: [t.pop(n) for n in list(t) if n.startswith("stack.")], r"the tensor stack\..*log_q is missing"),
    ],
)
def test_tensors_of_another_model_are_refused_and_nothing_is_loaded(spoil, message):
    stack = trained(steps=0)
    before, tensors = tensors_of(stack), tensors_of(trained())
    spoil(tensors)
    with pytest.raises(IntegrityError, match=message):
        load_tensors(stack, tensors, "here")
    assert all(torch.equal(t, before[name]) for name, t in tensors_of(stack).items())
