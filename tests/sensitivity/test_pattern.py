"""Why the pattern of c hardly matters: what is exact, and what is an argument. docs/understand/theory.md in words.

f are all logits of a batch, J = ∂f/∂θ, r = ∂L/∂f, Λ = ∂²L/∂f², so g = Jᵀr; K_c = J diag(c) Jᵀ.
"""

from dataclasses import dataclass
from itertools import pairwise, permutations
from math import factorial
from statistics import median

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev
from torch.testing import assert_close

import dspreg
from dspreg.sensitivity.statistics import coefficient_of_variation
from dspreg.vectors import ParamVector, trainable
from reference.theory import parameter_jacobians

INPUTS, CLASSES, WEIGHT = 3, 4, 0.01


@dataclass
class Problem:
    """A network, a batch, and everything above in full."""

    net: nn.Module
    x: Tensor
    y: Tensor

    def __post_init__(self) -> None:
        logits = self.net(self.x).detach()
        self.J = parameter_jacobians(self.net, self.x).flatten(0, 1)  # (N·C, P)

        def loss(flat: Tensor) -> Tensor:
            return F.cross_entropy(flat.view_as(logits), self.y)

        self.r, self.Λ = grad(loss)(logits.flatten()), jacrev(grad(loss))(logits.flatten())
        params = trainable(self.net)
        self.theta = torch.cat([p.detach().flatten() for p in params.values()])
        self.sizes = [p.numel() for p in params.values()]

    def logits(self, theta: Tensor) -> Tensor:
        parts = zip(trainable(self.net).items(), theta.split(self.sizes), strict=True)
        found: Tensor = functional_call(self.net, {name: t.view_as(p) for (name, p), t in parts}, (self.x,))
        return found

    def loss(self, theta: Tensor) -> Tensor:
        return F.cross_entropy(self.logits(theta), self.y)

    def K(self, c: Tensor) -> Tensor:
        return (self.J * c) @ self.J.T

    def part(self, c: Tensor) -> Tensor:
        """JᵀΛK_c r."""
        return self.J.T @ self.Λ @ self.K(c) @ self.r


