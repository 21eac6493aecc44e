"""The paper's statements, each where it holds and where it fails. docs/understand/theory.md says the same in words."""

import math
from itertools import combinations

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from dspreg.sensitivity.statistics import coefficient_of_variation
from dspreg.vectors import ParamVector
from reference.theory import (
    contributions,
    covariance_propagation,
    factorised_fisher_diagonal,
    fisher_diagonal,
    jacobians,
    off_diagonal_bound,
    parameter_jacobians,
    shared_contributions,
    softmax_score,
)

HIDDEN, D_X = 4, 3


def vector(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def network(d_y: int = 2, seed: int = 0) -> nn.Sequential:
    """W₂ tanh(W₁ x + b₁) + b₂, with d_θ = 16 + 5 d_y parameters of size about one half."""
    net = nn.Sequential(nn.Linear(D_X, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, d_y)).double()
    d_theta = sum(p.numel() for p in net.parameters())
    nn.utils.vector_to_parameters(0.5 * normal(d_theta, seed=seed), net.parameters())
    return net


def by_hand(theta: Tensor, x: Tensor, d_y: int = 2) -> Tensor:
    """The same network for n parameter vectors and n inputs at once, cut out of θ without named_parameters."""
    w1, b1, w2, b2 = theta.split([HIDDEN * D_X, HIDDEN, d_y * HIDDEN, d_y], dim=1)
    hidden = torch.tanh(torch.einsum("nhi,ni->nh", w1.reshape(-1, HIDDEN, D_X), x) + b1)
    return torch.einsum("nah,nh->na", w2.reshape(-1, d_y, HIDDEN), hidden) + b2


def flat(net: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(net.parameters()).detach()


class Powers(nn.Module):
    """f(x) = Σ_k θ_k x_k^p, so that j_k(x) = x_k^p whatever θ is."""

    def __init__(self, n: int = 1, power: int = 1):
        super().__init__()
        self.theta, self.power = nn.Parameter(torch.ones(n, dtype=torch.float64)), power

    def forward(self, x: Tensor) -> Tensor:
        return (self.theta * x**self.power).sum(1, keepdim=True)


class TwoLogits(nn.Module):
    """f(x) = (θ₁x + θ₂, −θ₁x + θ₂): θ₁ separates the classes, θ₂ lifts both logits and changes no probability."""

    def __init__(self, *theta: float):
        super().__init__()
        self.theta = nn.Parameter(vector(*theta))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.theta[0] * x + self.theta[1], -self.theta[0] * x + self.theta[1]], 1)


def sensitivity(f: nn.Module, xs: Tensor, variance: float = 1.0) -> Tensor:
    """The paper's s_k on one domain (eq. 12, 18, 32)."""
    return shared_contributions(f, xs, torch.full_like(flat(f), variance))


def variation(*per_domain: Tensor, eps: float = 0.0) -> Tensor:
    """The paper's c_k (eq. 20–22)."""
    return coefficient_of_variation([ParamVector({"theta": s}) for s in per_domain], eps)["theta"]


def order(values: Tensor) -> list[int]:
    """Positions from the largest value to the smallest."""
    return values.argsort(descending=True).tolist()


# ── Linearisation, eq. 1–4 ───────────────────────────────────────────────────────────────────────────────────────────


def test_jacobians_equal_central_differences():
    net, x, h = network(), normal(D_X, seed=1), 1e-5
    theta = flat(net)
    j_x, j_theta = jacobians(net, x)
    for i, e in enumerate(torch.eye(D_X, dtype=torch.float64) * h):
        assert_close(j_x[:, i], (net(x + e) - net(x - e)) / (2 * h), rtol=0, atol=1e-9)
    for k, e in enumerate(torch.eye(len(theta), dtype=torch.float64) * h):
        slope = (by_hand((theta + e)[None], x[None]) - by_hand((theta - e)[None], x[None]))[0] / (2 * h)
        assert_close(j_theta[:, k], slope, rtol=0, atol=1e-9)


