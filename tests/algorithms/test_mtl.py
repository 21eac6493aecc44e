"""MTL against a loop over domains, and the domains it is meant to tell apart."""

import pytest
import torch

from dspreg import ConfigError
from dspreg.algorithms import ERM, MTL, DSPReg, parse
from dspreg.batches import Batch
from dspreg.randomness import generator
from dspreg.sensitivity.evaluation_mode import evaluation_mode
from dspreg.testing import ready, toy_batches, toy_task
from dspreg.training import train_step
from dspreg.vectors import trainable
from reference import plain
from reference.sensitivity import largest_difference


def weights_of(stack):
    return [*plain.weights_of(stack), stack.net.marginal.weight.detach().clone().requires_grad_()]


def logits(weights, x, embedding):
    """A classifier of width 2F on features beside the embedding, as in DomainBed."""
    f = plain.features(weights, x)
    wide = torch.cat([weights[2], weights[4]], 1)
    return torch.cat([f, embedding.repeat(len(f), 1)], 1) @ wide.T + weights[3]


def risk(weights, batch, embedding):
    z = logits(weights, batch.x, embedding)
    return (z.exp().sum(1).log() - z[torch.arange(len(batch)), batch.y]).mean()


def total_risk(weights, batches, embeddings):
    risks = [len(b) * risk(weights, b, e) for b, e in zip(batches, embeddings, strict=True)]
    return sum(risks) / sum(map(len, batches))


@plain.problems
@plain.optimisers
@pytest.mark.parametrize("ema", [0.7, 1.0])
def test_steps_are_those_of_the_loop(domains, optimiser, ema):
    stack = plain.ready(MTL(ema=ema), domains, optimiser)
    _, textbook, steps = plain.OPTIMISERS[optimiser]
    start, weights, by_hand = weights_of(stack), weights_of(stack), textbook()
    by_hand.m, by_hand.v = [0.0] * 5, [0.0] * 5
    stored = [torch.zeros(8, dtype=torch.float64) for _ in range(domains)]
    for t in range(steps):
        batches = toy_batches(t, domains, plain.SIZES)
        train_step(stack, batches)
        means = [plain.features(weights, b.x).mean(0) for b in batches]
        used = [ema * mean + (1 - ema) * e for mean, e in zip(means, stored, strict=True)]
        stored = [e.detach() for e in used]
        by_hand.step(weights, plain.gradient(total_risk(weights, batches, used), weights))
    ours = weights_of(stack)
    plain.compare("MTL", optimiser, ours, weights)
    assert all((after - before).abs().max() > 1e-3 for after, before in zip(ours, start, strict=True))
    torch.testing.assert_close(stack.embeddings, torch.stack(stored), rtol=0, atol=1e-10)


def test_a_prediction_takes_the_embedding_of_the_images_given():
    stack = plain.ready(MTL(), 3).eval()
    weights, x = weights_of(stack), toy_batches(0, 3)[2].x
    expected = logits(weights, x, plain.features(weights, x).mean(0))
    torch.testing.assert_close(stack.predict(x), expected, rtol=0, atol=1e-12)
    assert not torch.allclose(stack.predict(x[:3]), expected[:3])


def test_measured_has_the_embedding_of_its_batch_whatever_it_is_asked():
    stack = plain.ready(MTL(), 3).eval()
    here, there = toy_batches(0, 3)[:2]
    f, weights = stack.measured(here), weights_of(stack)
    torch.testing.assert_close(f(here.x), stack.predict(here.x), rtol=0, atol=1e-12)
    embedding = plain.features(weights, here.x).mean(0)
    torch.testing.assert_close(f(there.x[:1]), logits(weights, there.x[:1], embedding), rtol=0, atol=1e-12)