def uniform(*shape: int, seed: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def problem(width: int = 12, samples: int = 5, *, linear: bool = False) -> Problem:
    """c⊙g has more entries than the batch has logits."""
    torch.manual_seed(width)
    layers = [nn.Linear(INPUTS, width), nn.Tanh(), nn.Linear(width, CLASSES)]
    net = (nn.Linear(INPUTS, CLASSES) if linear else nn.Sequential(*layers)).double()
    x = torch.randn(samples, INPUTS, dtype=torch.float64)
    return Problem(net, x, torch.arange(samples) % CLASSES)


def test_gauss_newton_times_c_g_is_j_lambda_k_c_r():
    """Exact: against the dense Hessian of the linearised network's loss, and against H less the residual's part."""
    at = problem()
    c = uniform(len(at.theta), seed=1)
    g = grad(at.loss)(at.theta)
    assert_close(g, at.J.T @ at.r)
    start = at.logits(at.theta).detach()

    def linearised(theta: Tensor) -> Tensor:
        return F.cross_entropy(start + (at.J @ (theta - at.theta)).view_as(start), at.y)

    assert_close(at.part(c), jacrev(grad(linearised))(at.theta) @ (c * g), rtol=1e-12, atol=1e-14)
    residual = jacrev(grad(lambda theta: at.logits(theta).flatten() @ at.r))(at.theta)  # Σ_a r_a ∇²f_a
    whole = jacrev(grad(at.loss))(at.theta) @ (c * g)
    assert_close(at.part(c), whole - residual @ (c * g), rtol=1e-12, atol=1e-14)
    assert (residual @ (c * g)).norm() > 0.05 * whole.norm()  # it is no zero that was left out


def test_it_is_what_the_engine_adds():
    """Whose derivative of the logits is a difference quotient, right to seven digits."""
    at = problem()
    c = uniform(len(at.theta), seed=2)
    penalty = dspreg.Penalty(at.net, weight=WEIGHT, engine="gauss_newton")
    named = zip(trainable(at.net).items(), c.split(at.sizes), strict=True)
    penalty.coefficients = {name: t.view_as(p) for (name, p), t in named}

    def closure() -> tuple[Tensor, Tensor]:
        logits = at.net(at.x)
        return F.cross_entropy(logits, at.y), logits

    penalty.backward(closure)
    added = torch.cat([p.grad.flatten() for p in at.net.parameters()]) - at.J.T @ at.r
    assert_close(added, 2 * WEIGHT * at.part(c), rtol=0, atol=1e-6 * WEIGHT * float(at.part(c).norm()))


def test_a_network_linear_in_its_parameters_is_erm_with_other_residuals():
    """Exact and whole: ∇(L + λR) = Jᵀ(r + 2λΛK_c r), against differentiating twice."""
    at = problem(linear=True)
    c = uniform(len(at.theta), seed=3)

    def penalised(theta: Tensor) -> Tensor:
        return at.loss(theta) + WEIGHT * (c * grad(at.loss)(theta).square()).sum()

    assert_close(grad(penalised)(at.theta), at.J.T @ (at.r + 2 * WEIGHT * at.Λ @ at.K(c) @ at.r))


def test_the_part_lies_in_the_span_of_the_logits_gradients_whatever_c_is():
    at = problem()
    assert at.J.shape[0] < at.J.shape[1]  # otherwise the span is everything
    basis = torch.linalg.qr(at.J.T).Q
    for seed in range(3):
        part = at.part(uniform(len(at.theta), seed=seed))
        assert (part - basis @ (basis.T @ part)).norm() < 1e-12 * part.norm()
    c = uniform(len(at.theta), seed=4)
    elementwise = c * (at.J.T @ at.r)  # what "suppressing parameter k" would be
    assert (elementwise - basis @ (basis.T @ elementwise)).norm() > 0.1 * elementwise.norm()


def test_all_but_n_times_c_minus_1_directions_of_c_are_without_effect():
    """c ↦ JᵀΛJ(c⊙g) is linear of rank at most N(C−1): many different c have one and the same penalty part."""
    at = problem()
    g = at.J.T @ at.r
    effect = at.Λ @ at.J * g  # columns: what c_k does to the residuals
    rank = int(torch.linalg.matrix_rank(effect, rtol=1e-10))
    assert rank == 5 * (CLASSES - 1)
    without_effect = torch.linalg.svd(effect).Vh[rank:]
    assert len(without_effect) == len(at.theta) - rank > rank
    c = 0.5 + 0.1 * uniform(len(at.theta), seed=5)
    direction = without_effect.T @ (without_effect @ (uniform(len(at.theta), seed=8) - 0.5))  # whatever basis svd found
    other = c + 0.4 * direction / direction.abs().max()
    assert other.min() > 0
    assert (other - c).norm() > 0.1 * c.norm()
    assert_close(at.part(other), at.part(c), rtol=1e-10, atol=1e-14)


def shuffling_error(terms: Tensor, c: Tensor) -> Tensor:
    """E‖Σ_k c_π(k) a_k − c̄ Σ_k a_k‖² over permutations π of c, for terms a_k (n, P): sampling without replacement."""
    p = len(c)
    inside = terms.square().sum() - terms.sum(1).square().sum() / p
    return c.var(correction=0) * p / (p - 1) * inside


def test_the_error_of_shuffled_c_is_that_of_sampling_without_replacement():
    """Exact: the mean over all permutations. The terms of K_c r = Σ_k c_k j_k g_k are j_k g_k."""
    terms, c = uniform(3, 5, seed=6) - 0.3, uniform(5, seed=7)
    errors = sum((terms @ c[list(order)] - c.mean() * terms.sum(1)).square().sum() for order in permutations(range(5)))
    assert_close(errors / factorial(5), shuffling_error(terms, c))


def test_k_of_shuffled_c_approaches_that_of_its_mean_with_the_width():
    """An observation, with the expected error beside it: the error relative to c̄Kr falls like 1/√width."""
    relative, expected = [], []
    for width in (64, 256, 1024, 4096):
        at = problem(width, 6)
        c = uniform(len(at.theta), seed=width)
        terms = at.J * (at.J.T @ at.r)
        mean = c.mean() * terms.sum(1)
        draws = [c[torch.randperm(len(c), generator=torch.Generator().manual_seed(i))] for i in range(40)]
        squares = torch.stack([(terms @ each - mean).square().sum() for each in draws])
        assert squares.mean() == pytest.approx(float(shuffling_error(terms, c)), rel=0.25)
        relative.append(float(squares.mean().sqrt() / mean.norm()))
        expected.append(float(shuffling_error(terms, c).sqrt() / mean.norm()))
    assert relative == sorted(relative, reverse=True)
    slopes = [b / a for a, b in pairwise(expected)]
    assert slopes == pytest.approx([0.5] * 3, abs=0.12)
    assert expected[-1] < 0.02


def test_c_that_rests_on_few_parameters_does_change_the_part():
    """What averages out is a c spread over many. One on ten of 4,004 parameters, shuffled, points elsewhere."""
    at = problem(500, 6)
    p = len(at.theta)
    ten = torch.zeros(p, dtype=torch.float64)
    ten[:10] = 1
    patterns = {"spread": uniform(p, seed=8), "ten": ten}
    cosines: dict[str, list[float]] = {name: [] for name in patterns}
    for seed in range(20):
        one, other = (torch.randperm(p, generator=torch.Generator().manual_seed(s)) for s in (seed, 100 + seed))
        for name, c in patterns.items():
            cosines[name].append(float(F.cosine_similarity(at.part(c[one]), at.part(c[other]), dim=0)))
    assert min(cosines["spread"]) > 0.98
    assert median(cosines["ten"]) < 0.5


# ── Blind to sign ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("theta", "targets"), [(0.0, (1.0, -1.0)), (1.0, (0.0, 2.0))])
def test_c_and_r_are_blind_to_domains_that_pull_apart_where_irm_is_not(theta: float, targets: tuple[float, float]):
    """½(θ−1)² and ½(θ+1)² at 0: slopes −1 and 1, so s = 1 on both and c = 0; the pooled slope is 0, so R = 0 for any c.
    Σ_d (∂L_d)² = 2. IRMv1's penalty, the slope in a factor s of the prediction, is θ(θ − y_d), so at θ = 0 it is
    blind too; moved to θ = 1 it is ±1."""
    point = torch.tensor(theta, dtype=torch.float64)
    slopes = [grad(lambda t, y=y: (t - y).square() / 2)(point) for y in targets]
    c = coefficient_of_variation([ParamVector({"theta": each.square()[None]}) for each in slopes])["theta"]
    pooled = sum(slopes) / 2
    assert c.item() == 0
    assert pooled.item() == 0  # so R = c · 0² = 0 for any c
    assert sum(each.square() for each in slopes).item() == 2
    factors = [grad(lambda s, y=y: (s * point - y).square() / 2)(torch.ones_like(point)).item() for y in targets]
    assert factors == ([0, 0] if theta == 0 else [1, -1])