def test_jacobians_are_of_trainable_parameters_and_flatten_what_has_a_shape():
    class Shaped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x.flatten(1))[:, :, None]

    f, x = Shaped(), normal(D_X, seed=1)
    full_x, full_theta = jacobians(f.net, x)
    f.net[0].weight.requires_grad_(False)
    f.net[2].bias.requires_grad_(False)
    j_x, j_theta = jacobians(f, x.reshape(D_X, 1, 1))
    assert_close(j_x, full_x)
    assert_close(j_theta, full_theta[:, HIDDEN * D_X : -2])
    assert_close(parameter_jacobians(f, x.reshape(1, D_X, 1, 1)), j_theta[None])
    with pytest.raises(ValueError, match="no trainable parameters"):
        jacobians(f.requires_grad_(False), x)


def test_linearisation_error_falls_with_the_square_of_the_perturbation():
    net, x = network(), normal(D_X, seed=1)
    theta, dx, dtheta = flat(net), normal(D_X, seed=2), normal(26, seed=3)
    j_x, j_theta = jacobians(net, x)

    def error(h: float) -> float:
        exact = by_hand((theta + h * dtheta)[None], (x + h * dx)[None])[0] - net(x)
        return (exact - h * (j_x @ dx + j_theta @ dtheta)).norm().item()

    slopes = [math.log2(error(h) / error(h / 2)) for h in (1e-2, 1e-3, 1e-4)]
    assert slopes == pytest.approx([2, 2, 2], abs=0.05)
    forgotten = (by_hand((theta + 1e-4 * dtheta)[None], (x + 1e-4 * dx)[None])[0] - net(x) - 1e-4 * j_x @ dx).norm()
    assert forgotten > 1000 * error(1e-4)  # without the J_θ term the error would be of first order


def test_linearisation_error_is_of_first_order_at_a_kink():
    f = nn.Sequential(Powers(), nn.ReLU())
    j_x, _ = jacobians(f, vector(0.0))
    errors = [(f(vector(h)[None]) - j_x * h).item() for h in (1e-2, 5e-3)]
    assert errors == [1e-2, 5e-3]  # slope 1: relu(x) is not twice differentiable at 0


# ── Theorem 1 ────────────────────────────────────────────────────────────────────────────────────────────────────────


def joint_covariance(crossed: bool) -> Tensor:
    """Cov(δx, δθ) (29, 29) with perturbations of about 5e-4, so that curvature stays far below the sampling error."""
    root = 1e-4 * normal(29, 29, seed=4)
    if not crossed:
        root[:D_X, D_X:] = root[D_X:, :D_X] = 0.0
    return root @ root.T


def sampled_covariance(net: nn.Module, x: Tensor, sigma: Tensor, law: str, n: int = 40_000) -> tuple[Tensor, Tensor]:
    """Cov(δy) over n perturbations of the real network, and its standard error, entry by entry. 2 × (d_y, d_y)"""
    unit = normal(n, len(sigma), seed=5)
    if law == "uniform":
        unit = (torch.special.ndtr(unit) - 0.5) * math.sqrt(12)
    delta = unit @ torch.linalg.cholesky(sigma).T
    dy = by_hand(flat(net) + delta[:, D_X:], x + delta[:, :D_X]) - net(x).detach()
    products = dy[:, :, None] * dy[:, None, :]
    return products.mean(0), products.std(0) / math.sqrt(n)


@pytest.mark.parametrize("law", ["normal", "uniform"])
@pytest.mark.parametrize("crossed", [False, True])
def test_covariance_propagates_as_in_theorem_1(crossed: bool, law: str):
    net, x, sigma = network(), normal(D_X, seed=1), joint_covariance(crossed)
    sampled, se = sampled_covariance(net, x, sigma, law)
    blocks = sigma[:D_X, :D_X], sigma[D_X:, D_X:], sigma[:D_X, D_X:]
    assert (se.diag() / sampled.diag() < 0.01).all()  # 40,000 samples know each variance to better than 1 %
    assert ((covariance_propagation(net, x, *blocks) - sampled).abs() < 4 * se).all()
    for forgotten in (0, 1):
        mutant = [torch.zeros_like(b) if i == forgotten else b for i, b in enumerate(blocks)]
        assert ((covariance_propagation(net, x, *mutant) - sampled).abs() > 4 * se).any()
    without_cross_terms = (covariance_propagation(net, x, *blocks[:2]) - sampled).abs()
    assert (without_cross_terms > 10 * se).any() if crossed else (without_cross_terms < 4 * se).all()


