"""How much the loss rises near the weights a method ends at, on a problem whose loss cannot go to zero."""

import torch

from dspreg.batches import Batch
from dspreg.testing import toy_batches
from dspreg.training import train_step
from reference import plain


def climbed(weights, grads, radius):
    """A copy of the weights, `radius` further up."""
    length = sum((g * g).sum().item() for g in grads) ** 0.5
    return [(w + radius * g / length).detach().requires_grad_() for w, g in zip(weights, grads, strict=True)]


def worst_nearby(weights, batches, radius=0.5, climbs=30):
    """The largest loss that steps uphill on the sphere around the weights come across."""
    at, worst = weights, plain.pooled(weights, batches).item()
    for _ in range(climbs):
        uphill = plain.gradient(plain.pooled(at, batches), at)
        away = [a - w + 0.1 * g for a, w, g in zip(at, weights, uphill, strict=True)]
        at = climbed(weights, away, radius)
        worst = max(worst, plain.pooled(at, batches).item())
    return worst


def worst_after(algorithm):
    """The worst loss nearby after training on two domains, every fourth label of which is wrong."""
    batches = []
    for b in toy_batches(0, 2, (40, 40)):
        wrong = torch.arange(len(b)) % 4 == 0
        batches.append(Batch(b.x, (b.y + wrong) % 3, b.domain))
    stack = plain.ready(algorithm, 2)
    for _ in range(150):
        train_step(stack, batches)
    return worst_nearby(plain.weights_of(stack), batches)
