"""Engine `gauss_newton` against an explicit G = JᵀΛJ, and parts of a batch against the whole.

As for every engine the penalty part is compared, never the total, and a mutant that returns the gradient fails.
"""

import copy
from itertools import combinations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import dspreg
from dspreg import ConfigError, ParamVector
from dspreg.batches import Batch, OutputObjective, Outputs
from dspreg.penalty import Step, parse_engine
from dspreg.penalty.tangent import StackTangent, sample_batches
from dspreg.testing import ready, toy_batches, toy_task
from dspreg.vectors import gradient, trainable
from helpers import problems
from helpers.environments import WEIGHT, Problem, both, likeness, scaled_by
from helpers.penalties import mutant
from reference.gauss_newton import Dense

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # by torch.func.jvp itself
SMALL = ["mlp", "cnn", "transformer", "tied", "alias", "hidden", "partly frozen", "keywords"]


def forward(name, net, batch):
    """Logits and labels."""
    if name == "keywords":
        return net(batch["input_ids"], batch["attention_mask"]).logits, batch["labels"]
    return net(batch[0]), batch[1]


def outputs_of(name, net, batch):
    """The logits as a function of parameters, for a reference that differentiates them as it likes."""
    inputs = {k: v for k, v in batch.items() if k != "labels"} if name == "keywords" else batch[0]

    def outputs(params):
        params = {**dict(net.named_parameters()), **params}
        if name == "hidden":  # used from a list: not through the module
            h = torch.tanh(inputs @ params["layer.weight"])
            return F.linear(h, params["head.weight"], params["head.bias"])
        args, kwargs = ((), inputs) if name == "keywords" else ((inputs,), {})
        out = torch.func.functional_call(net, params, args, kwargs)
        return out.logits if name == "keywords" else out

    return outputs


def part_of(engine, net, closure, c, weight=WEIGHT):
    """What `Penalty` adds to `.grad` less the gradient, by name."""
    net.zero_grad()
    closure()[0].backward()
    plain = {n: p.grad.clone() for n, p in net.named_parameters() if p.grad is not None}
    net.zero_grad()
    penalty = dspreg.Penalty(net, weight=weight, engine=engine)
    penalty.coefficients = c
    penalty.backward(closure)
    return {n: dict(net.named_parameters())[n].grad - g for n, g in plain.items()}


def flat_of(part, names, like):
    """In the order of `names`; a parameter that got no gradient has part 0."""
    return torch.cat([part.get(n, torch.zeros_like(like[n])).reshape(-1) for n in names])


def random_c(net, seed=3):
    torch.manual_seed(seed)
    return {n: torch.rand_like(p.detach()) * 1.4 for n, p in net.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("name", SMALL)
def test_it_is_the_explicit_matrix_and_exact_has_the_residual_on_top(name):
    net = problems.model(name).eval()
    batch = problems.batch(name, 0, 4)
    logits, labels = forward(name, net, batch)
    dense = Dense(net, outputs_of(name, copy.deepcopy(net), batch), labels)
    loss = F.cross_entropy(logits, labels).detach()
    assert float(dense.flat.loss(dense.flat.theta)) == pytest.approx(float(loss), rel=1e-12)

    def closure():
        logits, labels = forward(name, net, batch)
        return F.cross_entropy(logits, labels), logits

    c, names = random_c(net), dense.flat.names
    like = dict(net.named_parameters())
    found = flat_of(part_of("gauss_newton", net, closure, c), names, like)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):  # the other can't be differentiated twice
        v = flat_of(c, names, like) * dense.gradient()
        curved, residual = 2 * WEIGHT * dense.gauss_newton() @ v, 2 * WEIGHT * dense.residual() @ v
        exact = flat_of(part_of("exact", net, closure, c), names, like)
    assert likeness(found, curved)[0] < 1e-5
    assert float((exact - curved - residual).norm()) < 1e-6 * float(curved.norm())
    # so that the two engines differ; where the only layer that is trained is linear there is no residual
    assert (float(residual.norm()) > 1e-2 * float(curved.norm())) is (name != "partly frozen")


