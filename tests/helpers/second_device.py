"""What a training does besides stepping, on the device `meta`: evaluate, measure c, go on from a checkpoint."""

import warnings

import pytest
import torch

from dspreg.algorithms.measure import profile_stack
from dspreg.algorithms.registry import algorithms, parse
from dspreg.batches import Batch
from dspreg.devices import send
from dspreg.errors import Notice
from dspreg.testing.laws import report
from dspreg.testing.toy import IMAGE, toy_batches, toy_task
from dspreg.training.evaluate import Tally
from dspreg.training.serialization import pack, unpack
from dspreg.training.step import train_step
from helpers.accelerators import Answers, Strict
from helpers.stacking import ACTING

STEPS = 4
UNMEASURED = {  # steps that measure c read numbers, which there are none of on meta; see `measure`
    "DSPReg": "DSPReg(coefficients='ones')",
    "Anchor": "Anchor(by='ones')",
    "EWC": "EWC(weight=0)",  # its gradient is Anchor's
}
SPECS = [UNMEASURED.get(name, ACTING.get(name, name)) for name in algorithms()]
MEASURING = {  # what measures c itself, as it would on a GPU
    "DSPReg": "DSPReg(measure_batches=2, refresh_steps=3)",
    "Anchor": "Anchor(measure_batches=2, refresh_steps=3)",
    "EWC": "EWC(measure_batches=1)",
}


def on(device, batches):
    return [Batch(send(b.x.float(), device), send(b.y, device), b.domain) for b in batches]


def ready(spec, device="cpu"):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        task = toy_task(inputs=IMAGE)
        measured = task.samples
        object.__setattr__(
            task, "samples", lambda t, n: {d: on(device, each) for d, each in measured(t, min(n, 2)).items()}
        )
        return parse(spec).setup(task, lambda params: torch.optim.Adam(params, lr=1e-2), device)


def require_on_meta(tensors):
    assert {t.device.type for t in tensors} == {"meta"}


def step(spec):
    """What is wrong with some steps."""
    return faults_of_steps(ready(spec, "meta"))


def faults_of_steps(stack):
    batches = [on("meta", toy_batches(t, inputs=IMAGE)) for t in range(STEPS)]
    with Strict() as mode:
        logs = [train_step(stack, each) for each in batches]
    require_on_meta([*stack.parameters(), *stack.buffers(), logs[-1]["loss"]])
    return mode.faults


def evaluate(spec):
    """What is wrong with counting correct predictions; the counts are read once for all batches."""
    stack = ready(spec, "meta")
    train_step(stack, on("meta", toy_batches(0, inputs=IMAGE)))
    stack.eval()
    counts = Tally()
    with Answers():  # SWAD keeps its weights on the host
        report(stack)
    with Strict() as mode, torch.no_grad():
        for batch in on("meta", toy_batches(1, inputs=IMAGE)):
            counts = counts.counting(stack.predict(batch.x), batch.y, losses=True)
    require_on_meta([counts.correct, counts.finite, counts.cross_entropy])
    with Answers() as reader:
        Tally.read([counts])
    return mode.faults + ([] if reader.reads == 1 else [f"the counts are read {reader.reads} times"])


def measure(spec):
    """What is wrong with measuring the stack's c, between steps: numbers may be read, and float64 is what it is in."""
    stack = ready(spec, "meta")
    with pytest.MonkeyPatch.context() as patch, Answers() as mode:
        patch.setattr("dspreg.sensitivity.evaluation_mode.refuse_mixed_samples", lambda *_: None)  # compares numbers
        found = profile_stack(stack)
    require_on_meta([t for vector in found.s.values() for t in vector.values()])
    return [fault for fault in mode.faults if "two devices" in fault]


def checkpoint(spec):
    """What is wrong after a state that was trained and saved elsewhere is loaded."""
    elsewhere = ready(spec)
    for t in range(2):
        train_step(elsewhere, on("cpu", toy_batches(t, inputs=IMAGE)))
    saved = pack((dict(elsewhere.state_dict()), elsewhere.stack.optimizer.state_dict()))
    (state, optimizer), _ = unpack(saved, "a checkpoint")
    stack = ready(spec, "meta")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "for .*: copying from a non-meta parameter")  # there are no numbers on meta
        stack.load_state_dict(state)
    stack.stack.optimizer.load_state_dict(optimizer)
    moments = [t for each in stack.stack.optimizer.state.values() for name, t in each.items() if name != "step"]
    require_on_meta([*stack.parameters(), *stack.buffers(), *moments])
    with Strict() as mode:
        for t in range(2, 4):
            train_step(stack, on("meta", toy_batches(t, inputs=IMAGE)))
    return mode.faults


WORK = {"step": step, "evaluate": evaluate, "measure": measure, "checkpoint": checkpoint}


def faults_of(work, spec):
    """What is wrong with one kind of work of a method, on a device without float64 but for measuring."""
    with pytest.MonkeyPatch.context() as patch:
        if work == "measure":
            spec = MEASURING.get(spec.partition("(")[0], spec)
        else:
            patch.setattr("dspreg.devices.WITHOUT_FLOAT64", ("mps", "meta"))
        return WORK[work](spec)
