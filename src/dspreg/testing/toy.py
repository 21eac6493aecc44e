"""A small problem: three domains with shifted and scaled inputs, a network with dropout, float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F

from dspreg.algorithms import Algorithm, Task
from dspreg.algorithms.base import Optimizer
from dspreg.batches import Batch
from dspreg.networks import TinyMLP
from dspreg.randomness import Key, generator

CLASSES, INPUTS = 3, 5


def toy_task(domains: int = 3, classes: int = CLASSES, inputs: int = INPUTS, dropout: float = 0.25) -> Task:
    names = tuple(f"domain {d}" for d in range(domains))

    def samples(t: int, n: int) -> Mapping[str, Sequence[Batch]]:
        return {
            name: [toy_batch(d, 32, classes, inputs, t, i, "measure") for i in range(n)] for d, name in enumerate(names)
        }

    return Task(classes, names, 2, lambda: TinyMLP(inputs, 8, dropout), ("toy",), samples)


def toy_batch(domain: int, size: int, classes: int, inputs: int, *key: Key) -> Batch:
    random = generator("toy", domain, *key)
    y = torch.randint(classes, (size,), generator=random)
    x = torch.randn(size, inputs, generator=random, dtype=torch.float64)
    return Batch(x * (1 + 0.3 * domain) + y[:, None] + 0.5 * domain, y, domain)


def toy_batches(t: int, domains: int = 3, sizes: Sequence[int] = (6, 6, 6), soft: bool = False) -> list[Batch]:
    """The training batches of step t, one per domain."""
    batches = [toy_batch(d, sizes[d % len(sizes)], CLASSES, INPUTS, t, "train") for d in range(domains)]
    return [Batch(b.x, F.one_hot(b.y, CLASSES).double(), b.domain) for b in batches] if soft else batches


def ready(
    algorithm: Algorithm, task: Task | None = None, optimizer: Optimizer = lambda p: torch.optim.Adam(p, lr=1e-2)
) -> Algorithm:
    """Set up for the toy problem, in float64."""
    return algorithm.setup(task or toy_task(), optimizer).double()