def test_covariance_may_be_given_by_its_diagonal():
    net, x = network(), normal(D_X, seed=1)
    variance_x, variance_theta = normal(D_X, seed=6).square(), normal(26, seed=7).square()
    expected = covariance_propagation(net, x, variance_x.diag(), variance_theta.diag())
    assert_close(covariance_propagation(net, x, variance_x, variance_theta), expected)


def test_cross_terms_are_not_a_domain_agnostic_bias():
    """f = θx²: 2 J_x Σ_xθ J_θ = 4θ x³ Σ_xθ, which is 0.4 on a domain at x = 1 and 3.2 on one at x = 2."""
    f, variance, cross = Powers(power=2), vector(1.0), vector(0.1)[None]
    extra = [
        covariance_propagation(f, x, variance, variance, cross) - covariance_propagation(f, x, variance, variance)
        for x in (vector(1.0), vector(2.0))
    ]
    assert_close(torch.stack(extra).flatten(), vector(0.4, 3.2))


def test_wrong_shapes_are_refused_by_name():
    net, x = network(), normal(D_X, seed=1)
    good_x, good_theta = torch.ones(D_X).double(), torch.ones(26).double()
    with pytest.raises(ValueError, match=r"sigma_x has shape \(4,\); wanted \(3, 3\), or \(3,\)"):
        covariance_propagation(net, x, torch.ones(4), good_theta)
    with pytest.raises(ValueError, match=r"sigma_theta has shape \(3, 26\)"):
        covariance_propagation(net, x, good_x, torch.ones(3, 26))
    with pytest.raises(ValueError, match=r"sigma_x_theta has shape \(26, 3\); wanted \(d_x, d_θ\) = \(3, 26\)"):
        covariance_propagation(net, x, good_x, good_theta, torch.ones(26, 3))
    with pytest.raises(ValueError, match="variance has shape"):
        contributions(net, x, torch.ones(1))
    with pytest.raises(ValueError, match="sigma_theta has shape"):
        off_diagonal_bound(net, x[None], good_theta)
    with pytest.raises(ValueError, match=r"score has shape \(1, 1\); wanted \(B, d_y\) = \(1, 2\)"):
        fisher_diagonal(net, x[None], torch.ones(1, 1))


# ── The index s_k, eq. 10–12 ─────────────────────────────────────────────────────────────────────────────────────────


def test_parameter_covariance_is_a_sum_of_rank_one_terms_and_its_trace_the_sum_of_contributions():
    net, x, variance = network(), normal(D_X, seed=1), normal(26, seed=7).square()
    _, j_theta = jacobians(net, x)
    terms = sum(v * torch.outer(j, j) for v, j in zip(variance, j_theta.T, strict=True))
    propagated = covariance_propagation(net, x, torch.zeros(D_X).double(), variance)
    assert_close(propagated, terms)
    assert_close(contributions(net, x, variance).sum(), propagated.trace())


def test_s_is_the_mean_contribution_and_the_squared_derivative_for_one_output():
    net, xs, variance = network(d_y=1), normal(5, D_X, seed=8), normal(21, seed=9).square()
    expected = torch.zeros(21).double()
    for x in xs:
        net.zero_grad()
        net(x).backward()
        expected += variance * torch.cat([p.grad.flatten() for p in net.parameters()]).square() / 5
    assert_close(shared_contributions(net, xs, variance), expected)
    assert_close(torch.stack([contributions(net, x, variance) for x in xs]).mean(0), expected)