@pytest.mark.parametrize("name", ["resnet18", "lite0", "vit"])
def test_on_real_networks_it_is_two_products_with_the_jacobian(name):
    """By forward-mode and reverse-mode differentiation of torch.func; G itself has 10¹³ entries."""
    net = problems.model(name).eval()
    x, y = problems.batch(name, 0, 3)
    c = random_c(net)
    buffers, params = dict(net.named_buffers()), {n: p.detach() for n, p in net.named_parameters()}

    def outputs(params):
        return torch.func.functional_call(net, {**params, **buffers}, (x,))

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        g = torch.func.grad(lambda p: F.cross_entropy(outputs(p), y))(params)
        z, change = torch.func.jvp(outputs, (params,), ({n: c[n] * g[n] for n in params},))
        p = z.softmax(1)
        bent = (p * change - p * (p * change).sum(1, keepdim=True)) / len(y)
        (product,) = torch.func.vjp(outputs, params)[1](bent)
    found = part_of("gauss_newton", net, lambda: both(net, x, y), c)
    target = 2 * WEIGHT * torch.cat([product[n].reshape(-1) for n in params])
    assert likeness(flat_of(found, list(params), params), target)[0] < 1e-4


def test_soft_labels_weighted_samples_and_parameters_left_out():
    problem = Problem("smooth")
    net = problem.net
    torch.manual_seed(1)
    soft = torch.rand(12, 3, dtype=torch.float64).softmax(1)
    weights = torch.rand(12, dtype=torch.float64)
    weights /= weights.sum()
    dense = Dense(net, lambda p: torch.func.functional_call(net, p, problem.x), soft, weights)

    def closure():
        logits = net(problem.x)
        return (weights * F.cross_entropy(logits, soft, reduction="none")).sum(), logits

    c = {n: t * n.startswith("3.") for n, t in problem.c.items()}
    v = torch.cat([t.reshape(-1) for t in c.values()]) * dense.gradient()
    target = 2 * WEIGHT * dense.gauss_newton() @ v
    for kept in (c, {n: t for n, t in problem.c.items() if n.startswith("3.")}):
        net.zero_grad()
        closure()[0].backward()
        plain = {n: p.grad.clone() for n, p in net.named_parameters()}
        net.zero_grad()
        penalty = dspreg.Penalty(net, weight=WEIGHT, engine="gauss_newton", only=None if kept is c else "3.*")
        penalty.coefficients = kept
        penalty.backward(closure)
        part = torch.cat([(p.grad - plain[n]).reshape(-1) for n, p in net.named_parameters()])
        assert likeness(part, target)[0] < 1e-5
    assert float(target[: net[0].weight.numel()].norm()) > 0  # c = 0 does not leave a parameter alone


def test_what_stands_behind_the_logits_has_its_whole_hessian():
    """A learned temperature outside of the network: its row of the Hessian has no residual."""
    problem = Problem("smooth")
    net = problem.net
    temperature = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)

    def closure():
        logits = net(problem.x)
        return F.cross_entropy(logits * temperature, problem.y), logits

    parts = {}
    for engine in ("gauss_newton", "exact"):
        net.zero_grad()
        temperature.grad = None
        closure()[0].backward()
        plain = temperature.grad.clone()
        temperature.grad = None
        penalty = dspreg.Penalty(net, weight=WEIGHT, engine=engine)
        penalty.coefficients = problem.c
        penalty.backward(closure)
        parts[engine] = float(temperature.grad - plain)
    assert parts["gauss_newton"] == pytest.approx(parts["exact"], rel=1e-5)
    assert abs(parts["exact"]) > 1e-4


def test_a_linear_loss_has_no_curvature():
    problem = Problem("smooth")
    net = problem.net

    def closure():
        logits = net(problem.x)
        return logits[:, 0].mean() - logits[:, 1].mean(), logits

    part = part_of("gauss_newton", net, closure, problem.c)
    assert all(not bool(t.any()) for t in part.values())


# Through `Step`, on the problem of the other engines.


