"""ARM against a loop over domains, what it does to networks, and the domains it is meant to adapt to."""

import pytest
import torch
import torch.nn.functional as F

from dspreg import ConfigError
from dspreg.algorithms import ARM, ERM, DSPReg, Task, parse
from dspreg.batches import Batch
from dspreg.networks import TinyCNN, make_backbone
from dspreg.randomness import generator
from dspreg.sensitivity.evaluation_mode import evaluation_mode
from dspreg.testing import ready, toy_batches, toy_task
from dspreg.training import train_step
from dspreg.vectors import trainable
from reference import pictures, plain
from reference.sensitivity import largest_difference

CONTEXT = [f"context.{n}" for n in ("0.weight", "1.weight", "1.bias", "3.weight", "4.weight", "4.bias", "6.weight")]
CONTEXT += ["context.6.bias"]


def normed(x, scale, shift):
    """By the statistics of all that is given, biased."""
    mean = x.mean((0, 2, 3), keepdim=True)
    variance = (x - mean).square().mean((0, 2, 3), keepdim=True)
    return (x - mean) / (variance + 1e-5).sqrt() * scale[:, None, None] + shift[:, None, None]


def contexts(weights, x, norm=normed):
    a, scale, shift, b, scale_2, shift_2, c, bias = weights[6:]
    h = F.relu(norm(F.conv2d(x, a, padding=2), scale, shift))
    h = F.relu(norm(F.conv2d(h, b, padding=2), scale_2, shift_2))
    return F.conv2d(h, c, bias, padding=2)


def logits(weights, x, context):
    return pictures.late(weights, pictures.early(weights, torch.cat([x, context.repeat(len(x), 1, 1, 1)], 1)))


def total_risk(weights, batches):
    every, start, total = contexts(weights, torch.cat([b.x for b in batches])), 0, 0.0
    for b in batches:
        context = sum(every[start + i] for i in range(len(b))) / len(b)
        start += len(b)
        total = total + len(b) * pictures.mean_risk(logits(weights, b.x, context), b.y)
    return total / start


@plain.problems
@plain.optimisers
def test_steps_are_those_of_the_loop(domains, optimiser):
    def step(weights, batches, by_hand, t):
        by_hand.step(weights, plain.gradient(total_risk(weights, batches), weights))

    pictures.assert_same_steps(ARM(width=4), step, domains, optimiser, CONTEXT)


def image_batches(t=0, **options):
    return toy_batches(t, inputs=pictures.IMAGE, **options)


def trained(algorithm=None, steps=2):
    stack = pictures.ready(algorithm or ARM(width=4), 3)
    for t in range(steps):
        train_step(stack, image_batches(t))
    return stack


def by_running_statistics(stack):
    norms = iter([stack.net.context[1], stack.net.context[4]] * 100)

    def norm(x, scale, shift):
        kept = next(norms)
        mean, variance = kept.running_mean[:, None, None], kept.running_var[:, None, None]
        return (x - mean) / (variance + 1e-5).sqrt() * scale[:, None, None] + shift[:, None, None]

    return norm


def test_a_prediction_takes_the_context_of_the_images_given():
    stack = trained().eval()
    weights, x = pictures.weights_of(stack, CONTEXT), image_batches()[2].x
    context = contexts(weights, x, by_running_statistics(stack)).mean(0)
    expected = logits(weights, x, context)
    torch.testing.assert_close(stack.predict(x), expected, rtol=0, atol=1e-12)
    assert not torch.allclose(stack.predict(x[:3]), expected[:3])
    f = stack.measured(image_batches()[2])  # the same context for whatever it is asked
    torch.testing.assert_close(f(x[:3]), expected[:3], rtol=0, atol=1e-12)


def test_c_is_that_by_hand_with_the_context_held():
    stack = trained(DSPReg(ARM(width=4), measure_batches=2))
    weights, each = pictures.weights_of(stack, CONTEXT), []
    for batches in toy_task(inputs=pictures.IMAGE).samples(2, 2).values():
        total = 0.0
        for b in batches:
            context = contexts(weights, b.x, by_running_statistics(stack)).mean(0).detach()
            for i in range(len(b)):
                risk = pictures.mean_risk(logits(weights, b.x[i : i + 1], context), b.y[i : i + 1])
                g = plain.gradient(risk, weights[:6])
                total = total + torch.cat([t.reshape(-1) ** 2 for t in g])
        each.append(total / sum(map(len, batches)))
    s = torch.stack(each)
    expected = s.std(0, unbiased=False) / s.mean(0)
    c = stack.measure_c()
    assert set(c) == set(trainable(stack.net)) == {*pictures.BODY, *pictures.HEAD, *CONTEXT}
    ours = torch.cat([c[n].reshape(-1) for n in [*pictures.BODY, *pictures.HEAD]])
    assert largest_difference({"c": ours}, {"c": expected}) < 1e-9
    assert all((c[n] == 0).all() for n in CONTEXT)  # it does not reach the logits while the context is held