def test_s_does_not_depend_on_an_orthonormal_basis_of_the_outputs():
    net, x, ones = network(), normal(D_X, seed=1), torch.ones(26).double()
    rotation = nn.Linear(2, 2, bias=False).double().requires_grad_(False)
    rotation.weight.copy_(vector(0.6, -0.8, 0.8, 0.6).reshape(2, 2))
    assert_close(contributions(nn.Sequential(net, rotation), x, ones), contributions(net, x, ones))
    rotation.weight.copy_(vector(2, 0, 0, 1).reshape(2, 2))  # another scale of one logit is another s
    assert not torch.allclose(contributions(nn.Sequential(net, rotation), x, ones), contributions(net, x, ones))


# ── Theorem 2 ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_fisher_is_proportional_to_s_for_one_output_and_independent_residuals():
    """Gaussian regression with σ = 2, every input with the residuals ±2: T = ±2/σ², so I = E T² · s = s/4, not s."""
    net, sigma = network(d_y=1), 2.0
    xs = normal(5, D_X, seed=8).repeat_interleave(2, 0)
    score = (vector(2, -2).repeat(5) / sigma**2)[:, None]
    fisher = fisher_diagonal(net, xs, score)
    assert_close(fisher, factorised_fisher_diagonal(net, xs, score))
    assert_close(fisher, sensitivity(net, xs) / 4)


def test_fisher_does_not_factorise_when_the_residual_grows_with_the_gradient():
    """f = θx with residuals ±1 at x = 1 and ±3 at x = 2: I = (1 + 36)/2 = 18.5, but E T² · s = 5 · 2.5 = 12.5."""
    f, xs, score = Powers(), vector(1, 1, 2, 2)[:, None], vector(1, -1, 3, -3)[:, None]
    assert fisher_diagonal(f, xs, score).item() == 18.5
    assert factorised_fisher_diagonal(f, xs, score).item() == 12.5


def test_fisher_needs_the_whole_score_vector_for_softmax():
    """Against a loop over log-likelihoods; the factorised form is too large by 1.43 to 5.31 times here."""
    net, xs = network(d_y=3), normal(20, D_X, seed=10)
    labels = torch.arange(20) % 3
    expected = torch.zeros(31).double()
    for x, y in zip(xs, labels, strict=True):
        net.zero_grad()
        net(x).log_softmax(0)[y].backward()
        expected += torch.cat([p.grad.flatten() for p in net.parameters()]).square() / 20
    score = softmax_score(net(xs), labels)
    assert_close(fisher_diagonal(net, xs, score), expected)
    off = factorised_fisher_diagonal(net, xs, score) / expected
    assert [off.min().item(), off.max().item()] == pytest.approx([1.429, 5.314], abs=0.001)
    assert order(sensitivity(net, xs))[:3] == [30, 29, 28]  # the three biases of the last layer, in another order
    assert order(expected)[:3] == [29, 28, 30]


def test_s_and_fisher_can_rank_parameters_the_other_way_round():
    """At θ = 0, x = ½: s = (½, 2), I = (¼, 0). No constant C makes I = C·s. Both labels count ½, as in the model, so
    this is the model's own Fisher information, the generalised Gauss-Newton diagonal, as well."""
    f, xs, labels = TwoLogits(0, 0), vector(0.5, 0.5)[:, None], torch.tensor([0, 1])
    score = softmax_score(f(xs), labels)
    assert_close(sensitivity(f, xs), vector(0.5, 2))
    assert_close(fisher_diagonal(f, xs, score), vector(0.25, 0))
    assert_close(factorised_fisher_diagonal(f, xs, score), vector(0.25, 1))