class Stepped:
    """A network with features and logits, three domains of unequal sizes, as an objective of outputs."""

    def __init__(self, sizes=(4, 7, 3), seed=0):
        torch.manual_seed(seed)
        self.body, self.head = nn.Sequential(nn.Linear(4, 5), nn.Tanh()).double(), nn.Linear(5, 3).double()
        self.net = nn.ModuleDict({"body": self.body, "head": self.head})
        self.batches = [
            Batch(torch.randn(n, 4, dtype=torch.float64) + d, torch.randint(3, (n,)), d) for d, n in enumerate(sizes)
        ]
        self.c = ParamVector((n, torch.rand_like(p.detach())) for n, p in trainable(self.net).items())
        self.objective = OutputObjective(lambda f, batches: f(self.outputs(batches)), self.loss)

    def outputs(self, batches):
        features = self.body(torch.cat([b.x for b in batches]))
        return Outputs.of(batches, features, self.head(features))

    def loss(self, out):
        return out.weights.dot(out.risks())

    def step(self, key=("a",)):
        def below(objective, batches):
            loss = objective(batches)
            return loss.detach(), gradient(loss, self.net)

        return Step(
            below, self.objective, self.batches, self.net, self.c, WEIGHT,
            linearise=lambda objective, batches: StackTangent(objective, batches, self.net),
            sample=lambda part: sample_batches(self.objective, self.batches, key, part, sample_wise=True),
        )  # fmt: skip

    def part(self, engine, key=("a",)):
        _, g = self.step().gradient()
        return (engine(self.step(key)).gradient - g).flat()

    def dense(self):
        x, y = torch.cat([b.x for b in self.batches]), torch.cat([b.y for b in self.batches])

        def outputs(p):
            h = torch.tanh(F.linear(x, p["body.0.weight"], p["body.0.bias"]))
            return F.linear(h, p["head.weight"], p["head.bias"])

        return Dense(self.net, outputs, y)


def test_a_stack_of_unequal_domains_has_the_explicit_matrix():
    p = Stepped()
    dense = p.dense()
    v = p.c.flat() * dense.gradient()
    target = 2 * WEIGHT * dense.gauss_newton() @ v
    assert likeness(p.part(parse_engine("gauss_newton")), target)[0] < 1e-6
    assert likeness(p.part(parse_engine("gauss_newton(part=1)")), target)[0] < 1e-6
    assert likeness(p.part(mutant), target)[0] > 0.99
    both_parts = p.part(parse_engine("exact")) - p.part(parse_engine("gauss_newton"))
    assert likeness(both_parts, 2 * WEIGHT * dense.residual() @ v)[0] < 1e-6


def test_losses_of_features_count_with_their_curvature():
    """f are features and logits: a term of the features has its own Λ, and only f's own curvature is left out."""
    p = Stepped()
    p.loss = lambda out: (
        out.weights.dot(out.risks()) + (out.features**4).mean() + (out.features[:, :3] * out.logits).mean()
    )
    p.objective = OutputObjective(p.objective.evaluate, p.loss)
    names = list(trainable(p.net))
    params = {n: t.detach() for n, t in trainable(p.net).items()}
    x = torch.cat([b.x for b in p.batches])

    def outputs(theta):
        h = torch.tanh(F.linear(x, theta["body.0.weight"], theta["body.0.bias"]))
        return h, F.linear(h, theta["head.weight"], theta["head.bias"])

    def loss(f):
        return p.loss(Outputs.of(p.batches, *f))

    g = torch.func.grad(lambda t: loss(outputs(t)))(params)
    f, change = torch.func.jvp(outputs, (params,), ({n: p.c[n] * g[n] for n in names},))
    _, bent = torch.func.jvp(torch.func.grad(loss), (f,), (change,))
    (product,) = torch.func.vjp(outputs, params)[1](bent)
    target = 2 * WEIGHT * torch.cat([product[n].reshape(-1) for n in names])
    assert likeness(p.part(parse_engine("gauss_newton")), target)[0] < 1e-6


def test_parameters_that_reach_the_loss_past_the_outputs_count():
    """A norm of the head's weight in the loss: its Hessian 2·1 is there in full, beside G."""
    p = Stepped()
    p.objective = OutputObjective(p.objective.evaluate, lambda out: p.loss(out) + p.head.weight.square().sum())
    v = p.c * p.step().gradient()[1]
    norm = v.map(torch.zeros_like)
    norm["head.weight"].add_(2 * v["head.weight"])
    target = 2 * WEIGHT * (p.dense().gauss_newton() @ v.flat() + norm.flat())
    assert likeness(p.part(parse_engine("gauss_newton")), target)[0] < 1e-6
    assert float(norm.norm()) > 0.1


