"""Engines against an explicit Hessian. What is compared is always the penalty part, never the total: a penalty of a
thousandth of the gradient could be missing altogether and the totals would still agree to three digits. Every check
therefore also has to fail for an engine that returns the plain gradient.
"""

import math
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dspreg import ConfigError, Notice, ParamVector
from dspreg.penalty import Step, parse_engine
from dspreg.vectors import trainable
from helpers.penalties import Problem, below, mutant, quadratic, relative, settle

# The checks: each is true of its engine and must be false of the mutant.


def exact_is_the_hessian_vector_product(engine):
    return all(relative(p.part(engine) - p.target, p.target) < 1e-12 for p in (Problem(), Problem(0.3), quadratic()))


def close_to_the_hessian_vector_product(engine):
    return all(relative(p.part(engine) - p.target, p.target) < 1e-6 for p in (Problem(), Problem(0.3), quadratic()))


def error_falls_with_slope_one(engine):
    """Over three decades of λ the relative error of the penalty part is proportional to λ."""
    weights = [1e-1, 1e-2, 1e-3, 1e-4]
    errors = [relative(p.part(engine) - p.target, p.target) for p in map(Problem, weights)]
    slopes = [math.log10(a / b) for a, b in pairwise(errors)]
    return all(abs(slope - 1) < 0.1 for slope in slopes)


def exact_on_quadratics(engine):
    return relative(quadratic().part(engine) - quadratic().target, quadratic().target) < 1e-10


def close_in_float32(engine):
    p = Problem()
    target, g = p.target, p.flat.gradient(p.flat.theta)
    part = p.run(engine, torch.float32)[1] - g
    return relative(part - target, target) < 1e-2


def mean_solves_its_equation(engine):
    """m = g(θ + 2λ c⊙m) on a network, and on a quadratic m = (I − 2λ A diag c)⁻¹ g."""
    p = Problem(0.05)
    settle(p, engine)
    m = ParamVector((n, p.memory.bias_corrected_mean()[n]) for n in p.flat.names).flat() if p.memory.mass else 0 * p.c
    there = p.flat.gradient(p.flat.theta + 2 * p.weight * p.c * m)
    q = quadratic(0.02)
    g = q.flat.gradient(q.flat.theta)
    closed = torch.linalg.solve(torch.eye(len(g), dtype=torch.float64) - 2 * q.weight * q.a * q.c, g)
    return relative(m - there, there) < 1e-8 and relative(settle(q, engine) - closed, closed) < 1e-8


def tends_to_lookahead(engine):
    """The settled penalty part differs from lookahead's by a share proportional to λ."""
    errors = []
    for weight in (1e-2, 1e-3, 1e-4):
        p = Problem(weight)
        other = p.part(parse_engine("lookahead"))
        errors.append(relative(settle(p, engine) - p.flat.gradient(p.flat.theta) - other, other))
    return all(abs(math.log10(a / b) - 1) < 0.1 for a, b in pairwise(errors))


def sums_to_the_inner_engine(inner, every):
    """k frozen steps sum to k times the inner engine's penalty part, to rounding."""

    def check(engine):
        p = Problem()
        expected = p.part(parse_engine(inner)) * every
        total = torch.zeros_like(expected)
        for _ in range(every):
            total += p.part(engine)
            p.memory.commit()
        return relative(total - expected, expected) < 1e-12

    return check


CHECKS = [
    ("exact", exact_is_the_hessian_vector_product),
    ("lookahead", error_falls_with_slope_one),
    ("lookahead(radius=0.2*weight)", error_falls_with_slope_one),
    ("lookahead", exact_on_quadratics),
    ("lookahead(radius=1e-4)", exact_on_quadratics),
    ("finite_difference", close_to_the_hessian_vector_product),
    ("finite_difference", close_in_float32),
    ("central", exact_on_quadratics),
    ("central", close_in_float32),
    ("momentum", mean_solves_its_equation),
    ("momentum(beta=0.5)", mean_solves_its_equation),
    ("momentum", tends_to_lookahead),
    ("lazy(5)", sums_to_the_inner_engine("lookahead", 5)),
    ("lazy(3, finite_difference)", sums_to_the_inner_engine("finite_difference", 3)),
    ("lazy(3, exact)", sums_to_the_inner_engine("exact", 3)),
    ("lazy(4, lookahead(radius=1e-4))", sums_to_the_inner_engine("lookahead(radius=1e-4)", 4)),
]


