"""Loops of other people: several networks, running averages, features made elsewhere, steps inside of backward.

Each is compared with plain torch in float64 on copies of everything in it, or is refused with the remedy.
"""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.optim import _apply_optimizer_in_backward
from torch.utils.checkpoint import checkpoint

import dspreg
from helpers.environments import WEIGHT, Problem, both, flat, likeness

ENGINES = ("finite_difference", "exact", "lookahead", "gauss_newton", "lazy(1)", "lazy(1, exact)")
TOLERANCE = {"gauss_newton": 1e-4, "finite_difference": 1e-5}  # differences; otherwise 1e-7


class Loop(nn.Module):
    """`model` is penalised; the rest of the loop is whatever `loss` needs besides. Copies are as they are now."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.x, self.y = torch.randn(12, 4, dtype=torch.float64), torch.randint(3, (12,))
        self.model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))

    def loss(self):
        """(loss, logits)"""
        raise NotImplementedError

    def at(self, displacement=None):
        """A copy, displaced, after one evaluation, and what the closure returned."""
        other = copy.deepcopy(self)
        with torch.no_grad():
            for name, p in other.model.named_parameters():
                p += 0 if displacement is None else displacement.get(name, 0)
        return other, *other.loss()

    def gradient(self, displacement=None):
        other, loss, _ = self.at(displacement)
        loss.backward()
        return {n: p.grad for n, p in other.model.named_parameters() if p.grad is not None}

    def part(self, engine):
        """2λHg by differentiating twice or as a central difference, g(θ + 2λg) − g, or 2λJᵀΛJg; c is 1."""
        g = self.gradient()
        if engine == "finite_difference":  # unlike `exact`, it sees a key encoder move with the displacement
            ahead, behind = (flat(self.gradient({n: h * v for n, v in g.items()})) for h in (1e-5, -1e-5))
            return 2 * WEIGHT * (ahead - behind) / 2e-5
        if "exact" in engine:
            other, loss, _ = self.at()
            params = {n: p for n, p in other.model.named_parameters() if n in g}
            grads = torch.autograd.grad(loss, list(params.values()), create_graph=True)
            squares = WEIGHT * sum(each.square().sum() for each in grads)
            found = torch.autograd.grad(squares, list(params.values()), materialize_grads=True)
            return torch.cat([h.reshape(-1) for h in found])
        if "gauss_newton" in engine:
            ahead, behind = (self.at({n: h * v for n, v in g.items()})[2].detach() for h in (1e-5, -1e-5))
            change, (other, _, logits) = (ahead - behind) / 2e-5, self.at()
            p = logits.detach().softmax(1)
            cotangent = (p * change - p * (p * change).sum(1, keepdim=True)) / len(p)
            logits.backward(2 * WEIGHT * cotangent)
            return torch.cat([dict(other.model.named_parameters())[n].grad.reshape(-1) for n in g])
        return flat(self.gradient({n: 2 * WEIGHT * v for n, v in g.items()})) - flat(g)


class Gan(Loop):
    """A generator's loss goes through a discriminator with batch norm of its own."""

    def __init__(self, compiled=False):
        super().__init__()
        self.other = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3))
        self.double()
        self.called = torch.compile(self.other, backend="eager") if compiled else self.other

    def loss(self):
        logits = self.called(self.model(self.x))
        return F.cross_entropy(logits, self.y), logits


def move(how, key, query, m=0.9):
    for k, q in zip(key.parameters(), query.parameters(), strict=True):
        if how == "copy_":
            k.copy_(m * k + (1 - m) * q)
        elif how == "data, in place":
            k.data.mul_(m).add_(q.data, alpha=1 - m)
        else:
            k.data = k.data * m + q.data * (1 - m)


class Contrastive(nn.Module):
    """MoCo's forward: the key encoder moves towards the query encoder, then encodes the keys."""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.query, self.key = (nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)) for _ in range(2))
        self.key.load_state_dict(self.query.state_dict())  # as MoCo starts
        self.key.requires_grad_(False)
        self.register_buffer("queue", torch.randn(3, 3))

    def forward(self, x):
        with torch.no_grad():
            move(self.how, self.key, self.query)
            keys = self.key(x.flip(0))
            self.queue = torch.cat([keys[:1], self.queue[:-1]])
        return self.query(x) * keys @ self.queue.T


class Moco(Loop):
    def __init__(self, how):
        super().__init__()
        self.model = Contrastive(how)
        self.double()

    def loss(self):
        logits = self.model(self.x)
        return F.cross_entropy(logits, self.y), logits