# Parts of the batch.


@pytest.mark.parametrize("engine", ["gauss_newton", "exact", "finite_difference"])
def test_the_mean_over_a_partition_is_the_whole(engine, monkeypatch):
    """v is of the whole batch, so the parts of a partition have the whole's product as their mean, exactly."""
    p = Stepped(sizes=(4, 8, 6))
    whole = p.part(parse_engine(engine))
    parts = []
    for half in (slice(0, None, 2), slice(1, None, 2)):
        chosen = lambda b, key, part, half=half: list(range(len(b)))[half]  # noqa: E731
        monkeypatch.setattr("dspreg.penalty.tangent._sample_rows", chosen)
        parts.append(p.part(parse_engine(f"{engine}(part=0.5)")))
    assert likeness((parts[0] + parts[1]) / 2, whole)[0] < 1e-6
    assert likeness(parts[0], whole)[0] > 0.05


@pytest.mark.parametrize("engine", ["gauss_newton", "exact"])
def test_the_mean_over_all_draws_is_the_whole_whatever_the_sizes(engine, monkeypatch):
    """Every choice of 2 of 4, 2 of 5 and 2 of 3 samples: shares of the domains that no part has."""
    p = Stepped(sizes=(4, 5, 3))
    whole = p.part(parse_engine(engine))
    total, count = torch.zeros_like(whole), 0
    rows = {}
    monkeypatch.setattr("dspreg.penalty.tangent._sample_rows", lambda b, key, part: rows[b.domain])
    for first in combinations(range(4), 2):
        for second in combinations(range(5), 2):
            for third in combinations(range(3), 2):
                rows.update({0: list(first), 1: list(second), 2: list(third)})
                total += p.part(parse_engine(f"{engine}(part=0.5)"))
                count += 1
    assert count == 6 * 10 * 3
    assert likeness(total / count, whole)[0] < 1e-6


def test_a_part_is_drawn_by_its_key_from_every_domain():
    p = Stepped(sizes=(8, 5, 3))
    objective, chosen, *_ = sample_batches(p.objective, p.batches, ("a", 0), 0.5)
    assert [len(b) for b in chosen] == [4, 2, 2]
    for whole, some in zip(p.batches, chosen, strict=True):
        rows = [next(i for i in range(len(whole)) if torch.equal(whole.x[i], x)) for x in some.x]
        assert rows == sorted(set(rows))
        assert torch.equal(whole.y[rows], some.y)
        assert whole.domain == some.domain
    again, other = (sample_batches(p.objective, p.batches, ("a", t), 0.5)[1] for t in (0, 1))
    assert all(torch.equal(a.x, b.x) for a, b in zip(chosen, again, strict=True))
    assert not all(torch.equal(a.x, b.x) for a, b in zip(chosen, other, strict=True))
    out = p.outputs(chosen)
    by_hand = sum(w * F.cross_entropy(z, y) for w, z, y in zip(
        (8 / 16, 5 / 16, 3 / 16), out.by_domain(out.logits), out.by_domain(out.labels), strict=True))  # fmt: skip
    assert objective(chosen).item() == pytest.approx(by_hand.item(), rel=1e-12)
    assert p.objective(chosen).item() != pytest.approx(by_hand.item(), rel=1e-3)


@pytest.mark.parametrize("engine", ["gauss_newton", "exact", "finite_difference"])
def test_a_part_keeps_the_direction_of_the_whole_batch(engine):
    """With the part's own gradient as direction it would be another penalty."""
    p = Stepped(sizes=(8, 8, 8))
    _, chosen, *_ = sample_batches(p.objective, p.batches, ("a",), 0.5)
    found = p.part(parse_engine(f"{engine}(part=0.5)"))
    alone = Stepped(sizes=(8, 8, 8))
    alone.batches = chosen
    dense = alone.dense()
    matrix = dense.gauss_newton() + (dense.residual() if engine != "gauss_newton" else 0)
    v = p.c.flat() * p.step().gradient()[1].flat()
    assert likeness(found, 2 * WEIGHT * matrix @ v)[0] < 1e-6