def test_the_practical_s_is_not_the_defined_one():
    """Eq. 19 squares ∂L, eq. 18 ∂f. Same inputs, p = (¾, ¼), one domain all of class 0, one of class 1:
    ∂f is the same on both, c = 0; the squared loss gradients are ¼ and 2¼, c = 0.8."""
    f, xs = TwoLogits(math.log(3) / 2, 0), vector(1, 1)[:, None]
    domains = [torch.tensor([0, 0]), torch.tensor([1, 1])]
    practical = [fisher_diagonal(f, xs, softmax_score(f(xs), labels)) for labels in domains]
    assert_close(torch.stack(practical)[:, 0], vector(0.25, 2.25))
    assert_close(variation(*practical), vector(0.8, 0))
    assert_close(variation(sensitivity(f, xs), sensitivity(f, xs)), vector(0, 0))


def test_the_square_of_a_mean_gradient_is_neither_s_nor_fisher():
    """f = θ with targets ±1 at θ = 0 has gradients ∓1: mean square 1; squared mean, as in a backward pass, 0."""
    f, xs, score = Powers(), vector(1, 1)[:, None], vector(1, -1)[:, None]
    assert fisher_diagonal(f, xs, score).item() == 1
    assert (score * parameter_jacobians(f, xs)[:, :, 0]).mean().square().item() == 0


# ── Definition 1, Lemma 1, Lemma 2, Proposition 1 ────────────────────────────────────────────────────────────────────

EVEN = vector(1, 1, 1, 1, -1, -1, -1, -1)[:, None]  # T = ±1
RARE = vector(0, 0, 0, 0, 0, 0, 2, -2)[:, None]  # T = 0 w.p. ¾, ±2 w.p. ⅛ each


def test_lemma_1_and_proposition_1_are_false_as_stated():
    """f = θx², T(x) = x, g(t) = t²: E T² = 1 on both domains, as Definition 1 asks, but E g² = 1 and 4, c = 0.6."""
    f = Powers(power=2)
    assert EVEN.square().mean() == RARE.square().mean() == 1
    s = sensitivity(f, EVEN), sensitivity(f, RARE)
    assert [s[0].item(), s[1].item()] == [1, 4]
    assert variation(*s).item() == pytest.approx(0.6)


@pytest.mark.parametrize("domain", [EVEN, RARE, 10 * RARE])
def test_definition_1_as_stated_is_met_by_every_parameter(domain: Tensor):
    """T(x) = (2x, x² − 1)/(x² + 1) has norm 1 everywhere and tells x, so any j_k is a g_k(T) with E‖T‖² = 1."""
    t = torch.cat([2 * domain, domain.square() - 1], 1) / (domain.square() + 1)
    assert_close(t.square().sum(1), torch.ones(8).double())
    assert_close(t[:, :1] / (1 - t[:, 1:]), domain)


@pytest.mark.parametrize("power", [1, 2, 3])
def test_lemma_1_holds_for_an_equal_law_of_t(power: int):
    """T(x) = x₁ has one law on both domains, x₂ has not: c₁ = 0 whatever g is, c₂ > 0. Proposition 1 holds with it."""
    f = Powers(2, power)
    first = normal(50, 1, seed=11)
    here = torch.cat([first, normal(50, 1, seed=12)], 1)
    there = torch.cat([first.flip(0), 3 * normal(50, 1, seed=13)], 1)
    c = variation(sensitivity(f, here), sensitivity(f, there))
    assert c[0].item() == pytest.approx(0, abs=1e-12)
    assert c[1] > 0.5


def test_a_constant_s_is_no_certificate_of_invariance():
    """E x⁴ = 1 for x = ±1 and for x = ±2 w.p. 1/16, else 0: c = 0, though j = x² is 1 here and 0 or 4 there."""
    f, there = Powers(power=2), torch.cat([torch.zeros(30).double(), vector(2, -2)])[:, None]
    assert variation(sensitivity(f, EVEN), sensitivity(f, there)).item() == 0


def test_on_samples_c_is_positive_for_identical_domains_too():
    """Three domains of one law: mean c = 0.38 from 32 inputs each, 0.10 from 512. Compare with a null, not with 0."""
    f = Powers(1000, power=2)
    floor = [
        variation(*(sensitivity(f, normal(n, 1000, seed=20 + d)) for d in range(3))).mean().item() for n in (32, 512)
    ]
    assert floor == pytest.approx([0.380, 0.103], abs=0.001)