class Teacher(Loop):
    """A running average outside of the model, which a module of the closure updates as it is called."""

    class Average(nn.Module):
        def __init__(self, query):
            super().__init__()
            self.inner, self.query = copy.deepcopy(query).requires_grad_(False), [query]

        def forward(self, x):
            with torch.no_grad():
                move("data, in place", self.inner, self.query[0])
                return self.inner(x)

    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
        self.teacher = Teacher.Average(self.model)
        self.double()

    def loss(self):
        logits = self.model(self.x)
        return F.cross_entropy(logits, self.teacher(self.x).argmax(1)) + logits.square().mean(), logits

    def part(self, engine):
        if "gauss_newton" in engine:  # the square adds 2/(n·classes) to Λ
            return super().part(engine) + self.of_square()
        return super().part(engine)

    def of_square(self):
        g = self.gradient()
        ahead, behind = (self.at({n: h * v for n, v in g.items()})[2].detach() for h in (1e-5, -1e-5))
        other, _, logits = self.at()
        logits.backward(2 * WEIGHT * 2 / logits.numel() * (ahead - behind) / 2e-5)
        return flat({n: p.grad for n, p in other.model.named_parameters()})


LOOPS = {
    "GAN": Gan,
    **{f"MoCo, {how}": lambda how=how: Moco(how) for how in ("copy_", "data, in place", "data replaced")},
    "teacher": Teacher,
}


def step(loop, engine, penalty=None, **options):
    penalty = penalty or dspreg.Penalty(loop.model, weight=WEIGHT, engine=engine, **options)
    loop.zero_grad()
    penalty.backward(loop.loss)
    return penalty, flat({n: p.grad for n, p in loop.model.named_parameters() if p.grad is not None})


def assert_same_state(loop, once):
    """Untrained parameters and buffers are those after one plain evaluation."""
    trained = {n for n, p in loop.named_parameters() if p.requires_grad}
    for (name, ours), theirs in zip(loop.state_dict().items(), once.state_dict().values(), strict=True):
        assert name in trained or torch.equal(ours, theirs), name


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", LOOPS)
def test_several_networks(kind, engine):
    """Over several steps: a key encoder that starts as the query encoder first moves in the second."""
    loop = LOOPS[kind]()
    penalty = None
    for _ in range(3):
        expected, once, g = loop.part(engine), loop.at()[0], flat(loop.gradient())
        penalty, total = step(loop, engine, penalty)
        assert likeness(total - g, expected)[0] < TOLERANCE.get(engine, 1e-7)
        assert_same_state(loop, once)
        with torch.no_grad():
            for p in loop.model.parameters():
                p -= 0 if p.grad is None else 0.5 * p.grad


@pytest.mark.parametrize("engine", ["finite_difference", "exact", "gauss_newton", "lookahead"])
def test_several_networks_in_parts(engine):
    """The second closure reaches a network that the first does not."""
    loop = Gan()
    reference = copy.deepcopy(loop)

    def closures(loop):
        logits = lambda: loop.model(loop.x)  # noqa: E731
        return [
            lambda: (lambda z: (F.cross_entropy(z, loop.y), z))(logits()),
            lambda: (lambda z: (F.cross_entropy(z, loop.y), z))(loop.other(logits())),
        ]

    for closure in closures(reference):
        closure()[0].backward()
    dspreg.Penalty(loop.model, weight=WEIGHT, engine=engine).backward(closures(loop))
    assert_same_state(loop, reference)
    assert int(loop.other[1].num_batches_tracked) == 1
    assert int(loop.model[1].num_batches_tracked) == 2


@pytest.mark.filterwarnings("ignore:Using `torch.compile")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch.compile's own
@pytest.mark.parametrize("engine", ["finite_difference", "lookahead", "gauss_newton"])
def test_another_network_that_is_compiled(engine):
    loop = Gan(compiled=True)
    plain = Gan()
    plain.load_state_dict({n: t for n, t in loop.state_dict().items() if "called" not in n}, strict=False)
    torch._dynamo.reset()
    penalty = None
    for _ in range(3):
        penalty, total = step(loop, engine, penalty)
        expected, g = plain.part(engine), flat(plain.gradient())
        plain = plain.at()[0]
        assert likeness(total - g, expected)[0] < 1e-4
        assert int(loop.other[1].num_batches_tracked) == int(plain.other[1].num_batches_tracked)
        assert torch.equal(loop.other[1].running_mean, plain.other[1].running_mean)


