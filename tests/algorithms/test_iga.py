"""IGA against DomainBed's penalty, differentiated whole, and the gradients it is meant to bring together."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from dspreg.algorithms import ERM, IGA
from dspreg.errors import ConfigError, Notice
from dspreg.testing import toy_batches
from dspreg.testing.toy import toy_task
from dspreg.training import train_step
from reference import plain

WEIGHT = 0.3


def spread(weights, batches):
    """Σ_d Σ_k (g_dk − ḡ_k)², with its graph; the mean over domains is a function of the weights as well."""
    each = [torch.autograd.grad(plain.cross_entropy(weights, b.x, b.y), weights, create_graph=True) for b in batches]
    total = 0.0
    for per_domain in zip(*each, strict=True):
        mean = sum(per_domain) / len(per_domain)
        total = total + sum(((g - mean) ** 2).sum() for g in per_domain)
    return total


@plain.problems
@plain.optimisers
def test_steps_are_those_of_the_formula(domains, optimiser):
    def step(weights, batches, by_hand, t):
        loss = plain.pooled(weights, batches) + WEIGHT * spread(weights, batches)
        by_hand.step(weights, plain.gradient(loss, weights))

    plain.assert_same_steps(IGA(weight=WEIGHT), step, domains, optimiser)


def test_the_log_has_the_penalty():
    stack = plain.ready(IGA(), 3)
    weights, batches = plain.weights_of(stack), toy_batches(0, 3, plain.SIZES)
    expected = spread(weights, batches).item()
    assert train_step(stack, batches)["IGA.penalty"].item() == pytest.approx(expected, rel=1e-12)


def test_gradients_of_domains_end_closer_than_under_erm():
    spreads = {}
    for algorithm in (ERM(), IGA(weight=0.3)):
        stack = plain.ready(algorithm, 3)
        for t in range(150):
            train_step(stack, toy_batches(t, 3, (32, 32, 32)))
        fresh, weights = toy_batches(10_000, 3, (500, 500, 500)), plain.weights_of(stack)
        spreads[type(algorithm)] = spread(weights, fresh).item()
        accuracy = sum((plain.logits(weights, b.x).argmax(1) == b.y).double().mean() for b in fresh) / 3
        assert accuracy > 0.55  # not by giving up on the task: a third would be chance
    assert spreads[IGA] < spreads[ERM] / 3


@pytest.mark.parametrize("batches", [slice(0, 1), slice(None)])
def test_without_weight_or_on_one_domain_it_is_erm_bitwise(batches):
    ends = []
    for algorithm in (ERM(), IGA(weight=0.0 if batches.stop is None else 1000.0)):
        stack = plain.ready(algorithm, 3)
        train_step(stack, toy_batches(0)[batches])
        ends.append(torch.cat([w.flatten() for w in plain.weights_of(stack)]))
    assert torch.equal(*ends)


def test_a_bad_weight_is_refused():
    with pytest.raises(ConfigError, match="IGA: weight=inf; wanted a finite number ≥ 0"):
        IGA(weight=float("inf"))


class Attending(nn.Module):
    """A featurizer with attention as torch's fused kernels compute it."""

    width = 8

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(1, 24)

    def forward(self, x):
        q, k, v = self.first(x[:, None, :, None]).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v).mean((1, 2))


def test_on_a_network_with_fused_attention():
    """Its kernels can't be differentiated twice: the step is that of attention written out."""

    def weights_after(algorithm):
        stack = algorithm.setup(replace(toy_task(), backbone=Attending), lambda p: torch.optim.SGD(p, lr=0.1)).double()
        train_step(stack, toy_batches(0))
        return [p.detach() for p in stack.parameters()]

    with pytest.warns(Notice, match="IGA uses unfused attention"):
        fused = weights_after(IGA(weight=10.0))
    with sdpa_kernel(SDPBackend.MATH):
        written_out = weights_after(IGA(weight=10.0))
    torch.testing.assert_close(fused, written_out, rtol=1e-9, atol=1e-12)
    plain_steps = weights_after(ERM())
    assert any(float((a - b).abs().max()) > 1e-6 for a, b in zip(fused, plain_steps, strict=True))
