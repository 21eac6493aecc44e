"""The penalty part survives every environment. Totals would agree to two digits with the penalty lost."""

import warnings

import pytest
import torch

from dspreg import Notice
from helpers.environments import COMPILER, ENVIRONMENTS, Problem, likeness

CASES = [(name, engine) for name, (_, engines, _) in ENVIRONMENTS.items() for engine in engines]


@pytest.mark.parametrize(("environment", "engine"), CASES, ids=lambda v: v)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile's own
def test_the_penalty_part_is_that_of_float64(environment, engine):
    if "inductor" in environment and COMPILER is None:
        pytest.skip("no C++ compiler is at hand, which inductor needs")
    how, _, tolerance = ENVIRONMENTS[environment]
    with warnings.catch_warnings(action="ignore", category=Notice):
        part, target = how(engine)
    error, cosine = likeness(part, target)
    if ("gauss_newton" in engine or engine == "finite_difference") and tolerance > 1e-6:  # small differences round more
        tolerance = 5e-3
    assert error < tolerance
    assert cosine > 0.999
    assert likeness(torch.zeros_like(part), target)[0] == 1  # the check fails where the penalty is lost


def test_curvature_by_differences_is_that_of_an_explicit_hessian():
    problem = Problem("smooth")
    params = list(problem.net.parameters())
    loss = torch.nn.functional.cross_entropy(problem.net(problem.x), problem.y)
    grads = torch.autograd.grad(loss, params, create_graph=True)
    along = sum((g * (c * g).detach()).sum() for g, c in zip(grads, problem.c.values(), strict=True))
    expected = torch.cat([2e-2 * h.reshape(-1) for h in torch.autograd.grad(along, params)])
    assert likeness(problem.target("exact"), expected)[0] < 1e-7