class LargeKey(nn.Module):
    """A key encoder larger than what is trained: too large to be copied in case it changes."""

    def __init__(self, how):
        super().__init__()
        self.how, self.query, self.key = how, nn.Linear(4, 3), nn.Linear(4, 3000).requires_grad_(False)

    def forward(self, x):
        if self.how is not None:
            with torch.no_grad():
                move(self.how, self.key, nn.Linear(4, 3000).double())
        return self.query(x) * self.key(x)[:, :3]


class Large(Moco):
    def __init__(self, how):
        super().__init__(how)
        self.model = LargeKey(how)
        self.double()


@pytest.mark.parametrize("engine", ["finite_difference", "lookahead", "gauss_newton"])
@pytest.mark.parametrize("how", ["copy_", "data, in place", "data replaced"])
def test_what_is_too_large_to_be_copied_is_refused_once_it_changes(how, engine):
    loop = Large(how)
    with pytest.raises(dspreg.ConfigError, match=r"the closure changes 'key.weight'.*outside of the closure"):
        step(loop, engine)
    torch.manual_seed(5)
    once = loop.at()[0]
    torch.manual_seed(5)
    step(loop, "exact")  # one call
    assert_same_state(loop, once)


def test_a_large_frozen_network_is_left_alone():
    loop = Large(None)
    expected, g = loop.part("lookahead"), flat(loop.gradient())
    version = loop.model.key.weight._version
    assert likeness(step(loop, "lookahead")[1] - g, expected)[0] < 1e-7
    assert loop.model.key.weight._version == version


@pytest.mark.parametrize("engine", ["finite_difference", "lookahead", "gauss_newton"])
def test_an_update_before_the_module_is_called_is_refused(engine):
    """In the first step nobody knows yet that the closure is going to call the teacher."""
    loop = Teacher()

    def closure():
        move("data, in place", loop.teacher.inner, loop.model)
        logits = loop.model(loop.x)
        return F.cross_entropy(logits, loop.teacher.inner(loop.x).argmax(1)), logits

    with torch.no_grad():
        loop.model[0].weight.add_(1)
    with pytest.raises(
        dspreg.ConfigError, match=r"the closure changes a Sequential before it calls it.*outside of the closure"
    ):
        dspreg.Penalty(loop.model, weight=WEIGHT, engine="lookahead").backward(closure)


class Attentive(Loop):
    """Fused attention has no second derivative: `exact` fails in its first evaluation, and tries again without."""

    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.3), nn.Linear(6, 3))
        self.double()

    def loss(self):
        q = self.model[:3](self.x).view(3, 4, 6)
        logits = self.model[3](F.scaled_dot_product_attention(q, q, q).view(12, 6))
        return F.cross_entropy(logits, self.y), logits


def test_a_first_evaluation_that_is_tried_again():
    loop = Attentive()
    torch.manual_seed(3)
    once, *_ = loop.at()
    after = torch.rand(())
    torch.manual_seed(3)
    with pytest.warns(dspreg.Notice, match="fused attention has no second derivative"):
        dspreg.Penalty(loop.model, weight=WEIGHT, engine="exact").backward(loop.loss)
    assert torch.rand(()) == after
    assert_same_state(loop, once)


# Steps inside of backward.


def hook_into(how, model, layers):
    params = [p for i in layers for p in model[i].parameters()]
    if how == "torch's own":
        _apply_optimizer_in_backward(torch.optim.SGD, params, {"lr": 0.1})
        return
    for p in params:
        optimizer = torch.optim.SGD([p], lr=0.1)

        def on_gradient(p, optimizer=optimizer):
            optimizer.step()
            optimizer.zero_grad()

        if how == "post-accumulate":
            p.register_post_accumulate_grad_hook(on_gradient)
        else:  # LOMO's: a hook on the gradient that writes past autograd

            def on_grad(g, p=p):
                p.data.add_(g, alpha=-0.1)
                return g

            p.register_hook(on_grad)


@pytest.mark.parametrize("engine", [*ENGINES, "momentum"])
@pytest.mark.parametrize("layers", [[0], [3], [0, 3]])
@pytest.mark.parametrize("how", ["post-accumulate", "torch's own", "data"])
def test_optimisers_that_step_inside_of_backward_are_refused(how, layers, engine):
    problem = Problem("smooth")
    model = copy.deepcopy(problem.net)
    hook_into(how, model, layers)
    with pytest.raises(dspreg.ConfigError, match=r"steps inside of backward.*optimizer.step\(\) after penalty.backw"):
        dspreg.Penalty(model, weight=WEIGHT, engine=engine).backward(lambda: both(model, problem.x, problem.y))
    assert all(p.grad is None for p in model.parameters())
    if how != "data":
        for p, old in zip(model.parameters(), problem.net.parameters(), strict=True):
            assert torch.equal(p, old)