def test_lemma_2_needs_a_positive_variance():
    f = Powers(power=2)
    energies = sensitivity(f, EVEN), sensitivity(f, RARE)
    assert energies[0] != energies[1]
    assert sensitivity(f, EVEN, variance=0.3) != sensitivity(f, RARE, variance=0.3)
    assert sensitivity(f, EVEN, variance=0.0) == sensitivity(f, RARE, variance=0.0) == 0
    assert sensitivity(f, EVEN, variance=0.3) == sensitivity(f, -EVEN, variance=0.3)  # equal energies, equal s


# ── Off-diagonal Σ_θ, eq. 34 ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", range(5))
def test_off_diagonal_bound(seed: int):
    net, xs, root = network(seed=seed), normal(6, D_X, seed=30 + seed), normal(26, 26, seed=40 + seed)
    sigma = root @ root.T
    j = [jacobians(net, x)[1] for x in xs]
    shares = shared_contributions(net, xs, sigma)
    expected = sum(sigma * (jac.T @ jac) for jac in j).sum(1) / 6
    assert_close(shares, expected)
    assert_close(shares.sum(), sum((jac @ sigma @ jac.T).trace() for jac in j) / 6)

    diagonal = shared_contributions(net, xs, sigma.diag())
    bound = off_diagonal_bound(net, xs, sigma)
    off_diagonal = sigma * (1 - torch.eye(26))
    assert_close(bound, sum((off_diagonal * (jac.T @ jac)).abs() for jac in j).sum(1) / 6)
    assert ((shares - diagonal).abs() <= bound).all()
    assert (shares - diagonal).abs().max() > 0
    # the paper's s_k is the diagonal part itself: its left side is 0, whatever the bound says
    assert_close(torch.stack([contributions(net, x, sigma.diag()) for x in xs]).mean(0), diagonal)
    assert bound.min() > 0


def test_off_diagonal_bound_is_tight_and_shares_can_cancel_or_turn_negative():
    """f = θ₁x₁ + θ₂x₂ with variances 1 and covariance ½: s₁ = x₁² + ½ x₁x₂."""
    f, sigma = Powers(2), vector(1, 0.5, 0.5, 1).reshape(2, 2)

    def first(*x: float) -> float:
        return shared_contributions(f, vector(*x)[None], sigma)[0].item()

    assert first(1, 1) - 1 == off_diagonal_bound(f, vector(1, 1)[None], sigma)[0] == 0.5
    assert first(1, 0) == first(2, -3) == 1  # Jacobian energies 1 and 4, equal shares
    assert first(1, -3) == -0.5


# ── c itself, eq. 20–22, and the ranking claim ───────────────────────────────────────────────────────────────────────


def test_ranking_by_c_is_not_ranking_by_the_variance_over_domains():
    """f = θ₁x₁ + θ₂x₂ at x = (1, 10) and (3, 12): s = (1, 100) and (9, 144); Var_d = (16, 484), c = (0.8, 0.18)."""
    f = Powers(2)
    s = torch.stack([sensitivity(f, vector(1, 10)[None]), sensitivity(f, vector(3, 12)[None])])
    assert_close(s.var(0, correction=0), vector(16, 484))
    assert_close(variation(*s), vector(4 / 5, 22 / 122))
    assert order(variation(*s)) == [0, 1]
    assert order(s.var(0, correction=0)) == [1, 0]


def test_ranking_by_c_is_ranking_by_the_variance_when_mean_sensitivities_are_equal():
    s = normal(4, 50, seed=14).square()
    s = s / s.mean(0)
    assert order(variation(*s)) == order(s.var(0, correction=0))


def test_a_second_moment_that_varies_need_not_make_c_large():
    assert variation(vector(1.0), vector(1.002)).item() == pytest.approx(0.001, rel=2e-3)


