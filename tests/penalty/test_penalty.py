"""`Penalty` in a loop is the loop with another gradient, and nothing else: whatever a plain pass leaves is left."""

import copy
import random
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dspreg
from dspreg.penalty import Figures
from dspreg.testing import ready, toy_batches, toy_task
from helpers.environments import EVERY, WEIGHT, Problem, likeness

OPTIMISERS = {
    "SGD": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    "AdamW": lambda params: torch.optim.AdamW(params, lr=0.01),
}


def closure_of(model, problem):
    return lambda: F.cross_entropy(model(problem.x), problem.y)


def penalised(model, closure, engine="lookahead", weight=WEIGHT, **options):
    penalty = dspreg.Penalty(model, weight=weight, engine=engine, **options)
    loss = penalty.backward(closure)
    return penalty, loss


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("engine", ["exact", "lookahead"])
def test_a_training_with_clipping_is_the_one_written_by_hand(engine, optimiser):
    problem = Problem()
    model = copy.deepcopy(problem.net)
    optimizer = OPTIMISERS[optimiser](model.parameters())
    penalty = dspreg.Penalty(model, weight=WEIGHT, engine=engine)
    penalty.coefficients = problem.c
    by_hand = OPTIMISERS[optimiser](problem.net.parameters())
    plain = copy.deepcopy(problem.net)
    without = OPTIMISERS[optimiser](plain.parameters())
    for _ in range(5):
        penalty.backward(closure_of(model, problem))
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()

        problem.g = problem.gradient()
        total = torch.cat([g.reshape(-1) for g in problem.g.values()]) + problem.target(engine)
        sizes = [p.numel() for p in problem.net.parameters()]
        for p, g in zip(problem.net.parameters(), total.split(sizes), strict=True):
            p.grad = g.view_as(p)
        nn.utils.clip_grad_norm_(problem.net.parameters(), 0.5)
        by_hand.step()
        by_hand.zero_grad()

        F.cross_entropy(plain(problem.x), problem.y).backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        without.step()
        without.zero_grad()
    ours, theirs, bare = (nn.utils.parameters_to_vector(m.parameters()) for m in (model, problem.net, plain))
    assert (ours - theirs).norm() < 1e-6 * (theirs - bare).norm()  # of what the penalty has moved


