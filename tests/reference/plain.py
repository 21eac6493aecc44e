"""A two-layer network and textbook optimisers on a list of tensors, sharing no code with the package.

Methods are written out anew in the tests and compared with ours after one step of SGD and after three of Adam.
"""

from collections import defaultdict

import pytest
import torch

from dspreg.testing import toy_batches, toy_task
from dspreg.training import train_step

SIZES = (4, 7, 3, 6, 5)  # of the domains' batches: unequal, so that weights per domain and per sample differ

problems = pytest.mark.parametrize("domains", [2, 3, 5])
optimisers = pytest.mark.parametrize("optimiser", ["sgd", "adam"])


def weights_of(stack):
    """W (H, I), a (H,), V (C, H), b (C,): copies that take a gradient."""
    names = ["featurizer.layers.0.weight", "featurizer.layers.0.bias", "classifier.weight", "classifier.bias"]
    state = stack.net.state_dict()
    return [state[name].detach().clone().requires_grad_() for name in names]


def features(weights, x):
    return torch.tanh(x @ weights[0].T + weights[1])


def logits(weights, x):
    return features(weights, x) @ weights[2].T + weights[3]


def cross_entropy(weights, x, y):
    """Mean over samples of log Σ exp z − z_y."""
    z = logits(weights, x)
    return (z.exp().sum(1).log() - z[torch.arange(len(y)), y]).mean()


def pooled(weights, batches):
    """The mean over all samples of all domains."""
    return sum(len(b) * cross_entropy(weights, b.x, b.y) for b in batches) / sum(len(b) for b in batches)


def gradient(loss, weights):
    return torch.autograd.grad(loss, weights)


class SGD:
    def __init__(self, lr=0.1):
        self.lr = lr

    def step(self, weights, grads):
        with torch.no_grad():
            for w, g in zip(weights, grads, strict=True):
                w -= self.lr * g


class Adam:
    def __init__(self, lr=0.05, betas=(0.9, 0.999), eps=1e-8):
        self.lr, self.betas, self.eps = lr, betas, eps
        self.t, self.m, self.v = 0, defaultdict(float), defaultdict(float)

    def step(self, weights, grads):
        (b1, b2), self.t = self.betas, self.t + 1
        with torch.no_grad():
            for i, (w, g) in enumerate(zip(weights, grads, strict=True)):
                self.m[i] = b1 * self.m[i] + (1 - b1) * g
                self.v[i] = b2 * self.v[i] + (1 - b2) * g * g
                w -= self.lr * (self.m[i] / (1 - b1**self.t)) / ((self.v[i] / (1 - b2**self.t)).sqrt() + self.eps)


DIFFERENCES = {}  # (method, optimiser): the largest difference found, which `make parity` prints


def compare(method, optimiser, ours, theirs, tolerance=1e-10):
    """The same weights to 1e-10, and for the record how near they are."""
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=tolerance)
        key = (method, optimiser)
        DIFFERENCES[key] = max(DIFFERENCES.get(key, 0.0), float((a - b).detach().abs().max()))


OPTIMISERS = {
    "sgd": (lambda p: torch.optim.SGD(p, lr=0.1), SGD, 1),
    "adam": (lambda p: torch.optim.Adam(p, lr=0.05), Adam, 3),
}


def ready(algorithm, domains, optimiser="adam"):
    """A stack on the toy task, without dropout, in float64."""
    return algorithm.setup(toy_task(domains, dropout=0.0), OPTIMISERS[optimiser][0]).double()


def assert_same_steps(algorithm, step, domains, optimiser, *, name=None, tolerance=1e-10):
    """Our steps and those of `step(weights, batches, optimiser, t)` end at the same weights, which have moved."""
    stack = ready(algorithm, domains, optimiser)
    _, plain, steps = OPTIMISERS[optimiser]
    start, weights, by_hand = weights_of(stack), weights_of(stack), plain()
    for t in range(steps):
        batches = toy_batches(t, domains, SIZES)
        train_step(stack, batches)
        step(weights, batches, by_hand, t)
    ours = weights_of(stack)
    compare(name or type(algorithm).__name__, optimiser, ours, weights, tolerance)
    assert all((after - before).abs().max() > 1e-3 for after, before in zip(ours, start, strict=True))
