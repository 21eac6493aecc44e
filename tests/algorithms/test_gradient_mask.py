"""ANDMask and SANDMask against DomainBed's loop over parameters, and the directions they are meant to leave out."""

import math

import pytest
import torch

from dspreg.algorithms import ERM, ANDMask, SANDMask
from dspreg.errors import ConfigError
from dspreg.testing import ready, toy_batches, toy_task
from dspreg.training import train_step
from reference import plain

MASKS = {
    "ANDMask": (ANDMask, lambda agreement, variance, tau: float(agreement >= tau)),
    "SANDMask": (SANDMask, lambda agreement, variance, tau: max(0.0, math.tanh(0.5 * (agreement - tau) / variance))),
}


def entry(values, rule, tau):
    """The mask of one parameter from the domains' gradients of it."""
    mean = sum(values) / len(values)
    signs = [(v > 0) - (v < 0) for v in values]
    variance = sum((v - mean) ** 2 for v in values) / (len(values) - 1)
    return rule(abs(sum(signs) / len(signs)), variance, tau)


def masked(weights, batches, rule, tau):
    """Tensor by tensor and entry by entry."""
    each = [plain.gradient(plain.cross_entropy(weights, b.x, b.y), weights) for b in batches]
    result = []
    for k, pooled in enumerate(plain.gradient(plain.pooled(weights, batches), weights)):
        columns = zip(*(g[k].flatten().tolist() for g in each), strict=True)
        mask = torch.tensor([entry(values, rule, tau) for values in columns], dtype=pooled.dtype).view_as(pooled)
        result.append(mask * pooled / (1e-10 + mask.mean()))
    return result


@plain.problems
@plain.optimisers
@pytest.mark.parametrize("tau", [0.3, 0.55])
@pytest.mark.parametrize("name", MASKS)
def test_steps_are_those_of_the_loop(name, tau, domains, optimiser):
    cls, rule = MASKS[name]

    def step(weights, batches, by_hand, t):
        by_hand.step(weights, masked(weights, batches, rule, tau))

    options = {"k": 0.5} if name == "SANDMask" else {}  # not so steep that it is 0 or 1 everywhere
    plain.assert_same_steps(cls(tau=tau, **options), step, domains, optimiser)


@pytest.mark.parametrize("name", MASKS)
def test_the_log_has_the_share_that_is_kept(name):
    cls = MASKS[name][0]
    stack = plain.ready(cls(tau=0.9), 3)
    weights, batches = plain.weights_of(stack), toy_batches(0, 3, plain.SIZES)
    each = [
        torch.cat([g.flatten() for g in plain.gradient(plain.cross_entropy(weights, b.x, b.y), weights)])
        for b in batches
    ]
    agree = (torch.stack(each).sign().sum(0).abs() == 3).double().mean().item()
    kept = train_step(stack, batches)["ANDMask.kept" if cls is ANDMask else "SANDMask.kept"].item()
    assert 0.1 < agree < 0.9
    if cls is ANDMask:
        assert kept == pytest.approx(agree, rel=1e-12)
    else:
        assert 0 < kept <= agree + 1e-12


@pytest.mark.parametrize("cls", [ANDMask, SANDMask])
def test_a_direction_on_which_domains_disagree_is_left_out(cls):
    """ERM moves along it, the mask does not."""
    moved = {}
    for algorithm in (ERM(), cls(tau=0.9)):
        stack = ready(algorithm, toy_task(2, dropout=0.0), lambda p: torch.optim.SGD(p, lr=0.1))
        before = plain.weights_of(stack)
        batches = toy_batches(0, 2, (16, 40))
        train_step(stack, batches)
        moved[type(algorithm)] = [(a - b).detach() for a, b in zip(plain.weights_of(stack), before, strict=True)]
    each = [plain.gradient(plain.cross_entropy(before, b.x, b.y), before) for b in batches]
    ours, erm, one, other = (torch.cat([t.flatten() for t in ts]) for ts in (moved[cls], moved[ERM], *each))
    apart = one * other < 0
    assert 0.1 < apart.double().mean() < 0.9
    assert (ours[apart] == 0).all()
    assert (erm != 0).all()
    assert (ours[~apart] != 0).any()


def test_equal_gradients_are_kept_whole_and_those_at_tau_are_left_out():
    same = torch.tensor([[1.0, -2.0, 0.0]]).expand(3, 3)
    assert SANDMask(tau=0.5).mask(same).tolist() == [1.0, 1.0, 0.0]
    assert SANDMask(tau=0.0).mask(same).tolist() == [1.0, 1.0, 0.0]  # 0 · ∞ is 0 here
    half = torch.tensor([[1.0], [1.0], [1.0], [-1.0]])
    assert SANDMask(tau=0.5).mask(half).tolist() == [0.0]
    assert ANDMask(tau=0.5).mask(half).tolist() == [1.0]


@pytest.mark.parametrize("cls", [ANDMask, SANDMask])
def test_a_single_domain_takes_the_step_of_the_base(cls):
    ends = []
    for algorithm in (ERM(), cls()):
        stack = plain.ready(algorithm, 3)
        train_step(stack, toy_batches(0)[:1])
        ends.append(torch.cat([w.flatten() for w in plain.weights_of(stack)]))
    assert torch.equal(*ends)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ANDMask(tau=1.5), "ANDMask: tau=1.5; wanted a share from 0 to 1"),
        (lambda: SANDMask(tau=1.0), "SANDMask: tau=1.0; .* where nothing would train"),
        (lambda: SANDMask(k=0.0), "SANDMask: k=0.0; wanted a finite number > 0"),
    ],
)
def test_bad_options_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
