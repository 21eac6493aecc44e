"""Every method as a GPU would run it: all tensors on one device, no double precision, and nothing read in a step.

Nothing here needs a GPU. `meta` is a second device without numbers, so that reading one raises, and dispatch modes look
at each operation (`tests/helpers/accelerators.py`).
"""

import pytest
import torch

from dspreg.algorithms import Algorithm
from dspreg.algorithms.registry import algorithms
from dspreg.testing.toy import IMAGE, toy_batches, toy_task
from dspreg.training.step import train_step
from helpers.accelerators import Waits
from helpers.second_device import MEASURING, SPECS, STEPS, faults_of, faults_of_steps, on, ready
from helpers.stacking import ACTING

STACKS = [
    "CORAL+DSPReg(coefficients='ones')",
    "Mixup+GroupDRO+CORAL",
    "MixStyle+MIRO+SAGM",
    "Fishr(warmup=1)+GroupDRO",
    "DSPReg(coefficients='ones', engine='lookahead')+SAM",
    "DSPReg(coefficients='ones', engine='exact')",
    "DSPReg(coefficients='ones', engine='gauss_newton')",
    "DSPReg(coefficients='ones', engine='momentum')+Fish",
    "DSPReg(coefficients='ones', engine='lazy(2)')",
    "DANN(mlp_width=16, grad_penalty=1.0)+EMA",
    "GMDG+Agreement",
    "Agreement(control='matched')",
    "Consensus(control='matched')",
    "Mixup+DomainDrop+RandConv",
    "JiGen+ANDMask",
]
EXPERIMENTAL = ["FisherTune(warmup=1, refresh_steps=2, measure_batches=1)"]
ALLOWED = {  # what the host has to know, and why
    "DSPReg(engine='central', measure_batches=2, refresh_steps=3)": 1,  # the radius; it is for tests
}


@pytest.mark.parametrize("spec", [*SPECS, *STACKS])
def test_every_method_steps_on_a_second_device(spec):
    assert faults_of("step", spec) == []


@pytest.mark.parametrize("work", ["evaluate", "measure", "checkpoint"])
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.filterwarnings("ignore::dspreg.errors.Notice")
def test_what_is_done_between_steps_is_done_on_the_second_device(spec, work):
    assert faults_of(work, spec) == []


class Stray(Algorithm):
    """Does everything wrong that the modes are for, one thing at a time."""

    def __init__(self, base=None, *, what: str):
        super().__init__(base)
        self.what = what

    def loss(self, out):
        more = {
            "mixed": lambda: (out.features[:3, :3] + torch.ones(3, 3)).sum(),
            "float64": lambda: out.features.double().sum().float(),
            "blocking": lambda: (out.features[:, :1] * torch.ones(1, 1).to(out.features.device)).sum(),
            "item": lambda: out.features.sum() * out.features.detach().mean().item(),
            "branch": lambda: out.features.sum() if out.features.sum() > 0 else -out.features.sum(),
            "mask": lambda: out.features[out.features > 0].sum(),
            "nonzero": lambda: out.features[(out.labels > 0).nonzero()[:, 0]].sum(),
            "cpu": lambda: out.features.detach().cpu().sum() * out.features.sum(),
            "host": lambda: out.features.sum() * float(torch.rand(())),  # is no fault: the host's own number
        }
        return self.base.loss(out) + 0.1 * more[self.what]()


def stray(what, device="cpu"):
    return Stray(what=what).setup(toy_task(inputs=IMAGE), lambda params: torch.optim.Adam(params, lr=1e-2), device)


@pytest.mark.parametrize(("what", "says"), [("float64", "float64"), ("blocking", "send")])
def test_what_is_on_the_wrong_device_is_found(what, says):
    assert any(says in fault for fault in faults_of_steps(stray(what, "meta")))


def waits_of(stack, steps=STEPS):
    """What each step waits for that measures no c."""
    found = []
    for t in range(steps):
        batches = on("cpu", toy_batches(t, inputs=IMAGE))
        mode = Waits([*stack.parameters()], [*stack.buffers()], [(b.x, b.y) for b in batches])
        for layer in stack.layers():
            mode.note([v for value in vars(layer).values() for v in vectors(value)])
        with mode:
            train_step(stack, batches)
        if t not in {getattr(layer, "refreshed_at", None) for layer in stack.layers()}:
            found.append(mode.found)
    return found


def vectors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for t in value.values() if isinstance(t, torch.Tensor)] if hasattr(value, "values") else []


MEASURED = [MEASURING.get(name, ACTING.get(name, name)) for name in algorithms()]  # but not in the steps looked at


@pytest.mark.filterwarnings("ignore::dspreg.errors.Notice")
@pytest.mark.parametrize("spec", [*MEASURED, *STACKS, *ALLOWED, *EXPERIMENTAL])
def test_no_step_waits_for_the_device(spec):
    found = waits_of(ready(spec))
    assert len(found) >= 2
    if spec in ALLOWED:
        assert [set(each) for each in found] == [{"aten::_local_scalar_dense: a number is read"}] * len(found)
        assert {len(each) for each in found} == {ALLOWED[spec]}
    else:
        assert found == [[]] * len(found)


@pytest.mark.parametrize("what", ["item", "branch", "mask", "nonzero", "cpu", "host"])
def test_what_waits_is_found(what):
    found = waits_of(stray(what), steps=2)
    assert all(found) if what not in ("host", "cpu") else not any(found)  # on the CPU .cpu() is no operation


@pytest.mark.parametrize("what", ["mixed", "item", "branch", "nonzero", "cpu"])
def test_what_waits_or_mixes_can_not_be_on_meta(what):
    with pytest.raises((RuntimeError, NotImplementedError)):
        faults_of_steps(stray(what, "meta"))