@pytest.mark.parametrize("domains", [2, 3, 6])
def test_c_lies_between_0_and_the_root_of_domains_minus_1(domains: int):
    s = normal(domains, 200, seed=15).square()
    c = variation(*s)
    assert (c > 0).all()
    assert (c < math.sqrt(domains - 1)).all()
    assert_close(variation(*torch.eye(domains, dtype=torch.float64)), vector(*[math.sqrt(domains - 1)] * domains))
    assert (variation(*s[:1].expand(domains, -1)) < 1e-15).all()
    assert variation(*[vector(0.0)] * domains).item() == 0  # 0/0 := 0


def test_c_is_invariant_under_scale_variance_and_permutation_of_domains():
    s, variance = normal(3, 200, seed=16).square(), normal(200, seed=17).square()
    c = variation(*s)
    assert_close(variation(*s * 1e-9), c)
    assert_close(variation(*s * variance), c)  # Var(θ_k) cancels
    assert_close(variation(*s[[2, 0, 1]]), c)
    assert not torch.allclose(variation(*s * variance, eps=1e-2), variation(*s, eps=1e-2))


def test_eps_hides_parameters_with_small_gradients():
    """Squared gradients of 1e-12 and 3e-12: c = ½, but with ε = 1e-8 about 1e-4."""
    s = vector(1e-12), vector(3e-12)
    assert variation(*s).item() == pytest.approx(0.5)
    assert variation(*s, eps=1e-8).item() == pytest.approx(1e-4, rel=1e-3)


# ── The regulariser, eq. 23–24 ───────────────────────────────────────────────────────────────────────────────────────


def test_the_gradient_of_the_regulariser_is_a_hessian_product_and_reaches_parameters_with_c_0():
    """L = ½ θᵀHθ, H = [[2, 1], [1, 2]], θ = (1, 0), c = (1, 0): g = (2, 1), ∇R = 2H(c ⊙ g) = (8, 4)."""
    hessian, c = vector(2, 1, 1, 2).reshape(2, 2), vector(1, 0)

    def gradients(theta: Tensor) -> tuple[Tensor, Tensor]:
        theta.requires_grad_()
        (g,) = torch.autograd.grad(theta @ hessian @ theta / 2, theta, create_graph=True)
        regulariser = (c * g.square()).sum()
        assert not (c * g.detach().square()).sum().requires_grad  # a gradient that is merely reused gives no ∇R
        return g.detach(), torch.autograd.grad(regulariser, theta)[0]

    g, penalty = gradients(vector(1, 0))
    assert_close(g, vector(2, 1))
    assert_close(penalty, 2 * hessian @ (c * g))
    assert_close(penalty, vector(8, 4))
    assert_close(gradients(vector(0, 0))[1], vector(0, 0))  # every stationary point of L is one of L + λR


# ── The bound of section 4.4, eq. 25 ─────────────────────────────────────────────────────────────────────────────────


def test_the_adaptation_bound_is_false_with_d_h_and_holds_with_half_d_h_delta_h():
    """H = {1_ab, 1_bc}, truth 1_ab. Source: b, d with ½ each; target: a, c with ½ each. For h = 1_bc the source error
    is 0 and the target error 1, but d_H = 0 and λ* = 0; ½ d_HΔH = 1."""
    hypotheses, truth = [{"a", "b"}, {"b", "c"}], {"a", "b"}
    source, target = {"b": 0.5, "d": 0.5}, {"a": 0.5, "c": 0.5}

    def mass(domain: dict[str, float], points: set[str]) -> float:
        return sum(p for point, p in domain.items() if point in points)

    def divergence(sets: list[set[str]]) -> float:
        return 2 * max(abs(mass(source, s) - mass(target, s)) for s in sets)

    joint = min(mass(source, h ^ truth) + mass(target, h ^ truth) for h in hypotheses)
    wrong = hypotheses[1] ^ truth
    assert mass(target, wrong) == 1
    assert mass(source, wrong) + divergence(hypotheses) + joint == 0
    differences = [g ^ h for g, h in combinations(hypotheses, 2)]
    assert mass(source, wrong) + divergence(differences) / 2 + joint == 1
