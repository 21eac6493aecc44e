"""Engine `finite_difference` against an explicit Hessian, on networks with and without kinks.

As for every engine the penalty part is compared, never the total. Differentiating twice never sees a kink; a difference
of gradients that did would be off by orders of magnitude, as the engine without its pattern is here.
"""

import copy
import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import dspreg
from dspreg import ConfigError, ParamVector
from dspreg.penalty import Step, parse_engine
from dspreg.penalty.activation_pattern import KINKED, ActivationPattern
from dspreg.testing.toy import IMAGE, toy_batches, toy_task
from dspreg.training.step import train_step
from dspreg.vectors import gradient, theta, trainable
from helpers import problems
from helpers.penalties import Problem, mutant, relative

SMALL = ["mlp", "cnn", "transformer", "tied", "alias", "hidden", "partly frozen", "keywords"]


def loss_of(name, net, batch):
    if name == "keywords":
        return F.cross_entropy(net(batch["input_ids"], batch["attention_mask"]).logits, batch["labels"])
    return F.cross_entropy(net(batch[0]), batch[1])


def step_of(net, loss, c, weight=1e-3):
    def below(objective, batches):
        value = objective(batches)
        return value.detach(), gradient(value, net)

    return Step(below, lambda _: loss(), [], net, c, weight)


def random_c(net):
    torch.manual_seed(3)
    return ParamVector((n, torch.rand_like(p.detach()) * 1.4) for n, p in trainable(net).items())


def part(engine, net, loss):
    """The penalty part, and 2λ H (c⊙g) by differentiating twice."""
    c = random_c(net)
    found = parse_engine(engine)(step_of(net, loss, c))
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        g = gradient(loss(), net, create_graph=True)
        v = ParamVector((n, c[n] * t.detach()) for n, t in g.items() if n in c)
        target = gradient(g.dot(v), net) * 2e-3
    plain = ParamVector((n, t.detach()) for n, t in g.items())
    missing = plain.map(torch.zeros_like)
    return (found.gradient - plain + missing).flat(), (target + missing).flat()


@pytest.mark.parametrize("name", SMALL)
def test_it_is_the_hessian_vector_product(name):
    net, batch = problems.model(name).eval(), problems.batch(name, 0, 4)
    found, target = part("finite_difference", net, lambda: loss_of(name, net, batch))
    assert float(target.norm()) > 0
    assert relative(found - target, target) < 1e-6