@pytest.mark.parametrize(("name", "check"), CHECKS, ids=[f"{n}-{c.__qualname__.split('.')[0]}" for n, c in CHECKS])
def test_engine(name, check):
    assert check(parse_engine(name))
    assert not check(mutant)


def test_lazy_acts_on_every_kth_step_and_no_other():
    p = Problem()
    acts = []
    for _ in range(7):
        acts.append(float(p.part(parse_engine("lazy(3)")).norm()) > 0)
        p.memory.commit()
    assert acts == [False, False, True, False, False, True, False]


def test_a_smaller_radius_is_closer_to_exact():
    errors = [relative(p.part(parse_engine(n)) - p.target, p.target) for p in [Problem(0.1)] for n in NAMED_RADII]
    assert errors[0] > 5 * errors[1] > 20 * errors[2]


NAMED_RADII = ("lookahead", "lookahead(radius=0.2*weight)", "lookahead(radius=1e-4)")


def test_lookahead_with_twice_the_weight_is_the_plain_gradient_at_the_displaced_point():
    p = Problem(0.05)
    g = p.flat.gradient(p.flat.theta)
    there = p.flat.gradient(p.flat.theta + 0.1 * p.c * g)
    assert relative(p.run(parse_engine("lookahead"))[1] - there, there) < 1e-14


def test_with_c_one_lookahead_is_sam_without_the_normalisation():
    p = Problem(0.05)
    p.c = torch.ones_like(p.c)
    g = p.flat.gradient(p.flat.theta)
    sam = p.flat.gradient(p.flat.theta + (0.1 * g.norm()) * g / g.norm())  # ρ = 2λ‖g‖
    assert relative(p.run(parse_engine("lookahead"))[1] - sam, sam) < 1e-14


@pytest.mark.parametrize("name", ["exact", "finite_difference", "lookahead", "central", "lazy(1)", "lazy(2, exact)"])
def test_the_loss_is_that_at_theta_and_parameters_come_back_to_the_bit(name):
    p = Problem(0.1)
    before = [t.clone() for t in p.net.parameters()]
    loss, _ = p.run(parse_engine(name))
    assert loss.item() == pytest.approx(p.flat.loss(p.flat.theta).item(), rel=1e-14)
    assert not loss.requires_grad
    assert all(torch.equal(a, b) for a, b in zip(before, p.net.parameters(), strict=True))


def test_parameters_come_back_after_an_exception():
    p = Problem(0.1)
    before = [t.clone() for t in p.net.parameters()]
    calls, loss = [], p.loss

    def failing(params):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return loss(params)

    p.loss = failing
    with pytest.raises(KeyboardInterrupt):
        p.run(parse_engine("lookahead"))
    assert all(torch.equal(a, b) for a, b in zip(before, p.net.parameters(), strict=True))


def test_excluded_parameters_are_not_displaced_but_receive_the_penalty_through_the_hessian():
    """c_k = 0 does not mean that the penalty leaves θ_k alone: H mixes parameters."""
    p = Problem()
    p.c[: p.flat.shapes[0].numel()] = 0
    full = p.part(parse_engine("exact"))
    names = p.flat.names[1:]
    below.net = p.net
    part = ParamVector((n, t) for n, t in p.flat.split(p.c).items() if n in names)  # the first is absent
    step = Step(below, lambda _: p.loss(trainable(p.net)), [], p.net, part, p.weight)
    absent = ParamVector((n, parse_engine("exact")(step).gradient[n]) for n in p.flat.names).flat()
    assert relative(absent - p.flat.gradient(p.flat.theta) - full, full) < 1e-12
    assert full[: p.flat.shapes[0].numel()].abs().max() > 0


def test_momentum_has_no_fixed_point_for_a_large_weight():
    """On a quadratic the settled mean exists while 2λ·λmax(A diag c) < 1, and grows without bound beyond."""
    q = quadratic()
    largest = float(torch.linalg.eigvals(q.a * q.c).real.max())
    for factor, settles in ((0.8, True), (1.3, False)):
        q = quadratic(factor / (2 * largest))
        early, late = (float(settle(q, parse_engine("momentum"), n).norm()) for n in (300, 300))
        assert (late < 1.01 * early) is settles
        assert (late > 100 * early) is not settles