class Noisy(nn.Module):
    """Dropout, a learned centre outside θ's network, and noise from numpy and Python."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Dropout(0.4), nn.Linear(12, 3))

    def forward(self, x):
        return self.layers(x + 0.1 * np.random.standard_normal() + 0.1 * random.random())


def noisy():
    torch.manual_seed(1)
    model = Noisy().double()
    x, y = torch.randn(10, 6, dtype=torch.float64), torch.randint(3, (10,))
    return model, x, y


def seed():
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)


@pytest.mark.parametrize("engine", EVERY)
def test_passes_see_the_same_random_numbers_and_leave_those_of_one(engine):
    model, x, y = noisy()
    params = dict(model.named_parameters())

    def naive(delta=None):
        """g elsewhere, from the same seeds, with buffers of its own."""
        other = copy.deepcopy(model)
        with torch.no_grad():
            for n, p in other.named_parameters():
                p += delta[n] if delta else 0
        seed()
        F.cross_entropy(other(x), y).backward()
        return {n: p.grad for n, p in other.named_parameters()}, other

    g, once = naive()
    after_one = [torch.rand(()), np.random.random(), random.random()]
    curved = "exact" in engine or engine == "finite_difference"
    h = 1e-5 if curved else 2 * WEIGHT
    ahead, _ = naive({n: h * g[n] for n in params})
    behind, _ = naive({n: -h * g[n] for n in params})
    times = 2 if engine.startswith("lazy") else 1
    expected = {n: times * ((ahead[n] - behind[n]) * (WEIGHT / h) if curved else (ahead[n] - g[n])) for n in g}
    penalty = dspreg.Penalty(model, weight=WEIGHT, engine=engine)
    buffers = {n: b.clone() for n, b in model.named_buffers()}
    for _ in range(1 if engine in ("exact", "finite_difference", "lookahead") else 2):
        for n, b in model.named_buffers():
            b.copy_(buffers[n])
        model.zero_grad()
        seed()
        penalty.backward(lambda: F.cross_entropy(model(x), y))
        assert [torch.rand(()), np.random.random(), random.random()] == after_one
    part = torch.cat([(p.grad - g[n]).reshape(-1) for n, p in params.items()])
    assert likeness(part, torch.cat([v.reshape(-1) for v in expected.values()]))[0] < 1e-6
    if engine != "momentum":  # its one forward pass is next to θ
        for (n, b), (_, c) in zip(model.named_buffers(), once.named_buffers(), strict=True):
            assert torch.equal(b, c), n


@pytest.mark.parametrize("engine", ["exact", "lookahead", "lookahead(radius=1e-3)", "central"])
def test_whatever_else_the_loss_depends_on_gets_its_gradient(engine):
    """A learned temperature and centre, in no network: ∂φ(L + λR), by differences of L + λR itself."""
    problem = Problem("smooth")
    model = copy.deepcopy(problem.net)
    temperature = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    weight = 1e-4

    def total(value):
        t = torch.tensor(value, dtype=torch.float64)
        net = copy.deepcopy(problem.net)
        loss = F.cross_entropy(net(problem.x) * t, problem.y)
        grads = torch.autograd.grad(loss, list(net.parameters()))
        return float(loss.detach()), float(sum(g.square().sum() for g in grads))

    dspreg.Penalty(model, weight=weight, engine=engine).backward(
        lambda: F.cross_entropy(model(problem.x) * temperature, problem.y)
    )
    (up, r_up), (down, r_down) = total(0.7 + 1e-5), total(0.7 - 1e-5)
    part = float(temperature.grad) - (up - down) / 2e-5
    assert part == pytest.approx(weight * (r_up - r_down) / 2e-5, rel=1e-3)


@pytest.mark.parametrize("engine", EVERY)
def test_gradients_are_added(engine):
    problem = Problem("smooth")
    model = copy.deepcopy(problem.net)
    closure = closure_of(model, problem)
    penalised(model, closure, engine)
    once = [p.grad.clone() for p in model.parameters()]
    held = [p.grad for p in model.parameters()]
    penalised(model, closure, engine)
    for p, g, same in zip(model.parameters(), once, held, strict=True):
        torch.testing.assert_close(p.grad, 2 * g, rtol=1e-14, atol=0)
        assert p.grad is same


@pytest.mark.parametrize("options", [{"weight": 0.0}, {"warmup": 1}])
@pytest.mark.parametrize("engine", EVERY)
def test_without_weight_it_is_backward_to_the_bit(engine, options):
    model, x, y = noisy()
    other = copy.deepcopy(model)
    seed()
    F.cross_entropy(other(x), y).backward()
    seed()
    penalised(model, lambda: F.cross_entropy(model(x), y), engine, **options)
    for (n, a), (_, b) in zip(model.named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(a.grad, b.grad), n
    for a, b in zip(model.buffers(), other.buffers(), strict=True):
        assert torch.equal(a, b)


def test_the_penalty_counts_after_the_warm_up():
    problem = Problem("smooth")
    model = copy.deepcopy(problem.net)
    penalty = dspreg.Penalty(model, weight=WEIGHT, engine="lookahead", warmup=2)
    penalty.coefficients = problem.c
    parts = [problem.part(model, penalty, lambda: penalty.backward(closure_of(model, problem))) for _ in range(3)]
    assert float(parts[0].abs().max()) < 1e-15 > float(parts[1].abs().max())
    assert likeness(parts[2], problem.target("lookahead"))[0] < 1e-10


@pytest.mark.parametrize("engine", EVERY)
def test_it_returns_what_the_closure_does(engine):
    problem = Problem("smooth")
    model = copy.deepcopy(problem.net)

    def closure():
        out = model(problem.x)
        return F.cross_entropy(out, problem.y), out.detach(), "more"

    expected = F.cross_entropy(model(problem.x), problem.y).detach()
    _, (loss, (out, more)) = penalised(model, closure, engine)
    assert float(loss) == pytest.approx(float(expected), rel=1e-12)
    assert not loss.requires_grad
    torch.testing.assert_close(out, model(problem.x).detach())
    assert more == "more"
    _, (loss, others) = penalised(model, [lambda: (closure()[0] / 2, 1), lambda: (closure()[0] / 2, 2)], engine)
    assert float(loss) == pytest.approx(float(expected), rel=1e-12)
    assert others == [1, 2]
    assert penalised(model, [lambda: closure()[0]], engine)[1].shape == ()


def test_how_often_a_closure_is_asked():
    problem = Problem("smooth")
    model, asked = copy.deepcopy(problem.net), []

    def closure():
        asked.append(0)
        return F.cross_entropy(model(problem.x), problem.y)

    for engine, times in {"momentum": 1, "exact": 1, "lookahead": 2, "lazy(2)": 1, "central": 3}.items():
        asked.clear()
        penalised(model, closure, engine)
        assert len(asked) == times, engine


class Failing(Exception):
    pass


@pytest.mark.parametrize("engine", ["exact", "lookahead", "momentum", "lazy(1)", "central"])
def test_after_an_exception_everything_is_where_it_was(engine):
    model, x, y = noisy()
    with torch.no_grad():
        next(model.parameters())[0, 0] = 1e-30  # rounding would show
    before = [p.clone() for p in model.parameters()]
    grads = [torch.rand_like(p) for p in model.parameters()]
    for p, g in zip(model.parameters(), grads, strict=True):
        p.grad = g.clone()
    calls = []
    penalty = dspreg.Penalty(model, weight=WEIGHT, engine=engine)

    def closure():
        calls.append(0)
        loss = F.cross_entropy(model(x), y)
        if len(calls) == 2:
            raise Failing
        return loss

    if once := engine in ("exact", "momentum"):  # one pass a step
        penalty.backward(closure)
        for p, g in zip(model.parameters(), grads, strict=True):
            p.grad = g.clone()
    with pytest.raises(Failing):
        penalty.backward(closure)
    for p, old, g in zip(model.parameters(), before, grads, strict=True):
        assert torch.equal(p, old)
        assert torch.equal(p.grad, g)
    assert penalty.steps == once
    assert len(penalty._memory.seen) == 0


@pytest.mark.parametrize("wrap", ["plain", "compiled", "compiled inside"])
def test_names_have_no_prefix(wrap):
    problem = Problem("smooth")
    own = copy.deepcopy(problem.net)
    model = torch.compile(own, backend="eager") if wrap == "compiled" else own
    if wrap == "compiled inside":
        own[0] = torch.compile(own[0], backend="eager")
    penalty = dspreg.Penalty(model, weight=WEIGHT, engine="lookahead", exclude="3.bias")
    assert list(penalty.coefficients) == ["0.weight", "0.bias", "3.weight"]
    assert all((c == 1).all() for c in penalty.coefficients.values())
    profile = penalty.refresh({"a": [(problem.x, problem.y)] * 2, "b": [(problem.x * 2, problem.y)] * 2})
    assert penalty.profile is profile
    alone = dspreg.measure(problem.net, {"a": [(problem.x, problem.y)] * 2, "b": [(problem.x * 2, problem.y)] * 2})
    for name, c in penalty.coefficients.items():
        torch.testing.assert_close(c, alone.c[name], rtol=1e-9, atol=1e-12)
    for prefix in ("", "module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."):
        penalty.coefficients = {prefix + n: 2 * c for n, c in alone.c.items()}
        assert torch.equal(penalty.coefficients["0.bias"], 2 * alone.c["0.bias"])


@pytest.mark.parametrize("engine", ["exact", "lookahead", "momentum", "lazy(3)"])
def test_a_resumed_training_goes_on_with_the_same_numbers(engine):
    problem = Problem()

    def start(model):
        penalty = dspreg.Penalty(model, weight=WEIGHT, engine=engine, warmup=1)
        penalty.coefficients = {n: c / 2 for n, c in problem.c.items()}
        return penalty, torch.optim.Adam(model.parameters(), lr=0.01)

    def go(model, penalty, optimizer, steps):
        for _ in range(steps):
            penalty.backward(closure_of(model, problem))
            optimizer.step()
            optimizer.zero_grad()

    whole = copy.deepcopy(problem.net)
    penalty, optimizer = start(whole)
    penalty.coefficients = problem.c
    go(whole, penalty, optimizer, 4)
    saved = copy.deepcopy([whole.state_dict(), optimizer.state_dict()]), penalty.state_dict()
    go(whole, penalty, optimizer, 4)

    resumed = copy.deepcopy(problem.net)
    again, other = start(resumed)
    (weights, moments), state = saved
    resumed.load_state_dict(weights)
    other.load_state_dict(moments)
    again.load_state_dict(state)
    go(resumed, again, other, 4)
    for a, b in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)
    assert again.steps == 8


def test_a_state_holds_tensors_numbers_and_names_alone(tmp_path):
    problem = Problem("smooth")
    model = copy.deepcopy(problem.net)
    penalty = dspreg.Penalty(model, engine="momentum")
    penalty.backward(closure_of(model, problem))
    torch.save(penalty.state_dict(), tmp_path / "state")
    loaded = torch.load(tmp_path / "state", weights_only=True)
    other = dspreg.Penalty(model, engine="momentum")
    other.load_state_dict(loaded)
    assert other.state_dict().keys() == loaded.keys()
    assert other._c.values is None
    mean = penalty.state_dict()["memory"]["mean"]
    assert all(torch.equal(other._memory.mean[n], t) for n, t in mean.items())
    message = re.escape("of engine 'momentum', but this penalty uses 'finite_difference'")
    with pytest.raises(dspreg.ConfigError, match=message):
        dspreg.Penalty(model).load_state_dict(loaded)


@pytest.mark.parametrize("engine", ["lookahead", "momentum", "exact"])
def test_a_step_that_the_scaler_skips_leaves_nothing_behind(engine):
    problem = Problem("smooth")
    model = copy.deepcopy(problem.net).float()
    x, optimizer = problem.x.float(), torch.optim.SGD(model.parameters(), lr=0.1)
    penalty = dspreg.Penalty(model, weight=WEIGHT, engine=engine)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=100)
    moved = []
    for factor in (1.0, float("inf"), 1.0):
        before = nn.utils.parameters_to_vector(model.parameters()).clone()
        penalty.backward(lambda factor=factor: F.cross_entropy(model(x), problem.y) * factor, scaler=scaler)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        after = nn.utils.parameters_to_vector(model.parameters())
        assert torch.isfinite(after).all()
        moved.append(bool((after != before).any()))
    assert moved == [True, False, True]
    assert scaler.get_scale() == 4.0
    assert all(torch.isfinite(t).all() for t in penalty._memory.mean.values())


def test_what_is_recorded():
    problem = Problem("smooth")
    target = {e: problem.target(e) for e in EVERY}
    g = torch.cat([t.reshape(-1) for t in problem.g.values()])
    c = torch.cat([t.reshape(-1) for t in problem.c.values()])
    for engine in EVERY:
        model = copy.deepcopy(problem.net)
        penalty = dspreg.Penalty(model, weight=WEIGHT, engine=engine)
        penalty.coefficients = problem.c
        for _ in range(2):
            penalty.backward(closure_of(model, problem), record=True)
        found = penalty.record
        assert isinstance(found, Figures)
        assert float(found.L) == pytest.approx(float(F.cross_entropy(model(problem.x), problem.y).detach()), rel=1e-12)
        assert float(found.R) == pytest.approx(float(c @ g**2), rel=1e-12)
        times = 2 if engine.startswith("lazy") else 1  # a lazy engine's share is the inner one's
        assert float(found.ratio) == pytest.approx(float(target[engine].norm() / g.norm()) / times, rel=1e-6)


def test_parameters_left_out_are_not_displaced():
    problem = Problem("smooth")
    model = copy.deepcopy(problem.net)
    penalty = dspreg.Penalty(model, weight=WEIGHT, engine="lookahead", only="3.*")
    penalty.coefficients = problem.c
    part = problem.part(model, penalty, lambda: penalty.backward(closure_of(model, problem)))
    moved = problem.gradient({n: 2 * WEIGHT * problem.c[n] * g * n.startswith("3.") for n, g in problem.g.items()})
    expected = torch.cat([(moved[n] - g).reshape(-1) for n, g in problem.g.items()])
    assert likeness(part, expected)[0] < 1e-10


def test_frozen_parameters_and_none_gradients():
    torch.manual_seed(0)
    model = nn.ModuleDict({"used": nn.Linear(3, 2), "unused": nn.Linear(3, 2), "frozen": nn.Linear(2, 2)}).double()
    model["frozen"].requires_grad_(False)
    x = torch.randn(4, 3, dtype=torch.float64)
    for engine in EVERY:
        penalised(model, lambda: model["frozen"](torch.tanh(model["used"](x))).square().mean(), engine)
    assert model["used"].weight.grad is not None
    assert model["unused"].weight.grad is None
    assert model["frozen"].weight.grad is None


@pytest.mark.parametrize("engine", EVERY)
def test_a_loop_with_a_penalty_is_the_trainer_with_dsp_reg(engine):
    task = toy_task(dropout=0.0)
    algorithm = dspreg.DSPReg(weight=WEIGHT, engine=engine, refresh_steps=2, measure_batches=2)
    algorithm = ready(algorithm, task, lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9))
    model = copy.deepcopy(algorithm.net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    penalty = dspreg.Penalty(model, weight=WEIGHT, engine=engine)
    for t in range(6):
        batches = toy_batches(t)
        if t in (2, 4):
            penalty.refresh({name: [(b.x, b.y) for b in each] for name, each in task.samples(t, 2).items()})
        x, y = torch.cat([b.x for b in batches]), torch.cat([b.y for b in batches])
        loss = penalty.backward(lambda x=x, y=y: F.cross_entropy(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
        assert float(dspreg.train_step(algorithm, batches)["loss"]) == pytest.approx(float(loss), rel=1e-9)
    for (name, ours), theirs in zip(model.named_parameters(), algorithm.net.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11, msg=name)
