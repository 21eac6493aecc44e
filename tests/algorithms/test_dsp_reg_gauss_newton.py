"""DSP-Reg with `gauss_newton` and with parts of the batch, in stacks.

f are all outputs that the stack's layers make of a batch, features and extras too, and the loss is all layers' losses.
The reference takes J v by a central difference of these outputs, differentiates the loss twice at them, and pulls the
result back.
"""

import warnings

import pytest
import torch

from dspreg import ConfigError, Notice, ParamVector
from dspreg.algorithms import ERM, Algorithm, DSPReg, parse
from dspreg.algorithms.dsp_reg import couples_samples
from dspreg.batches import Batch
from dspreg.penalty.tangent import sample_batches
from dspreg.testing import ready, toy_batches, toy_task
from dspreg.testing.toy import IMAGE
from dspreg.training import train_step
from dspreg.vectors import displaced, gradient, theta, trainable

WEIGHT = 0.05
SIZES = (6, 9, 5)
BASES = ["ERM", "Mixup", "GroupDRO(eta=1)", "CORAL", "MMD", "VREx(warmup=0)", "IRM(warmup=0)", "Fishr(warmup=0)"]
BASES += ["DANN(mlp_width=16)", "MTL", "SagNet", "MIRO", "MixStyle(p=1.0)", "ARM(width=4)", "Mixup+CORAL+GroupDRO"]
ENGINES = ["gauss_newton", "gauss_newton(part=0.5)", "exact(part=0.5)"]


class Caught(Algorithm):
    """Looks, in the step itself, at what DSP-Reg below returned and at what it should have."""

    def gradient(self, objective, batches):
        layer = self.base
        _, found = layer.gradient(objective, batches)
        layer.weight, weight = 0.0, layer.weight
        loss, g = layer.gradient(objective, batches)
        layer.weight = weight
        self.found, self.g = found - g, g
        v = layer.c * g
        if "part" in layer.engine:
            objective, batches, *_ = sample_batches(objective, batches, (*self.task.key, self.t), 0.5)
        self.target = 2 * weight * (self.hessian if "exact" in layer.engine else self.linearised)(objective, batches, v)
        return loss, g

    def hessian(self, objective, batches, v):
        g = gradient(objective(batches), self.net, create_graph=True)
        return gradient(g.dot(v), self.net)

    def linearised(self, objective, batches, v):
        h, ends = 1e-5 / v.norm(), []
        for sign in (1, -1):
            with displaced(self.net, v * (sign * h)):
                ends.append({n: t.detach() for n, t in objective.evaluate(self.tensors, batches).items()})
        change = {n: (ends[0][n] - ends[1][n]) / (2 * h) for n in ends[0]}

        def pull_back(out):
            now = self.tensors(out)
            places = {n: t.detach().requires_grad_() for n, t in now.items()}
            changed = out.replace(features=places["features"], logits=places["logits"])
            extras = {n: places[f"extras.{n}"] for n in out.extras}
            loss, where = objective.loss(changed.replace(extras=extras)), list(places.values())
            slopes = torch.autograd.grad(loss, where, create_graph=True, allow_unused=True)
            along = sum((s * c).sum() for s, c in zip(slopes, change.values(), strict=True) if s is not None)
            bent = torch.autograd.grad(along, where, materialize_grads=True)
            params = trainable(self.net)
            found = torch.autograd.grad(list(now.values()), list(params.values()), bent, allow_unused=True)
            return ParamVector((n, t) for n, t in zip(params, found, strict=True) if t is not None)

        return objective.evaluate(pull_back, batches)

    @staticmethod
    def tensors(out):
        return {"features": out.features, "logits": out.logits, **{f"extras.{n}": t for n, t in out.extras.items()}}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("base", BASES)
def test_over_every_base_it_is_its_documented_formula(base, engine):
    inputs = IMAGE if base.startswith(("ARM", "MixStyle")) else 5
    layer = parse(f"{base}+DSPReg(weight={WEIGHT}, engine={engine!r})")
    stack = ready(Caught(layer), toy_task(inputs=inputs))
    torch.manual_seed(2)
    layer.c = ParamVector((n, torch.rand_like(p.detach())) for n, p in trainable(stack.net).items())
    for t in range(2):
        train_step(stack, toy_batches(t, sizes=SIZES, inputs=inputs))
        assert float(stack.target.norm()) > 1e-4 * float(stack.g.norm())
        assert float((stack.found - stack.target).norm() / stack.target.norm()) < 1e-4


def test_the_layers_that_change_the_gradient_go_above():
    for below in ("SAM", "MLDG", "GSAM", "SAGM", "GGAL"):
        for engine in ENGINES:
            with pytest.raises(ConfigError) as error:
                ready(parse(f"{below}+DSPReg(engine={engine!r})"))
            start = f"DSPReg with engine {engine!r} has its own gradient and would undo that of {below} below it. "
            assert str(error.value) == start + f"Put it the other way round: 'DSPReg+{below}'"
        train_step(ready(parse(f"DSPReg(engine='gauss_newton')+{below}")), toy_batches(0))
    train_step(ready(parse("SAM+DSPReg(weight=0, engine='gauss_newton')")), toy_batches(0))


def test_a_loss_that_differentiates_logits_by_features_is_told_so():
    stack = ready(parse("GMDG+DSPReg(engine='gauss_newton')"))
    with pytest.raises(ConfigError, match=r"differentiates logits by features.*Use engine 'exact' or 'lookahead'"):
        train_step(stack, toy_batches(0))