def test_momentum_starts_plain_and_is_bias_corrected():
    p = Problem(0.1)
    engine = parse_engine("momentum(beta=0.99)")
    first = p.run(engine)[1]
    g = p.flat.gradient(p.flat.theta)
    assert torch.equal(first, g)
    p.memory.commit()
    assert relative(p.run(engine)[1] - p.flat.gradient(p.flat.theta + 0.2 * p.c * g), g) < 1e-14


def test_memory_changes_only_at_commit():
    p = Problem(0.1)
    engine = parse_engine("momentum")
    p.run(engine)
    p.memory.commit()
    one, two = p.run(engine)[1], p.run(engine)[1]
    assert torch.equal(one, two)


def test_central_at_a_stationary_point_returns_the_gradient():
    q = quadratic()
    with torch.no_grad():
        q.net.theta.zero_()
    q.loss = lambda p: p["theta"].square().sum() * 0
    assert torch.equal(q.run(parse_engine("central"))[1], torch.zeros(6, dtype=torch.float64))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.inputs, self.head = nn.Linear(4, 12), nn.Linear(4, 3)

    def forward(self, x):
        q, k, v = self.inputs(x[:, None].expand(-1, 5, -1) * torch.arange(1, 6)[:, None]).chunk(3, -1)
        return self.head(F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0].mean(1))


def test_exact_on_fused_attention_says_so_once_and_is_right():
    net = Attention().double()
    torch.manual_seed(0)
    x, y = torch.randn(6, 4, dtype=torch.float64), torch.randint(3, (6,))
    p = Problem(0.01, net, lambda params: F.cross_entropy(torch.func.functional_call(net, params, x), y))
    with pytest.warns(Notice, match="fused attention has no second derivative"):
        part = p.part(parse_engine("exact"))
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        target = p.target
    assert relative(part - target, target) < 1e-10
    p.part(parse_engine("exact"))  # a second notice would fail the test


@pytest.mark.parametrize("name", ["exact", "finite_difference", "lookahead", "central", "lazy(1)", "momentum"])
@pytest.mark.filterwarnings("ignore:engine 'momentum' runs in full precision")
def test_under_autocast_the_penalty_part_is_that_of_full_precision(name):
    """In bfloat16 a displacement of 1e-5 is rounded away: the difference of gradients would be zero or noise."""
    p = Problem(1e-3)
    target, g = p.target, p.flat.gradient(p.flat.theta)
    with torch.autocast("cpu", torch.bfloat16):
        total = p.run(parse_engine(name), torch.float32)[1]
        if name == "momentum":  # its first step has no mean yet
            p.memory.commit()
            total = p.run(parse_engine(name), torch.float32)[1]
    assert float(F.cosine_similarity(total - g, target, dim=0)) > 0.99
    assert 0.9 < float((total - g).norm() / target.norm()) < 1.1


def test_momentum_says_that_it_leaves_autocast():
    p = Problem()
    with torch.autocast("cpu", torch.bfloat16), pytest.warns(Notice, match="'momentum' runs in full precision"):
        p.run(parse_engine("momentum"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("quick", "no engine 'quick'"),
        ("lazy", "lazy takes a number of steps"),
        ("lazy(0)", "whole number of steps ≥ 1, not 0"),
        ("lazy(2.5)", "whole number of steps ≥ 1, not 2.5"),
        (
            "lazy(30, momentum)",
            "lazy takes exact, finite_difference, gauss_newton, lookahead or central inside, not momentum",
        ),
        ("lazy(3, lazy(2))", "inside, not lazy"),
        ("lookahead(radius=1e999)", "is not a positive number"),
        ("momentum(beta=1.0)", r"beta=1.0 is not in \[0, 1\)"),
        ("lookahead(radius=-1)", "radius=-1 is not a positive number"),
        ("lookahead(radius=0)", "radius=0 is not a positive number"),
        ("lookahead(1e-4)", r"lookahead takes no \(0.0001\)"),
        ("exact(order=2)", r"exact takes no \(order=2\)"),
        ("exact(", "'exact\\('"),
        ("__import__('os')", "no engine '__import__'"),
        ("lookahead(radius=__import__('os').getpid())", r"radius=__import__\('os'\)\.getpid\(\) is not a number"),
    ],
)
def test_unknown_engines_are_refused_with_the_known_ones(text, message):
    with pytest.raises(ConfigError, match=message) as error:
        parse_engine(text)
    assert "Wanted exact, finite_difference" in str(error.value)
