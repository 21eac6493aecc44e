"""A network of two convolutions on a list of tensors, for methods that want images. Shares no code with the package."""

import torch
import torch.nn.functional as F

from dspreg.testing import toy_batches, toy_task
from dspreg.training import train_step
from reference import plain

IMAGE = (3, 6, 6)
BODY = [f"featurizer.layers.{i}.{kind}" for i in (0, 2) for kind in ("weight", "bias")]
HEAD = ["classifier.weight", "classifier.bias"]


def ready(algorithm, domains, optimiser="adam"):
    """A stack on the toy images, without dropout, in float64."""
    return algorithm.setup(toy_task(domains, inputs=IMAGE, dropout=0.0), plain.OPTIMISERS[optimiser][0]).double()


def weights_of(stack, names=()):
    """Copies that take a gradient: two convolutions, the classifier, and what else is named."""
    state = stack.net.state_dict()
    return [state[name].detach().clone().requires_grad_() for name in [*BODY, *HEAD, *names]]


def early(weights, x):
    return torch.tanh(F.conv2d(x, weights[0], weights[1], padding=1))


def late(weights, maps):
    """From the first feature maps to logits."""
    features = torch.tanh(F.conv2d(maps, weights[2], weights[3], stride=2, padding=1)).mean((2, 3))
    return features @ weights[4].T + weights[5]


def mean_risk(z, y):
    return (z.exp().sum(1).log() - z[torch.arange(len(y)), y]).mean()


def assert_same_steps(algorithm, step, domains, optimiser, names=()):
    """Our steps and those of `step(weights, batches, optimiser, t)` end at the same weights, which have moved."""
    stack = ready(algorithm, domains, optimiser)
    _, textbook, steps = plain.OPTIMISERS[optimiser]
    start, weights, by_hand = weights_of(stack, names), weights_of(stack, names), textbook()
    by_hand.m, by_hand.v = [0.0] * len(weights), [0.0] * len(weights)
    for t in range(steps):
        batches = toy_batches(t, domains, plain.SIZES, inputs=IMAGE)
        train_step(stack, batches)
        step(weights, batches, by_hand, t)
    ours = weights_of(stack, names)
    plain.compare(type(algorithm).__name__, optimiser, ours, weights)
    assert all((after - before).abs().max() > 1e-6 for after, before in zip(ours, start, strict=True))