def test_it_is_the_explicit_hessian_in_one_piece():
    """H by differentiating a flat function entry by entry; a mutant that returns the gradient fails."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 5), nn.ReLU6(), nn.Linear(5, 3)).double()
    problem = Problem(1e-2, net)
    assert relative(problem.part(parse_engine("finite_difference")) - problem.target, problem.target) < 1e-6
    assert relative(problem.part(mutant) - problem.target, problem.target) == 1


@pytest.mark.parametrize(("name", "tolerance"), [("resnet18", 2e-3), ("lite0", 2e-2), ("vit", 3e-3)])
def test_on_real_networks_in_float32(name, tolerance):
    net = problems.model(name).eval().float()
    x, y = problems.batch(name, 0, 3)
    loss = lambda: F.cross_entropy(net(x.float()), y)  # noqa: E731
    found, target = part("finite_difference", net, loss)
    assert relative(found - target, target) < tolerance


def test_without_the_pattern_a_difference_as_small_is_useless():
    net = problems.model("resnet18").eval().float()
    x, y = problems.batch("resnet18", 0, 3)
    loss = lambda: F.cross_entropy(net(x.float()), y)  # noqa: E731
    _, target = part("finite_difference", net, loss)
    step = step_of(net, loss, random_c(net))
    _, g = step.gradient()
    h = 1e-4 / float((step.c * g).norm())
    jumps = (step.gradient(g, h)[1] - g).flat() * (2e-3 / h)
    assert relative(jumps - target, target) > 0.5


class Custom(nn.Module):
    """A layer between two linear ones, computed by any function."""

    def __init__(self, function):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.last, self.function = nn.Linear(4, 8), nn.Linear(8, 3), function
        self.weight = nn.Parameter(torch.tensor([0.3]))

    def forward(self, x):
        return self.last(self.function(5 * self.first(x), self.weight).reshape(len(x), -1).repeat(1, 8)[:, :8])


def in_place(x, function, *arguments):
    """What the function makes of x itself, whatever it returns."""
    function(x, *arguments)
    return x


FUNCTIONS = {
    "relu": lambda x, w: F.relu(x),
    "relu in place": lambda x, w: F.relu(x, inplace=True),
    "Tensor.relu_": lambda x, w: (x * 1).relu_(),
    "relu6": lambda x, w: nn.ReLU6(inplace=True)(x),
    "hardtanh": lambda x, w: F.hardtanh(x, -0.5, 1.5),
    "leaky_relu": lambda x, w: F.leaky_relu(x, 0.2),
    "leaky_relu in place": lambda x, w: nn.LeakyReLU(0.2, inplace=True)(x),
    "prelu": lambda x, w: F.prelu(x, w),
    "hardswish": lambda x, w: F.hardswish(x),
    "hardswish in place": lambda x, w: F.hardswish(x * 1, inplace=True),
    "abs": lambda x, w: abs(x),
    "clamp": lambda x, w: x.clamp(-1, 2),
    "clamp in place": lambda x, w: (x * 1).clamp_(min=-1),
    "clamp by a parameter": lambda x, w: torch.clamp(x, max=w.expand_as(x)),
    "clamp_min": lambda x, w: x.clamp_min(0.5),
    "clamp_max": lambda x, w: torch.clamp_max(x, 0.5),
    "clamp by a tensor": lambda x, w: x.clamp(min=torch.zeros(8, dtype=x.dtype)),
    "clamp in place by a tensor": lambda x, w: in_place(x * 1, Tensor.clamp_, torch.zeros(8, dtype=x.dtype)),
    "elu": lambda x, w: F.elu(x, 2.0),
    "elu in place": lambda x, w: in_place(x * 1, F.elu_, 0.5),
    "selu": lambda x, w: nn.SELU()(x),
    "selu in place": lambda x, w: nn.SELU(inplace=True)(x * 1),
    "threshold": lambda x, w: F.threshold(x, 0.2, -0.3),
    "threshold in place": lambda x, w: nn.Threshold(0.2, -0.3, inplace=True)(x * 1),
    "softshrink": lambda x, w: F.softshrink(x, 0.3),
    "hardshrink": lambda x, w: F.hardshrink(x, 0.3),
    "maximum": lambda x, w: torch.maximum(x, w * x.square()),
    "minimum": lambda x, w: torch.minimum(x, w * x.square()),
    "max of two": lambda x, w: torch.max(x, w.expand_as(x)),
    "max over a dimension": lambda x, w: x.view(-1, 2, 4).max(1).values,
    "max that keeps it": lambda x, w: torch.max(x.view(-1, 2, 4), dim=1, keepdim=True)[0],
    "max of all": lambda x, w: x - x.max(),
    "amax": lambda x, w: x.view(-1, 2, 2, 2).amax((1, 3)),
    "amin": lambda x, w: torch.amin(x.view(-1, 2, 4), dim=1, keepdim=True),
    "max_pool1d": lambda x, w: F.max_pool1d(x, 2),
    "max_pool2d": lambda x, w: nn.MaxPool2d(2)(x.view(-1, 1, 2, 4)),
    "adaptive_max_pool2d": lambda x, w: nn.AdaptiveMaxPool2d(1)(x.view(-1, 2, 2, 2)),
    "where": lambda x, w: torch.where(x > 0, x.square(), 0.1 * x),
    "mask": lambda x, w: x * (x.ge(0) + 0.1 * x.lt(0)),
    "sign": lambda x, w: x.square() * x.sign(),
    "detach": lambda x, w: x * torch.detach(x).square() + w * x,
    "detach, then in place": lambda x, w: (lambda y: y.detach().sin() * x + y.relu_())(x * 1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_kind_of_kink_is_held(name):
    """The displaced evaluation is far off, so that units change sides: it is on the piece of θ all the same."""
    net = Custom(FUNCTIONS[name]).double()
    torch.manual_seed(2)
    x, y = torch.randn(40, 4, dtype=torch.float64), torch.randint(3, (40,))
    found, target = part("finite_difference", net, lambda: F.cross_entropy(net(x), y))
    assert relative(found - target, target) < 1e-5

    pattern, plain = ActivationPattern(), net(x)
    with pattern.recorded():
        here = net(x)
    assert pattern.pieces
    torch.testing.assert_close(here, plain, rtol=0, atol=1e-14 if "hardswish" in name or "elu" in name else 0)
    with pattern.replayed():
        torch.testing.assert_close(net(x), plain, rtol=1e-12, atol=1e-12)
    with torch.no_grad():
        net.first.bias += torch.linspace(-1, 1, 8, dtype=torch.float64)
    with pattern.replayed():
        held = net(x)
    assert float((held - net(x)).detach().abs().max()) > 1e-3


@pytest.mark.parametrize("name", ["tensor", "number"])
def test_at_a_kink_both_evaluations_have_one_slope(name):
    """Else they would differ by a jump, divided by a tiny displacement."""
    bound = torch.zeros(8, dtype=torch.float64) if name == "tensor" else 0.0
    net = Custom(lambda x, w: x.clamp(min=bound)).double()
    with torch.no_grad():
        net.first.weight.zero_()
        net.first.bias.zero_()
    x, y = torch.randn(40, 4, dtype=torch.float64), torch.randint(3, (40,))
    result = parse_engine("finite_difference")(step_of(net, lambda: F.cross_entropy(net(x), y), random_c(net)))
    found = (result.gradient - result.plain).flat()
    assert float(found.norm()) < 1, "of the order of the gradient, and not of 1e8"


MASK = torch.tensor([True, False, False])
INFINITE = {
    "amax": lambda o: (o - o.amax(1, keepdim=True)).exp().sum(1).log() + o.amax(1),
    "max of all": lambda o: (o - o.max()).exp().sum(1).log() + o.max(),
    "maximum": lambda o: torch.maximum(o, torch.full_like(o, -math.inf)).logsumexp(1),
    "clamp": lambda o: o.clamp(min=-10.0).logsumexp(1),
}


@pytest.mark.parametrize("name", INFINITE)
def test_what_a_mask_has_made_infinite_stays_out_of_it(name):
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    x = torch.randn(40, 4, dtype=torch.float64)
    loss = lambda: INFINITE[name](net(x).masked_fill(MASK, -math.inf)).square().mean()  # noqa: E731
    found, target = part("finite_difference", net, loss)
    assert relative(found - target, target) < 1e-6


SMOOTH = {
    "the largest label": lambda o, y: F.cross_entropy(o, y) * int(y.max()),
    "the largest label by amax": lambda o, y: F.cross_entropy(o, y) * int(y.amax()),
    "labels in place": lambda o, y: F.cross_entropy(o, in_place(y.clone(), Tensor.clamp_, 0, 1)),
    "labels beside ones": lambda o, y: F.cross_entropy(o, torch.maximum(y, torch.ones_like(y))),
    "any": lambda o, y: F.cross_entropy(o, y) * float((o > 0).max()),
    "amplitudes": lambda o, y: torch.fft.fft(o).abs().square().mean(),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_whole_and_complex_numbers_have_no_kink(name):
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    x, y = torch.randn(40, 4, dtype=torch.float64), torch.randint(3, (40,))
    found, target = part("finite_difference", net, lambda: SMOOTH[name](net(x), y))
    assert float(target.norm()) > 0
    assert relative(found - target, target) < 1e-6


@pytest.mark.parametrize("spec", ["MixStyle", "GroupDRO", "DomainDrop", "SagNet", "Anchor(weight=0.1)"])
def test_over_methods_that_detach(spec):
    """What their losses detach is a constant for both engines. Over Anchor its whole term is differentiated."""
    ends = {}
    for engine in ("finite_difference", "exact", "central", None):
        option = f"+DSPReg(weight=0.01, engine={engine!r}, refresh_steps=100)" if engine else ""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", dspreg.Notice)
            stack = dspreg.parse(spec + option).setup(toy_task(inputs=IMAGE), lambda p: torch.optim.SGD(p, lr=0.1))
        for t in range(2):
            train_step(stack.double(), toy_batches(t, inputs=IMAGE))
        ends[engine] = theta(stack.net)
    wanted = ends["central" if spec.startswith("Anchor") else "exact"]
    part = float((wanted - ends[None]).norm())
    assert part > 1e-4
    tolerance = 1e-2 if spec.startswith("Anchor") else 1e-6
    assert float((ends["finite_difference"] - wanted).norm()) < tolerance * part


def test_rrelu_is_refused():
    net = nn.Sequential(nn.Linear(2, 4), nn.RReLU(), nn.Linear(4, 2))
    with pytest.raises(ConfigError, match=r"cannot hold RReLU.*Use engine 'exact'"):
        parse_engine("finite_difference")(step_of(net, lambda: net(torch.ones(3, 2)).sum(), random_c(net)))


def test_hardsigmoid_which_torch_cannot_differentiate_twice_is_held():
    net = Custom(lambda x, w: F.hardsigmoid(x)).double()
    by_hand = Custom(lambda x, w: ((x + 3).relu() - (x - 3).relu()) / 6).double()
    x, y = torch.randn(40, 4, dtype=torch.float64), torch.randint(3, (40,))
    found = parse_engine("finite_difference")(step_of(net, lambda: F.cross_entropy(net(x), y), random_c(net)))
    other, _ = part("finite_difference", by_hand, lambda: F.cross_entropy(by_hand(x), y))
    mine = (found.gradient - found.plain).flat()
    assert relative(mine - other, other) < 1e-5


def test_every_function_that_is_held_has_a_case():
    seen = set()

    class Seen(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.add(getattr(func, "__name__", str(func)).strip("_"))
            return func(*args, **(kwargs or {}))

    with Seen():
        for function in FUNCTIONS.values():
            function(torch.randn(40, 8), torch.tensor([0.3]))
    names = {getattr(function, "__name__", str(function)).strip("_") for function in KINKED}
    rare = {
        "argmax",
        "argmin",
        "clip",
        "gt",
        "le",
        "min",
        "max_pool3d",
        "adaptive_max_pool1d",
        "adaptive_max_pool3d",
        "hardsigmoid",
        "rrelu",
    }
    assert names - seen <= rare | {"relu6"}  # nn.ReLU6 calls hardtanh


def test_other_calls_at_the_second_evaluation_are_refused():
    net = nn.Linear(2, 2)
    calls = []

    def loss():
        calls.append(1)
        out = net(torch.ones(3, 2))
        return (out.relu() if len(calls) % 2 else out.abs()).sum()

    with pytest.raises(ConfigError, match=r"computed in another way at its second evaluation.*use engine 'exact'"):
        parse_engine("finite_difference")(step_of(net, loss, random_c(net)))

    def fewer():
        calls.append(1)
        out = net(torch.ones(3, 2))
        return (out.relu().relu() if len(calls) % 2 == 0 else out.relu()).sum()

    calls.append(1)
    with pytest.raises(ConfigError, match="computed in another way"):
        parse_engine("finite_difference")(step_of(net, fewer, random_c(net)))


def test_a_scripted_network_with_kinks_is_refused():
    net = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch.jit is deprecated, and in use
        scripted = torch.jit.trace(net, torch.ones(3, 2))
    with pytest.raises(ConfigError, match=r"has ReLU, and none of them was seen at work"):
        parse_engine("finite_difference")(
            step_of(net, lambda: scripted(torch.ones(3, 2)).square().sum(), random_c(net))
        )


def test_a_scripted_part_of_a_network_is_refused_too():
    """Also where other kinks are seen, and where the scripted module is all that there is."""
    inside = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))
    smooth = nn.Sequential(nn.Linear(2, 4), nn.GELU(), nn.Linear(4, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted, curved = torch.jit.script(inside), torch.jit.script(smooth)
    x = torch.ones(3, 2)
    for net in (scripted, nn.Sequential(scripted, nn.ReLU(), nn.Linear(2, 2))):
        with pytest.raises(ConfigError, match=r"the network has relu, and none of them was seen at work"):
            parse_engine("finite_difference")(step_of(net, lambda net=net: net(x).square().sum(), random_c(net)))
    found, target = part("finite_difference", curved.double(), lambda: curved(x.double()).square().sum())
    assert relative(found - target, target) < 1e-6


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_is_refused(reentrant):
    """Activations that are computed again in the backward pass would not be held."""
    first = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU())
    net = nn.Sequential(first, nn.Linear(8, 3))
    x, y = torch.randn(12, 4, requires_grad=True), torch.randint(3, (12,))
    before = copy.deepcopy(net.state_dict())
    penalty = dspreg.Penalty(net, weight=1e-2, engine="finite_difference")
    with pytest.raises(ConfigError, match=r"cannot hold the ReLUs of a network with checkpointing.*Use engine 'exact'"):
        penalty.backward(lambda: F.cross_entropy(net[1](checkpoint(first, x, use_reentrant=reentrant)), y))
    assert all(torch.equal(t, before[n]) for n, t in net.state_dict().items())


def test_where_the_gradient_is_zero_there_is_no_penalty():
    net = nn.Linear(2, 2)
    found = parse_engine("finite_difference")(step_of(net, lambda: net(torch.zeros(3, 2)).sum() * 0, random_c(net)))
    assert not any(t.any() for t in found.gradient.values())
    assert found.plain is not None


def test_the_pattern_does_not_outlive_the_step_nor_an_error():
    net = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))
    before = copy.deepcopy(net)(torch.ones(3, 2))

    def failing():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        parse_engine("finite_difference")(step_of(net, failing, random_c(net)))
    assert torch.equal(net(torch.ones(3, 2)), before)