@pytest.mark.parametrize(
    "spec", ["ARM(width=4)+DSPReg(weight=0.3, engine='exact')", "DSPReg(weight=0.3, engine='exact')+ARM(width=4)"]
)
def test_the_penalty_is_on_all_of_its_weights(spec):
    """Before the first refresh c is 1: L + λ ‖∇L‖², differentiated by hand."""

    def step(weights, batches, by_hand, t):
        loss = total_risk(weights, batches)
        g = torch.autograd.grad(loss, weights, create_graph=True)
        by_hand.step(weights, plain.gradient(loss + 0.3 * sum(t.square().sum() for t in g), weights))

    pictures.assert_same_steps(parse(spec), step, 3, "sgd", CONTEXT)


def test_the_context_network_is_domain_beds():
    net = ready(ARM(), toy_task(inputs=pictures.IMAGE)).net.context
    shapes = [tuple(p.shape) for p in net.parameters() if p.ndim == 4]
    assert shapes == [(64, 3, 5, 5), (64, 64, 5, 5), (1, 64, 5, 5)]
    assert net(torch.zeros(2, *pictures.IMAGE, dtype=torch.float64)).shape == (2, 1, 6, 6)


@pytest.mark.parametrize("name", ["resnet18", "tf_efficientnet_lite0", "vit_tiny_patch16_224", "small-cnn"])
def test_networks_get_one_more_channel_with_the_first_ones_weights(name):
    made = make_backbone(name, weights="none", image_size=32).make
    stacks = [a.setup(Task(2, ("a", "b"), 1, made), torch.optim.Adam) for a in (ERM(), ARM(width=2))]
    plain_net, wide = (stack.net.state_dict() for stack in stacks)
    changed = [n for n in plain_net if plain_net[n].shape != wide[n].shape]
    assert len(changed) == 1
    (first,) = changed
    assert torch.equal(wide[first][:, :3], plain_net[first])
    assert torch.equal(wide[first][:, 3], plain_net[first][:, 0])
    assert all(torch.equal(plain_net[n], wide[n]) for n in plain_net if n != first)
    x = torch.rand(4, 3, 32, 32)
    train_step(stacks[1], [Batch(x, torch.tensor([0, 1, 0, 1]), 0)])
    assert stacks[1].eval().predict(x).shape == (4, 2)


def test_frozen_weights_stay_frozen():
    class Frozen(TinyCNN):
        def __init__(self):
            super().__init__()
            self.layers[0].requires_grad_(False)

    stack = ARM(width=2).setup(Task(2, ("a",), 1, Frozen), torch.optim.Adam)
    assert not stack.net.featurizer.layers[0].weight.requires_grad


def shaded(mean, random, domain=0, n=16):
    """Grey images whose label is whether they are lighter than the domain's mean, which one image does not tell."""
    y = torch.randint(2, (n,), generator=random)
    shade = mean + (y - 0.5) + 0.1 * torch.randn(n, generator=random)
    return Batch(shade.view(-1, 1, 1, 1).expand(n, 3, 6, 6).clone(), y, domain)


def test_it_adapts_to_an_unseen_domain_and_erm_is_near_chance():
    means, unseen = torch.linspace(-1.5, 1.5, 10).tolist(), [-0.45, 0.05, 0.4]
    accuracy = {}
    for algorithm in (ERM(), ARM(width=4)):
        random = generator("shaded")
        task = toy_task(10, classes=2, inputs=pictures.IMAGE, dropout=0.0)
        stack = algorithm.setup(task, lambda p: torch.optim.Adam(p, lr=0.02))
        for _ in range(120):
            train_step(stack, [shaded(m, random, d) for d, m in enumerate(means)])
        with evaluation_mode(stack):
            tests = [shaded(m, random, n=64) for m in unseen for _ in range(5)]
            hits = [(stack.predict(b.x).argmax(1) == b.y).double().mean().item() for b in tests]
        accuracy[type(algorithm)] = sum(hits) / len(hits)
    assert accuracy[ERM] < 0.6
    assert accuracy[ARM] > 0.95


@pytest.mark.parametrize("below", ["Mixup", "RSC"])
def test_what_changes_forward_goes_above(below):
    with pytest.raises(ConfigError, match=rf"ARM has its own forward and would undo that of {below}.*'ARM\+{below}'"):
        trained(parse(f"{below}+ARM"))
    trained(parse(f"ARM(width=4)+{below}"), 1)


def test_vectors_have_no_channels():
    with pytest.raises(ConfigError, match="ARM gives images one more channel, and TinyMLP has no convolution"):
        ready(ARM())


def test_a_width_that_is_none():
    with pytest.raises(ConfigError, match="width=0; wanted a number of channels"):
        ARM(width=0)