def test_hooks_that_change_the_gradient_run_in_every_pass():
    """A mask on a gradient, as plain torch allows it."""
    problem = Problem("smooth")
    model = copy.deepcopy(problem.net)
    mask = (torch.rand(model[3].weight.shape) < 0.5).double()
    model[3].weight.register_hook(lambda g: g * mask)
    dspreg.Penalty(model, weight=WEIGHT, engine="lookahead").backward(lambda: both(model, problem.x, problem.y)[0])
    assert torch.equal(model[3].weight.grad * (1 - mask), torch.zeros_like(mask))
    assert (model[3].weight.grad != 0).any()


# Features made outside of the closure.


class Features(Loop):
    def __init__(self):
        super().__init__()
        self.double()

    def loss(self):
        return self.on(self.features())

    def features(self):
        return self.model[:3](self.x)

    def on(self, features):
        logits = self.model[3](features)
        return F.cross_entropy(logits, self.y), logits


@pytest.mark.parametrize("engine", [*ENGINES, "momentum"])
@pytest.mark.parametrize("kind", ["layers", "a sum"])
def test_features_made_outside_of_the_closure(engine, kind):
    """A sum saves no tensor, so that torch itself would go back through it any number of times."""
    loop = Features()
    features = loop.features() if kind == "layers" else loop.x @ torch.ones(4, 6).double() + loop.model[0].bias
    penalty = dspreg.Penalty(loop.model, weight=WEIGHT, engine=engine)
    if engine != "exact":
        with pytest.raises(dspreg.ConfigError, match=r"computed outside of it.*inside of the closure, or detach\(\)"):
            penalty.backward(lambda: loop.on(features))
        assert all(p.grad is None for p in loop.model.parameters())
        return
    penalty.backward(lambda: loop.on(features))
    if kind == "layers":
        reference = Features()
        expected = reference.part("exact")
        total = flat({n: p.grad for n, p in loop.model.named_parameters()})
        assert likeness(total - flat(reference.gradient()), expected)[0] < 1e-9


@pytest.mark.parametrize("engine", ENGINES)
def test_detached_features_are_data(engine):
    loop = Features()
    features = loop.features().detach()
    loop.loss = lambda: loop.on(features)
    head = copy.deepcopy(loop.model[3])
    dspreg.Penalty(loop.model, weight=WEIGHT, engine=engine).backward(loop.loss)

    class Head(Loop):
        def __init__(self):
            super().__init__()
            self.model = nn.Sequential(head)
            self.double()

        def loss(self):
            logits = self.model(features)
            return F.cross_entropy(logits, self.y), logits

    alone = Head()
    total = flat({n: p.grad for n, p in loop.model[3].named_parameters()})
    assert likeness(total - flat(alone.gradient()), alone.part(engine))[0] < TOLERANCE.get(engine, 1e-7)
    assert loop.model[0].weight.grad is None


def test_record_evaluates_again():
    loop = Features()
    features = loop.features()
    with pytest.raises(dspreg.ConfigError, match="computed outside of it"):
        dspreg.Penalty(loop.model, weight=WEIGHT).backward(lambda: loop.on(features), record=True)


def test_a_gradient_penalty_inside_of_the_closure_is_no_earlier_graph():
    loop = Features()

    def closure():
        x = loop.x.clone().requires_grad_()
        loss, logits = loop.on(loop.model[:3](x))
        (g,) = torch.autograd.grad(logits.square().sum(), x, create_graph=True)
        return loss + g.square().mean(), logits

    dspreg.Penalty(loop.model, weight=WEIGHT, engine="lookahead").backward(closure)
    assert loop.model[0].weight.grad is not None


# Checkpointing.


@pytest.mark.parametrize("engine", ["finite_difference", "exact", "lazy(1, exact)", "gauss_newton", "lookahead"])
@pytest.mark.parametrize("start", [0, 1])
def test_reentrant_checkpointing(engine, start):
    """With all of the layers behind a checkpoint torch does not say a word, and leaves them out."""
    loop = Features()

    def loss():
        x = loop.x.clone().requires_grad_()
        return loop.on(checkpoint(loop.model[start:3], loop.model[:start](x), use_reentrant=True))

    expected, g = loop.part(engine), flat(loop.gradient())
    if engine == "lookahead":
        loop.loss = loss
        assert likeness(step(loop, engine)[1] - g, expected)[0] < 1e-9
        return
    with pytest.raises(dspreg.ConfigError, match=r"checkpointing(,| does not allow).*use_reentrant=False"):
        dspreg.Penalty(loop.model, weight=WEIGHT, engine=engine).backward(loss)