def test_a_part_and_the_rest_are_the_whole():
    p = Stepped(sizes=(8, 16, 12))
    some = sample_batches(p.objective, p.batches, ("a",), 0.25, sample_wise=True)
    objective, rest = some.rest
    assert some.share == 0.25
    for whole, inside, outside in zip(p.batches, some.batches, rest, strict=True):
        assert len(inside) == len(whole) // 4
        both = torch.cat([inside.x, outside.x])
        assert sorted(both.tolist()) == sorted(whole.x.tolist())
    mean = some.share * some.objective(some.batches) + (1 - some.share) * objective(rest)
    assert mean.item() == pytest.approx(p.objective(p.batches).item(), rel=1e-12)


def test_a_part_of_unequal_shares_has_no_rest():
    p = Stepped(sizes=(8, 5, 3))
    assert sample_batches(p.objective, p.batches, ("a",), 0.5, sample_wise=True).rest is None
    assert sample_batches(p.objective, p.batches, ("a",), 1.0, sample_wise=True).rest is None
    assert sample_batches((q := Stepped(sizes=(8, 8, 4))).objective, q.batches, ("a",), 0.5).rest is None
    assert q.part(parse_engine("finite_difference(part=0.5)")).norm() > 0
    with pytest.raises(ConfigError, match=r"here L is not their mean\. Leave part= out"):
        p.part(parse_engine("finite_difference(part=0.5)"))


# Parts in a loop of one's own: some of the closures.


def closures_of(model, problem, sizes=(3, 3, 3, 3)):
    pieces = zip(problem.x.split(list(sizes)), problem.y.split(list(sizes)), strict=True)
    return [lambda x=x, y=y: scaled_by(len(x) / len(problem.x), both(model, x, y)) for x, y in pieces]


@pytest.mark.parametrize("engine", ["gauss_newton", "exact"])
def test_in_a_loop_a_part_is_some_of_the_closures(engine, monkeypatch):
    problem = Problem("smooth")
    model = copy.deepcopy(problem.net)
    target = problem.target(engine)
    parts = []
    for order in ([0, 2, 1, 3], [1, 3, 0, 2]):
        monkeypatch.setattr(torch, "randperm", lambda n, order=order, **_: torch.tensor(order[:n]))
        penalty = dspreg.Penalty(model, weight=WEIGHT, engine=f"{engine}(part=0.5)")
        penalty.coefficients = problem.c
        closures = closures_of(model, problem)
        parts.append(problem.part(model, penalty, lambda p=penalty, c=closures: p.backward(c)))
    assert likeness((parts[0] + parts[1]) / 2, target)[0] < 1e-6
    assert likeness(parts[0], target)[0] > 0.05


@pytest.mark.parametrize("engine", ["gauss_newton(part=0.5)", "exact(part=0.5)"])
def test_a_resumed_loop_draws_the_same_parts(engine):
    problem = Problem("smooth")

    def go(model, penalty, optimizer, steps):
        for _ in range(steps):
            penalty.backward(closures_of(model, problem))
            optimizer.step()
            optimizer.zero_grad()

    def start():
        model = copy.deepcopy(problem.net)
        penalty = dspreg.Penalty(model, weight=WEIGHT, engine=engine)
        penalty.coefficients = problem.c
        return model, penalty, torch.optim.SGD(model.parameters(), lr=0.1)

    model, penalty, optimizer = start()
    go(model, penalty, optimizer, 3)
    saved = copy.deepcopy(model.state_dict()), penalty.state_dict()
    go(model, penalty, optimizer, 3)
    resumed, again, other = start()
    resumed.load_state_dict(saved[0])
    again.load_state_dict(saved[1])
    go(resumed, again, other, 3)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), resumed.parameters(), strict=True))
    forgetful, fresh, third = start()
    forgetful.load_state_dict(saved[0])
    go(forgetful, fresh, third, 3)
    assert not all(torch.equal(a, b) for a, b in zip(model.parameters(), forgetful.parameters(), strict=True))


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 9), nn.BatchNorm1d(9), nn.Tanh(), nn.Dropout(0.4), nn.Linear(9, 3))

    def forward(self, x):
        return self.layers(x)