def test_c_is_that_by_hand_with_the_embedding_held():
    stack = ready(DSPReg(MTL(), measure_batches=2), toy_task(dropout=0.0))
    for t in range(2):
        train_step(stack, toy_batches(t))
    each = []
    for batches in toy_task().samples(2, 2).values():
        weights, total = weights_of(stack), 0.0
        for b in batches:
            embedding = plain.features(weights, b.x).mean(0).detach()
            for i in range(len(b)):
                one = Batch(b.x[i : i + 1], b.y[i : i + 1], b.domain)
                g = plain.gradient(risk(weights, one, embedding), weights)
                total = total + torch.cat([t.reshape(-1) ** 2 for t in g])
        each.append(total / sum(map(len, batches)))
    s = torch.stack(each)
    expected = s.std(0, unbiased=False) / s.mean(0)
    c = stack.measure_c()
    names = ["featurizer.layers.0.weight", "featurizer.layers.0.bias", "classifier.weight", "classifier.bias"]
    ours = torch.cat([c[n].reshape(-1) for n in [*names, "marginal.weight"]])
    assert set(c) == set(trainable(stack.net)) == {*names, "marginal.weight"}
    assert largest_difference({"c": ours}, {"c": expected}) < 1e-9


@pytest.mark.parametrize("spec", ["MTL+DSPReg(weight=0.3, engine='exact')", "DSPReg(weight=0.3, engine='exact')+MTL"])
def test_the_penalty_is_on_all_of_its_weights(spec):
    """Before the first refresh c is 1: L + λ ‖∇L‖², differentiated by hand."""
    stack = plain.ready(parse(spec), 3, "sgd")
    weights, batches = weights_of(stack), toy_batches(0, 3, plain.SIZES)
    train_step(stack, batches)
    loss = total_risk(weights, batches, [0.99 * plain.features(weights, b.x).mean(0) for b in batches])
    g = torch.autograd.grad(loss, weights, create_graph=True)
    plain.SGD().step(weights, plain.gradient(loss + 0.3 * sum(t.square().sum() for t in g), weights))
    for ours, theirs in zip(weights_of(stack), weights, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


def relative(mean, random, domain=0, n=64):
    """The label is the sign of an input relative to the domain's mean, which a single sample does not tell."""
    y = torch.randint(2, (n,), generator=random)
    x = mean + (y - 0.5)[:, None] + 0.1 * torch.randn(n, 5, generator=random)
    return Batch(x.double(), y, domain)


def test_it_adapts_to_an_unseen_domain_and_erm_is_near_chance():
    means, unseen = torch.linspace(-1.5, 1.5, 10).tolist(), [-0.45, 0.05, 0.4]
    accuracy = {}
    for algorithm in (ERM(), MTL()):
        random = generator("relative")
        stack = algorithm.setup(toy_task(10, classes=2, dropout=0.0), lambda p: torch.optim.Adam(p, lr=0.03)).double()
        for _ in range(150):
            train_step(stack, [relative(m, random, d) for d, m in enumerate(means)])
        with evaluation_mode(stack):
            tests = [relative(m, random, n=500) for m in unseen]
            hits = [(stack.predict(b.x).argmax(1) == b.y).double().mean().item() for b in tests]
        accuracy[type(algorithm)] = sum(hits) / len(hits)
    assert accuracy[ERM] < 0.6
    assert accuracy[MTL] > 0.95


@pytest.mark.parametrize("below", ["Mixup", "RSC"])
def test_what_changes_forward_goes_above(below):
    with pytest.raises(ConfigError, match=rf"MTL has its own forward and would undo that of {below}.*'MTL\+{below}'"):
        ready(parse(f"{below}+MTL"))
    train_step(ready(parse(f"MTL+{below}")), toy_batches(0))


@pytest.mark.parametrize("spec", ["ARM+MTL", "MTL+ARM"])
def test_two_forwards_of_their_own(spec):
    with pytest.raises(ConfigError, match="Leave one of them out"):
        ready(parse(spec))


def test_the_default_and_its_draws_are_domain_beds():
    assert MTL().ema == 0.99
    assert (MTL.space["ema"].values, MTL.space["ema"].key) == ((0.5, 0.9, 0.99, 1.0), "mtl_ema")


@pytest.mark.parametrize("ema", [0.0, 1.1, -0.5])
def test_an_average_that_is_none(ema):
    with pytest.raises(ConfigError, match=f"ema={ema}; wanted a number above 0, at most 1"):
        MTL(ema=ema)
