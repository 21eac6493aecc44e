"""MIRO's and GMDG's networks on plain tensors: vectors through one layer, images through two convolutions."""

import math

import torch

from dspreg.testing import toy_batches, toy_task
from dspreg.training import train_step
from reference import plain

SHAPES = {"vectors": 5, "images": (3, 6, 6)}
LAYERS = {"vectors": ["featurizer.layers.0"], "images": ["featurizer.layers.0", "featurizer.layers.2"]}
START = math.log(math.exp(0.1 - 1e-5) - 1)  # softplus of it and 1e-5 more are 0.1


def weights_of(stack, kind):
    """Weight and bias of every layer, the classifier last: copies that take a gradient."""
    state = stack.net.state_dict()
    names = [f"{layer}.{part}" for layer in (*LAYERS[kind], "classifier") for part in ("weight", "bias")]
    return [state[name].detach().clone().requires_grad_() for name in names]


def maps(weights, x):
    """Features at every place, and those that the classifier sees."""
    if len(weights) == 4:
        h = torch.tanh(x @ weights[0].T + weights[1])
        return [h], h
    h = torch.tanh(torch.conv2d(x, weights[0], weights[1], padding=1))
    k = torch.tanh(torch.conv2d(h, weights[2], weights[3], padding=1, stride=2))
    return [h, k], k.mean((2, 3))


def classified(weights, f):
    return f @ weights[-2].T + weights[-1]


def cross_entropy(z, y):
    return (z.exp().sum(1).log() - z[torch.arange(len(y)), y]).mean()


def spread(b):
    return (1 + b.exp()).log() + 1e-5


def spreads(channels):
    """As a network in single precision holds them."""
    return [torch.full((c,), START).double().requires_grad_() for c in channels]


def distance(here, there, bs):
    """Σ_l ½ mean[(h − h⁰)²/v + log v], channel by channel."""
    total = 0.0
    for h, h0, b in zip(here, there, bs, strict=True):
        v = spread(b)
        parts = [((h[:, c] - h0[:, c]) ** 2 / v[c] + v[c].log()).mean() for c in range(len(v))]
        total = total + sum(parts) / len(parts) / 2
    return total


def assert_same_steps(algorithm, start, kind, domains, optimiser, sizes):
    """Our steps and those of `others, step = start(stack, weights)` end at the same weights.

    `others` learn with `lr_mult` times the learning rate; `step(batches, t)` gives the gradients of all. Three steps of
    SGD as well: at the first the features are still the oracle's.
    """
    made, by_hand, _ = plain.OPTIMISERS[optimiser]
    task = toy_task(domains, inputs=SHAPES[kind], dropout=0.0)
    stack = algorithm.setup(task, made).double()
    before, weights = weights_of(stack, kind), weights_of(stack, kind)
    others, step = start(stack, weights)
    lr = by_hand().lr
    first, second = by_hand(lr=lr), by_hand(lr=lr * algorithm.lr_mult)
    began = [t.detach().clone() for t in others]
    for t in range(3):
        batches = toy_batches(t, domains, sizes, inputs=SHAPES[kind])
        train_step(stack, batches)
        grads = step(batches, t)
        first.step(weights, grads[: len(weights)])
        second.step(others, grads[len(weights) :])
    name, ours = type(algorithm).__name__, weights_of(stack, kind)
    plain.compare(name, optimiser, ours, weights)
    assert all((after - old).abs().max() > 1e-3 for after, old in zip(ours, before, strict=True))
    mine = [p.detach().flatten() for p in stack.parts.parameters()]
    plain.compare(name, optimiser, mine, [theirs.detach().flatten() for theirs in others])
    assert all((theirs - old).abs().max() > 1e-4 for theirs, old in zip(others, began, strict=True))