@pytest.mark.parametrize("kind", ["one closure", "three closures", "part"])
def test_all_passes_see_the_same_random_numbers_and_leave_those_of_one(kind):
    torch.manual_seed(1)
    model = Noisy().double()
    x, y = torch.randn(12, 5, dtype=torch.float64), torch.randint(3, (12,))
    count = 1 if kind == "one closure" else 3
    pieces = list(zip(x.chunk(count), y.chunk(count), strict=True))
    closures = [lambda a=a, b=b: scaled_by(1 / count, both(model, a, b)) for a, b in pieces]

    def run(net, params=None):
        """Logits of all pieces one after the other, from one seed; buffers are those of a copy."""
        torch.manual_seed(5)
        net = copy.deepcopy(net)
        params = params or dict(net.named_parameters())
        return [torch.func.functional_call(net, params, (a,)) for a, _ in pieces], net

    params = {n: p.detach().clone().requires_grad_() for n, p in model.named_parameters()}
    logits, once = run(model, params)
    after = torch.rand(())
    loss = sum(F.cross_entropy(z, b) for z, (_, b) in zip(logits, pieces, strict=True)) / count
    g = dict(zip(params, torch.autograd.grad(loss, list(params.values()), retain_graph=True), strict=True))
    ends = [run(model, {n: (p + h * g[n]).detach() for n, p in params.items()})[0] for h in (1e-5, -1e-5)]
    used = [1] if kind == "part" else range(count)
    target = {n: torch.zeros_like(t) for n, t in g.items()}
    for i in used:
        change = ((ends[0][i] - ends[1][i]) / 2e-5).detach()
        p = logits[i].detach().softmax(1)
        bent = (p * change - p * (p * change).sum(1, keepdim=True)) / len(p) / len(used)
        found = torch.autograd.grad(logits[i], list(params.values()), bent, retain_graph=True)
        target = {n: t + 2 * WEIGHT * f for (n, t), f in zip(target.items(), found, strict=True)}

    penalty = dspreg.Penalty(
        model, weight=WEIGHT, engine="gauss_newton(part=0.34)" if kind == "part" else "gauss_newton"
    )
    if kind == "part":
        step = next(s for s in range(50) if draw(s, 3) == 1)
        penalty.steps = step
    torch.manual_seed(5)
    penalty.backward(closures if count > 1 else closures[0])
    assert torch.rand(()) == after
    part = torch.cat([(p.grad - g[n]).reshape(-1) for n, p in model.named_parameters()])
    assert likeness(part, torch.cat([t.reshape(-1) for t in target.values()]))[0] < 1e-5
    if kind == "one closure":
        assert all(torch.equal(a, b) for a, b in zip(model.buffers(), once.buffers(), strict=True))
    assert int(model.layers[1].num_batches_tracked) == count


def draw(step, count):
    from dspreg.randomness import generator

    return int(torch.randperm(count, generator=generator("Penalty", step, "part"))[0])


# As every engine in a loop.


