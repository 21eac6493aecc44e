"""s and c of the network of `plain`, one gradient per sample, on what a refresh of the toy task takes."""

import torch

from dspreg.testing import toy_batch
from reference import plain

BATCHES = 2


def sensitivities(weights, domains, t):
    """s of every weight and domain, from the samples a refresh before step t takes: 2 batches of 32 per domain."""
    found = []
    for d in range(domains):
        squares, count = [torch.zeros_like(w) for w in weights], 0
        for i in range(BATCHES):
            batch = toy_batch(d, 32, 3, 5, t, i, "measure")
            for x, y in zip(batch.x, batch.y, strict=True):
                g = plain.gradient(plain.cross_entropy(weights, x[None], y[None]), weights)
                squares = [s + each.square() for s, each in zip(squares, g, strict=True)]
                count += 1
        found.append([s / count for s in squares])
    return found


def coefficients(weights, domains, t):
    """c of every weight."""
    result = []
    for per_domain in zip(*sensitivities(weights, domains, t), strict=True):
        mean = sum(per_domain) / domains
        variance = sum((s - mean) ** 2 for s in per_domain) / domains
        result.append(variance.sqrt() / mean)
    return result
