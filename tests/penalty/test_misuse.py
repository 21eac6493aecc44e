"""What people do by mistake, and what they are told."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dspreg
from helpers.environments import Problem

PROBLEM = Problem("smooth")
X, Y = PROBLEM.x, PROBLEM.y


@pytest.fixture
def model():
    return copy.deepcopy(PROBLEM.net)


def backward(model, closure, **options):
    return dspreg.Penalty(model, weight=1e-2, engine="lookahead").backward(closure, **options)


CLOSURES = {
    "a loss instead of a closure": (
        lambda m: F.cross_entropy(m(X), Y),
        "a computed loss; wanted a function that computes it",
    ),
    "not a function": (lambda m: None, "was given a NoneType; wanted a function"),
    "an empty list": (lambda m: [], "an empty list; wanted at least one closure"),
    "loss not scalar": (
        lambda m: lambda: F.cross_entropy(m(X), Y, reduction="none"),
        r"a loss of shape \(12,\); wanted a scalar",
    ),
    "detached loss": (lambda m: lambda: F.cross_entropy(m(X), Y).detach(), "the closure's loss has no gradient"),
    "a number": (lambda m: lambda: F.cross_entropy(m(X), Y).item(), "the closure returned a float; wanted a scalar"),
    "nothing returned": (lambda m: lambda: None, "the closure returned a NoneType"),
}


@pytest.mark.parametrize("case", CLOSURES)
def test_closures(case, model):
    make, message = CLOSURES[case]
    with pytest.raises(dspreg.ConfigError, match=message):
        backward(model, make(model))
    assert all(p.grad is None for p in model.parameters())


def test_inference_mode(model):
    with torch.inference_mode(), pytest.raises(dspreg.ConfigError, match="inference mode is on"):
        backward(model, lambda: F.cross_entropy(model(X), Y))


def test_no_grad_around_it_does_no_harm(model):
    other = copy.deepcopy(model)
    with torch.no_grad():
        backward(model, lambda: F.cross_entropy(model(X), Y))
    backward(other, lambda: F.cross_entropy(other(X), Y))
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)


def test_model_changed_since_refresh(model):
    penalty = dspreg.Penalty(model, engine="lookahead")
    penalty.refresh({"a": [(X, Y)] * 2, "b": [(X + 1, Y)] * 2})
    model[3] = nn.Linear(36, 5).double()
    message = r"the model has changed since c was measured: '3.weight' has shape \(5, 36\), and its c has shape \(3"
    with pytest.raises(dspreg.ConfigError, match=message):
        penalty.backward(lambda: F.cross_entropy(model(X), Y))
    model.append(nn.Linear(5, 3).double())
    model[3] = nn.Linear(36, 3).double()
    with pytest.raises(dspreg.ConfigError, match=r"'4.weight' has shape \(3, 5\), and there is no c for it"):
        penalty.backward(lambda: F.cross_entropy(model[:4](X), Y))


COEFFICIENTS = {
    "missing": (
        lambda c: {n: t for n, t in c.items() if n != "0.bias"},
        "coefficients are missing for '0.bias'",
    ),
    "NaN": (lambda c: c | {"0.bias": c["0.bias"] * float("nan")}, "c of '0.bias' has NaN or infinite numbers"),
    "negative": (lambda c: c | {"0.bias": -c["0.bias"]}, "c of '0.bias' has negative numbers"),
    "shape": (lambda c: c | {"0.bias": c["0.bias"][:2]}, r"c of '0.bias' is of shape \(2,\); wanted a tensor of shape"),
    "a number": (lambda c: c | {"0.bias": 1.0}, "c of '0.bias' is a float; wanted a tensor"),
    "not a mapping": (lambda c: list(c.values()), "coefficients are a list; wanted a mapping"),
}


@pytest.mark.parametrize("case", COEFFICIENTS)
def test_coefficients(case, model):
    change, message = COEFFICIENTS[case]
    penalty = dspreg.Penalty(model)
    with pytest.raises(dspreg.ConfigError, match=message):
        penalty.coefficients = change(dict(PROBLEM.c))
    assert all((c == 1).all() for c in penalty.coefficients.values())  # nothing half taken over


def test_one_domain(model):
    with pytest.raises(dspreg.DataError, match=r"1 domain\(s\); wanted a mapping from name to loader with"):
        dspreg.Penalty(model).refresh({"a": [(X, Y)]})


def test_patterns_are_chosen_once(model):
    with pytest.raises(dspreg.ConfigError, match="only= is set once, by Penalty"):
        dspreg.Penalty(model).refresh({"a": [(X, Y)], "b": [(X, Y)]}, only="0.*")
    with pytest.raises(dspreg.ConfigError, match=r"the pattern '9.*' matches no parameter"):
        dspreg.Penalty(model, only="9.*")


@pytest.mark.parametrize("engine", ["exact", "lazy(30, exact)"])
def test_compiled_with_exact(engine, model):
    message = "engine 'exact' differentiates twice, which torch.compile cannot. Use engine 'lookahead'"
    with pytest.raises(dspreg.ConfigError, match=message):
        dspreg.Penalty(torch.compile(model, backend="aot_eager"), engine=engine)
    model[0] = torch.compile(model[0], backend="aot_eager")
    with pytest.raises(dspreg.ConfigError, match=message):
        dspreg.Penalty(model, engine=engine)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_closure_with_exact(model):
    torch._dynamo.reset()
    forward = torch.compile(lambda x: model(x), backend="aot_eager")
    penalty = dspreg.Penalty(model, engine="exact")
    with pytest.raises(dspreg.ConfigError, match=r"which torch.compile cannot"):
        penalty.backward(lambda: F.cross_entropy(forward(X), Y))
    assert all(p.grad is None for p in model.parameters())


def test_sharded_models(model):
    class FullyShardedDataParallel(nn.Sequential):
        """Known by its name: the real one wants a process group."""

    with pytest.raises(dspreg.ConfigError, match=r"the model is sharded \(FullyShardedDataParallel\)"):
        dspreg.Penalty(FullyShardedDataParallel(model))


@pytest.mark.parametrize("engine", ["lookahead", "momentum", "lazy(30)"])
def test_parameters_in_half_precision(engine, model):
    with pytest.raises(dspreg.ConfigError, match=r"parameters in half precision \('0.weight'.*Keep them in float32"):
        dspreg.Penalty(model.bfloat16(), engine=engine)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weight": float("nan")}, "weight=nan; wanted a finite number"),
        ({"weight": -1.0}, "weight=-1.0; wanted a finite number"),
        ({"engine": "lookahed"}, "no engine 'lookahed'"),
        ({"warmup": -1}, "warmup=-1; wanted"),
    ],
)
def test_options(options, message, model):
    with pytest.raises(dspreg.ConfigError, match=message):
        dspreg.Penalty(model, **options).backward(lambda: F.cross_entropy(model(X), Y))


def test_what_is_no_model():
    with pytest.raises(dspreg.ConfigError, match=r"the model is a function; wanted an nn.Module"):
        dspreg.Penalty(lambda x: x)
    with pytest.raises(dspreg.ConfigError, match="has no trainable parameter"):
        dspreg.Penalty(nn.Linear(2, 2).requires_grad_(False))


def test_sparse_gradients():
    model = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Flatten(), nn.Linear(12, 3))
    tokens = torch.randint(10, (5, 3))
    with pytest.raises(dspreg.ConfigError, match=r"the gradient of '0.weight' is sparse"):
        backward(model, lambda: F.cross_entropy(model(tokens), torch.randint(3, (5,))))


@pytest.mark.parametrize(
    ("weight", "said"),
    [
        ("0.1", "weight='0.1' is a str; wanted a number"),
        (True, "weight=True is a bool; wanted a number"),
        (None, "weight=None is a NoneType"),
        (1j, "is a complex"),
        (torch.ones(2), r"is a Tensor; wanted a number"),
        (float("nan"), "weight=nan; wanted a finite number"),
        (float("inf"), "weight=inf; wanted a finite number"),
        (1e300, r"weight=1e\+300; wanted a finite number ≥ 0 that float32 can hold"),
        (-1e-9, "weight=-1e-09; wanted a finite number"),
    ],
)
def test_a_weight_that_is_none_is_refused_where_it_is_given(model, weight, said):
    with pytest.raises(dspreg.ConfigError, match=said):
        dspreg.Penalty(model, weight=weight)
    penalty = dspreg.Penalty(model)
    with pytest.raises(dspreg.ConfigError, match=said):
        penalty.weight = weight
    assert penalty.weight == 1e-3


@pytest.mark.parametrize("weight", [0, 1, 0.5, np.float32(0.5), np.int64(2), torch.tensor(0.25)])
def test_a_weight_may_be_any_number(model, weight):
    assert dspreg.Penalty(model, weight=weight).weight == float(weight)


@pytest.mark.parametrize("warmup", ["3", 1.5, True, -1, None])
def test_a_warmup_that_is_no_number_of_steps(model, warmup):
    with pytest.raises(dspreg.ConfigError, match="wanted a number of steps"):
        dspreg.Penalty(model, warmup=warmup)