def test_an_objective_that_a_layer_above_has_changed_is_refused():
    stack = ready(parse("DSPReg(engine='gauss_newton')+DSPReg(engine='exact')"))
    with pytest.raises(ConfigError, match="needs the network's outputs, and this objective does not give them"):
        train_step(stack, toy_batches(0))


@pytest.mark.parametrize("engine", [*ENGINES, "lazy(3, gauss_newton)"])
def test_recording_does_not_move_training_and_no_weight_is_erm(engine):
    def after(layer, **options):
        stack = ready(layer)
        with warnings.catch_warnings(action="ignore", category=Notice):
            logs = [train_step(stack, toy_batches(t), **options) for t in range(5)]
        return theta(stack.net).flat(), logs

    quiet, _ = after(DSPReg(weight=WEIGHT, engine=engine))
    watched, logs = after(DSPReg(weight=WEIGHT, engine=engine), record=True)
    assert torch.equal(quiet, watched)
    assert all(float(log["DSPReg.ratio"]) > 0 for log in logs)
    erm, _ = after(ERM())
    assert torch.equal(after(DSPReg(weight=0.0, engine=engine))[0], erm)
    assert not torch.equal(quiet, erm)


def test_under_autocast_the_penalty_part_is_that_of_full_precision():
    def part(half):
        layer = parse(f"DSPReg(weight={WEIGHT}, engine='gauss_newton')")
        stack = ready(layer, toy_task(dropout=0.0)).float()
        found = []
        layer.base.update = lambda direction, batches: found.append(direction(batches)) or {"loss": found[-1][0]}
        batches = [Batch(b.x.float(), b.y, b.domain) for b in toy_batches(0)]
        for weight in (WEIGHT, 0.0):
            layer.weight = weight
            with torch.autocast("cpu", torch.bfloat16, enabled=half and weight > 0):
                train_step(stack, batches)
        return (found[0][1] - found[1][1]).flat()

    assert torch.equal(part(True), part(False))
    assert float(part(False).norm()) > 1e-4


# Half of the batch by finite differences: g of the part and of the rest.

HALF = "finite_difference(part=0.5)"


def test_the_difference_on_half_of_the_batch_is_that_of_exact():
    """ReLU, so that kinks must be held; two steps, so that parts change."""
    found = {}
    for engine in (HALF, "exact(part=0.5)", "exact"):
        layer = DSPReg(weight=WEIGHT, engine=engine)
        stack = ready(Caught(layer), toy_task(dropout=0.0))
        torch.manual_seed(2)
        layer.c = ParamVector((n, torch.rand_like(p.detach())) for n, p in trainable(stack.net).items())
        parts = []
        for t in range(2):
            train_step(stack, toy_batches(t, sizes=(6, 8, 4)))
            parts.append(stack.found.flat())
        found[engine] = torch.cat(parts)
    apart = float((found[HALF] - found["exact(part=0.5)"]).norm() / found["exact(part=0.5)"].norm())
    assert apart < 1e-5
    assert float((found[HALF] - found["exact"]).norm() / found["exact"].norm()) > 0.05


def test_half_of_the_batch_leaves_the_loss_and_no_weight_as_they_are():
    def steps(layer, **options):
        stack = ready(layer, toy_task(dropout=0.0))
        logs = [train_step(stack, toy_batches(t), **options) for t in range(3)]
        return theta(stack.net).flat(), logs

    with warnings.catch_warnings(action="ignore", category=Notice):
        _, logs = steps(DSPReg(weight=1e-12, engine=HALF))
        _, recorded = steps(DSPReg(weight=WEIGHT, engine=HALF), record=True)
    erm, plain = steps(ERM())
    for ours, theirs in zip(logs, plain, strict=True):
        assert float(ours["loss"]) == pytest.approx(float(theirs["loss"]), rel=1e-9)
    assert torch.equal(steps(DSPReg(weight=0.0, engine=HALF))[0], erm)
    assert all(float(log["DSPReg.ratio"]) > 0 for log in recorded)


@pytest.mark.parametrize(
    ("spec", "task", "why"),
    [
        ("CORAL+DSPReg", {"dropout": 0.0}, "CORAL has its own loss"),
        ("Mixup+DSPReg", {"dropout": 0.0}, "Mixup has its own forward"),
        ("DSPReg+VREx", {"dropout": 0.0}, "VREx has its own loss"),
        ("DSPReg", {"dropout": 0.3}, "drops at random"),
    ],
)
def test_where_samples_are_coupled_half_of_the_batch_is_refused_before_training(spec, task, why):
    spec = spec.replace("DSPReg", f"DSPReg(engine={HALF!r})")
    with pytest.raises(ConfigError, match=f"{why}. Leave part= out"):
        ready(parse(spec), toy_task(**task))
    ready(parse(spec.replace("engine", "weight=0, engine")), toy_task(**task))


def test_batch_norm_that_trains_couples_samples():
    layer = DSPReg(engine=HALF)
    stack = ready(layer, toy_task(dropout=0.0))
    stack.net.featurizer.add_module("norm", torch.nn.BatchNorm1d(4))
    assert couples_samples(stack.stack.layers, stack.net).endswith(
        "norm is batch norm that uses the statistics of a batch"
    )
    stack.net.eval()
    assert couples_samples(stack.stack.layers, stack.net) is None