@pytest.mark.parametrize(("kind", "calls"), [("one", 2), ("list", 9), ("part", 5), ("weightless", 1)])
def test_how_often_a_closure_is_asked_and_that_gradients_are_added(kind, calls):
    """A list is asked for the gradient, for the displaced logits and for the graph; of a part, one closure twice."""
    problem = Problem("smooth")
    model, asked = copy.deepcopy(problem.net), []
    count = 3 if kind in ("list", "part") else 1

    def counted(closure):
        asked.append(0)
        return closure()

    closures = [lambda c=c: counted(c) for c in closures_of(model, problem, [12 // count] * count)]
    engine, weight = "gauss_newton(part=0.34)" if kind == "part" else "gauss_newton", WEIGHT * (kind != "weightless")
    dspreg.Penalty(model, weight=weight, engine=engine).backward(closures if count > 1 else closures[0])
    assert len(asked) == calls
    once = [p.grad.clone() for p in model.parameters()]
    dspreg.Penalty(model, weight=weight, engine=engine).backward(closures if count > 1 else closures[0])
    for p, g in zip(model.parameters(), once, strict=True):
        torch.testing.assert_close(p.grad, 2 * g, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("failing", [2, 3])
@pytest.mark.parametrize("kind", ["one", "list"])
def test_after_an_exception_everything_is_where_it_was(kind, failing):
    problem = Problem()
    model, calls = copy.deepcopy(problem.net), []
    with torch.no_grad():
        next(model.parameters()).view(-1)[0] = 1e-30  # rounding would show
    before = [t.clone() for t in model.parameters()]
    grads = [torch.rand_like(p) for p in model.parameters()]
    for p, g in zip(model.parameters(), grads, strict=True):
        p.grad = g.clone()

    def closure():
        calls.append(0)
        if len(calls) == failing:
            raise ZeroDivisionError
        return both(model, problem.x, problem.y)

    penalty = dspreg.Penalty(model, weight=WEIGHT, engine="gauss_newton")
    if kind == "one" and failing == 3:
        penalty.backward(closure)
        for p, g in zip(model.parameters(), grads, strict=True):
            p.grad = g.clone()
    buffers = [b.clone() for b in model.buffers()]
    with pytest.raises(ZeroDivisionError):
        penalty.backward(closure if kind == "one" else [closure, closure])
    for p, old, g in zip(model.parameters(), before, grads, strict=True):
        assert torch.equal(p, old)
        assert torch.equal(p.grad, g)
    if failing == 3 and kind == "one":  # it failed in the first pass, before batch norm
        assert all(torch.equal(a, b) for a, b in zip(model.buffers(), buffers, strict=True))


def test_what_is_recorded():
    problem = Problem("smooth")
    g, c = (torch.cat([t.reshape(-1) for t in each.values()]) for each in (problem.g, problem.c))
    for engine, times in {"gauss_newton": 1, "lazy(2, gauss_newton)": 2}.items():
        model = copy.deepcopy(problem.net)
        penalty = dspreg.Penalty(model, weight=WEIGHT, engine=engine)
        penalty.coefficients = problem.c
        penalty.backward(lambda m=model: both(m, problem.x, problem.y), record=True)
        assert float(penalty.record.R) == pytest.approx(float(c @ g**2), rel=1e-12)
        expected = float(problem.target(engine).norm() / g.norm()) / times
        assert float(penalty.record.ratio) == pytest.approx(expected, rel=1e-5)


def test_a_step_that_the_scaler_skips_leaves_nothing_behind():
    problem = Problem("smooth")
    model = copy.deepcopy(problem.net).float()
    x, optimizer = problem.x.float(), torch.optim.SGD(model.parameters(), lr=0.1)
    penalty = dspreg.Penalty(model, weight=WEIGHT, engine="gauss_newton")
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=100)
    moved = []
    for factor in (1.0, float("inf"), 1.0):
        before = nn.utils.parameters_to_vector(model.parameters()).clone()
        penalty.backward(lambda factor=factor: scaled_by(factor, both(model, x, problem.y)), scaler=scaler)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        after = nn.utils.parameters_to_vector(model.parameters())
        assert torch.isfinite(after).all()
        moved.append(bool((after != before).any()))
    assert moved == [True, False, True]


@pytest.mark.parametrize("engine", ["gauss_newton", "lazy(2, gauss_newton)"])
def test_a_loop_with_a_penalty_is_the_trainer_with_dsp_reg(engine):
    algorithm = dspreg.DSPReg(weight=WEIGHT, engine=engine, refresh_steps=2, measure_batches=2)
    task = toy_task(dropout=0.0)
    algorithm = ready(algorithm, task, lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9))
    model = copy.deepcopy(algorithm.net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    penalty = dspreg.Penalty(model, weight=WEIGHT, engine=engine)
    for t in range(6):
        batches = toy_batches(t)
        if t in (2, 4):
            penalty.refresh({name: [(b.x, b.y) for b in each] for name, each in task.samples(t, 2).items()})
        x, y = torch.cat([b.x for b in batches]), torch.cat([b.y for b in batches])
        penalty.backward(lambda x=x, y=y: both(model, x, y))
        optimizer.step()
        optimizer.zero_grad()
        dspreg.train_step(algorithm, batches)
    for (name, ours), theirs in zip(model.named_parameters(), algorithm.net.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9, msg=name)


class Donated(torch.autograd.Function):
    """What inductor's graphs say where a graph is to be used again; with small networks it does not come to that."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        raise RuntimeError("This backward function was compiled with non-empty donated buffers which requires …")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("what", ["loss and logits", "logits"])
def test_compiled_functions_are_told_to_compile_the_model_alone(what):
    problem = Problem()
    model = copy.deepcopy(problem.net)
    torch._dynamo.reset()
    compiled = torch.compile(lambda: both(model, problem.x, problem.y), backend="aot_eager")

    def closure():
        logits = Donated.apply(model(problem.x))
        return F.cross_entropy(logits, problem.y), logits

    with pytest.raises(ConfigError, match=r"[Cc]ompile the model alone"):
        dspreg.Penalty(model, engine="gauss_newton").backward(compiled if what == "loss and logits" else closure)


def test_checkpointed_activations_are_computed_again_at_the_right_place():
    problem = Problem()
    model = copy.deepcopy(problem.net)
    penalty = dspreg.Penalty(model, weight=WEIGHT, engine="gauss_newton")
    penalty.coefficients = problem.c

    def closure(reentrant=False):
        inputs = problem.x.clone().requires_grad_(reentrant)
        logits = model[3:](checkpoint(model[:3], inputs, use_reentrant=reentrant))
        return F.cross_entropy(logits, problem.y), logits

    part = problem.part(model, penalty, lambda: penalty.backward(closure))
    assert likeness(part, problem.target("gauss_newton"))[0] < 1e-6
    with pytest.raises(ConfigError, match=r"'gauss_newton' .* use_reentrant=False"):
        penalty.backward(lambda: closure(reentrant=True))


# What is refused.


CLOSURES = {
    "the loss alone": (lambda m, x, y: F.cross_entropy(m(x), y), "the closure returned the loss alone; wanted"),
    "something else": (lambda m, x, y: (F.cross_entropy(m(x), y), {"z": 1}), "its loss and a dict; wanted"),
    "detached": (lambda m, x, y: (F.cross_entropy(m(x), y), m(x).detach()), "returned them detached; wanted"),
    "other logits": (
        lambda m, x, y: (F.cross_entropy(m(x), y), m(x)),
        "does not depend on the logits that it returned",
    ),
}


@pytest.mark.parametrize("case", CLOSURES)
def test_closures_without_logits_are_told_what_to_return(case):
    make, message = CLOSURES[case]
    problem = Problem("smooth")
    model = copy.deepcopy(problem.net)
    grads = [torch.rand_like(p) for p in model.parameters()]
    for p, g in zip(model.parameters(), grads, strict=True):
        p.grad = g.clone()
    for closures in (lambda: make(model, problem.x, problem.y), [lambda: make(model, problem.x, problem.y)] * 2):
        with pytest.raises(ConfigError, match=message) as error:
            dspreg.Penalty(model, weight=WEIGHT, engine="gauss_newton").backward(closures)
        assert "return criterion(logits, y), logits" in str(error.value)
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), grads, strict=True))


@pytest.mark.parametrize("engine", ["gauss_newton(part=0.5)", "exact(part=0.5)", "lazy(1, exact(part=0.5))"])
def test_a_part_of_one_closure_is_refused(engine):
    problem = Problem("smooth")
    with pytest.raises(ConfigError, match=r"part=0.5 takes a part of a list of closures, and there is one closure"):
        dspreg.Penalty(problem.net, engine=engine).backward(lambda: both(problem.net, problem.x, problem.y))


def test_a_step_without_outputs_or_batches_is_refused():
    p = Stepped()
    bare = Step(p.step().below, p.objective, p.batches, p.net, p.c, WEIGHT)
    with pytest.raises(ConfigError, match="needs the network's outputs"):
        parse_engine("gauss_newton")(bare)
    with pytest.raises(ConfigError, match=r"has no batch here to take a part of; use engine 'exact'"):
        parse_engine("exact(part=0.5)")(bare)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gauss_newton(part=0)", "part=0.0 is not above 0 and at most 1"),
        ("exact(part=1.5)", "part=1.5 is not above 0 and at most 1"),
        ("exact(part=half)", "part=half is not a number"),
        ("lookahead(part=0.5)", r"lookahead takes no \(part=0.5\)"),
        ("gauss_newton(0.5)", r"gauss_newton takes no \(0.5\)"),
    ],
)
def test_wrong_parts(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_engine(text)
