"""A small problem: three domains with shifted and scaled inputs, a network with dropout, float64.

Inputs are vectors, or small images for algorithms that look at channels and places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F

from dspreg.algorithms import Algorithm, Task
from dspreg.algorithms.stack import Optimizer
from dspreg.batches import Batch
from dspreg.networks import Featurizer, TinyCNN, TinyMLP
from dspreg.randomness import Key, generator

CLASSES, INPUTS, IMAGE = 3, 5, (3, 6, 6)
Shape = int | tuple[int, int, int]  # of one input: a vector's length, or channels, height and width


def toy_task(domains: int = 3, classes: int = CLASSES, inputs: Shape = INPUTS, dropout: float = 0.25) -> Task:
    names = tuple(f"domain {d}" for d in range(domains))

    def backbone() -> Featurizer:
        return TinyMLP(inputs, 8, dropout) if isinstance(inputs, int) else TinyCNN(inputs[0], 8, dropout)

    def samples(t: int, n: int) -> Mapping[str, Sequence[Batch]]:
        return {
            name: [toy_batch(d, 32, classes, inputs, t, i, "measure") for i in range(n)] for d, name in enumerate(names)
        }

    return Task(classes, names, 2, backbone, ("toy",), samples)


def toy_batch(domain: int, size: int, classes: int, inputs: Shape, *key: Key) -> Batch:
    random = generator("toy", domain, *key)
    y = torch.randint(classes, (size,), generator=random)
    shape = (size, inputs) if isinstance(inputs, int) else (size, *inputs)
    x = torch.randn(shape, generator=random, dtype=torch.float64)
    return Batch(x * (1 + 0.3 * domain) + y.view(-1, *[1] * (x.ndim - 1)) + 0.5 * domain, y, domain)


def toy_batches(
    t: int, domains: int = 3, sizes: Sequence[int] = (6, 6, 6), soft: bool = False, inputs: Shape = INPUTS
) -> list[Batch]:
    """The training batches of step t, one per domain."""
    batches = [toy_batch(d, sizes[d % len(sizes)], CLASSES, inputs, t, "train") for d in range(domains)]
    return [Batch(b.x, F.one_hot(b.y, CLASSES).double(), b.domain) for b in batches] if soft else batches


def ready(
    algorithm: Algorithm, task: Task | None = None, optimizer: Optimizer = lambda p: torch.optim.Adam(p, lr=1e-2)
) -> Algorithm:
    """Set up for the toy problem, in float64."""
    return algorithm.setup(task or toy_task(), optimizer).double()
