"""How far the gradients of the domains agree."""

from itertools import combinations

import torch

from reference import plain


def cosines(weights, batches):
    """Of every pair of domains."""
    flat = [
        torch.cat([g.reshape(-1) for g in plain.gradient(plain.cross_entropy(weights, b.x, b.y), weights)])
        for b in batches
    ]
    return [(a @ b / ((a @ a) * (b @ b)) ** 0.5).item() for a, b in combinations(flat, 2)]
