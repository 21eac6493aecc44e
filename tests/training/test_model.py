"""A trained stack as tensors and back: all of it, and nothing else."""

import pytest
import torch

from dspreg.algorithms import Algorithm, DSPReg, parse
from dspreg.errors import IntegrityError, Notice
from dspreg.testing import ready, toy_batches
from dspreg.training import train_step
from dspreg.training.model import Model, load_tensors, tensors_of
from dspreg.vectors import ParamVector, standing_at, theta


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


class Kinds(Algorithm):
    """Predicts with one attribute of every kind."""

    saved_attributes = ("vector", "later", "tensor", "whole", "real", "flag", "nothing")

    def __init__(self, base=None):
        super().__init__(base)
        self.vector, self.tensor, self.whole, self.real, self.flag = ParamVector(), torch.ones(3), 0, 0.5, False
        self.later = self.nothing = None

    def on_step_end(self):
        self.vector = self.later = theta(self.net)
        self.tensor, self.whole, self.real, self.flag = self.tensor * 2, self.whole + 1, self.real / 3, True

    def predict(self, x):
        with standing_at(self.net, self.vector):
            return self.base.predict(x) * self.real + self.whole + self.flag + self.tensor.sum()


def test_attributes_that_a_prediction_needs_keep_their_kind():
    stack, fresh = ready(DSPReg(Kinds(), refresh_steps=1)), ready(DSPReg(Kinds(), refresh_steps=1))
    with pytest.warns(Notice, match=r"Kinds\.predict is no differentiable function"):
        train_step(stack, toy_batches(0)), train_step(stack, toy_batches(1))
    tensors = tensors_of(stack)
    beside = {name for name in tensors if name.startswith("stack.")}
    names = {f"stack.base.{attribute}.{name}" for name in theta(stack.net) for attribute in ("vector", "later")}
    assert beside == names | {f"stack.base.{name}" for name in ("tensor", "whole", "real", "flag")}  # c is not needed
    load_tensors(fresh, tensors, "here")
    for name in Kinds.saved_attributes:
        ours, theirs = getattr(stack.base, name), getattr(fresh.base, name)
        assert type(ours) is type(theirs), name
        if isinstance(ours, ParamVector):
            assert torch.equal(ours.flat(), theirs.flat())
        elif isinstance(ours, torch.Tensor):
            assert torch.equal(ours, theirs)
        else:
            assert ours == theirs
    x = toy_batches(5)[0].x
    assert torch.equal(stack.eval().predict(x), fresh.eval().predict(x))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda t: t.pop("stack.whole"), r"^here: the tensor stack\.whole is missing; Kinds needs it to predict"),
        (lambda t: t.update({"stack.other": torch.ones(1)}), r"the tensor stack\.other is .*; the model has none"),
        (lambda t: t.update({"stack.vector.classifier.bias": torch.ones(4)}), r"is \(4,\); the parameter has \(3,\)"),
    ],
)
def test_attributes_of_another_model_are_refused_and_nothing_is_loaded(spoil, message):
    stack, fresh = ready(Kinds()), ready(Kinds())
    train_step(stack, toy_batches(0))
    tensors, before = tensors_of(stack), tensors_of(fresh)
    spoil(tensors)
    with pytest.raises(IntegrityError, match=message):
        load_tensors(fresh, tensors, "here")
    after = tensors_of(fresh)
    assert after.keys() == before.keys()
    assert all(torch.equal(t, before[name]) for name, t in after.items())
