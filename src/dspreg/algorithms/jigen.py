"""JiGen: also tell how the tiles of an image were shuffled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dspreg.algorithms.base import Algorithm
from dspreg.algorithms.compatibility import Compatibility
from dspreg.algorithms.image_reader import intercepted
from dspreg.algorithms.task import Task
from dspreg.batches import Batch, Outputs, at_least_float32
from dspreg.devices import send
from dspreg.errors import ConfigError
from dspreg.networks import Network
from dspreg.randomness import generator, seeded

GRID = 3  # tiles along a side


class JiGen(Algorithm):
    """Solve jigsaw puzzles beside the task: a second classifier tells in which order the tiles of an image are.

        L + weight · mean_i CE(V f_i + b, o_i)

    f (N, F) features; o is 0 for an image as it is, and k for one whose 3 × 3 tiles are in the k-th of `orders`
    permutations. An image is left as it is with probability `whole`, and has one of the orders + 1 else. Shuffled
    images count in L as well. Pixels beyond three whole tiles stay where they are. Prediction and measuring see plain
    images.

    Carlucci et al., CVPR 2019, with the options that their page gives for a ResNet-18 on PACS; theirs also makes one
    tile in ten grey, where our augmentation has whole images. The permutations are chosen as theirs, each the farthest
    from those before it in Hamming distance, among 1,000 drawn at random; the set is not theirs. The second classifier
    is `net.jigen`. Changes `build`, `forward` and `loss`; no extra pass.
    """

    compatibility = Compatibility(needs_samples_as_read=True, reads_images=True)

    def __init__(self, base: Algorithm | None = None, *, weight: float = 0.7, whole: float = 0.9, orders: int = 30):
        super().__init__(base)
        if not 0 <= weight < float("inf"):
            raise ConfigError(f"JiGen: weight={weight}; wanted a finite number ≥ 0")
        if not 0 <= whole < 1:
            raise ConfigError(f"JiGen: whole={whole}; wanted a probability from 0 to below 1")
        if not 1 <= orders <= 1000:
            raise ConfigError(f"JiGen: orders={orders}; wanted a number of permutations from 1 to 1000")
        self.weight, self.whole, self.orders = weight, whole, orders

    def build(self, task: Task) -> Network:
        net = self.base.build(task)
        if "jigen" in net._modules:
            raise ConfigError("JiGen stands twice in this stack; wanted once")
        with seeded(*task.key, "JiGen"):
            net.jigen = nn.Linear(net.featurizer.width, self.orders + 1)
        self._permutations = permutations(self.orders)
        return net

    def forward(self, batches: Sequence[Batch]) -> Outputs:
        order = torch.zeros(0, dtype=torch.long)

        def shuffle(given: Sequence[Batch]) -> Sequence[Batch]:
            nonlocal order
            order = torch.randint(self.orders + 1, (sum(map(len, given)),))
            order = torch.where(torch.rand(len(order)) < self.whole, 0, order)
            parts = order.split([len(b) for b in given])
            return [replace(b, x=self.lay(b.x, part)) for b, part in zip(given, parts, strict=True)]

        with intercepted(self, shuffle):
            out: Outputs = self.base(batches)
        guess = at_least_float32(self.net.get_submodule("jigen")(out.features))
        told = F.cross_entropy(guess, send(order, guess.device))
        return out.replace(extras={**out.extras, "JiGen": told})

    def lay(self, x: Tensor, order: Tensor) -> Tensor:
        """Images with their tiles in these orders."""
        if x.ndim != 4 or min(x.shape[2:]) < GRID:
            raise ConfigError(
                f"JiGen wants images (B, C, H, W) of {GRID} pixels or more, not {tuple(x.shape)}; leave it out"
            )
        high, wide = (side // GRID for side in x.shape[2:])
        tiles = x[:, :, : GRID * high, : GRID * wide].unflatten(3, (GRID, wide)).unflatten(2, (GRID, high))
        tiles = tiles.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)  # (B, 9, C, h, w)
        source = send(self._permutations[order], x.device)
        shuffled = tiles[torch.arange(len(x), device=x.device)[:, None], source]
        laid = shuffled.unflatten(1, (GRID, GRID)).permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)
        full = x.clone()
        full[:, :, : GRID * high, : GRID * wide] = laid
        return full

    def loss(self, out: Outputs) -> Tensor:
        told = out.extras["JiGen"]
        self.note(jigsaw=told)
        return self.base.loss(out) + self.weight * told


def permutations(number: int) -> Tensor:
    """The tiles as they are, then so many orders, the same in every run. (number + 1, 9)"""
    random = generator("JiGen", "permutations")
    with torch.device("cpu"):  # also where a network is made without memory, to compare its shapes
        pool = torch.stack([torch.randperm(GRID**2, generator=random) for _ in range(1000)])
        chosen = [torch.arange(GRID**2)]
        nearest = torch.full((len(pool),), GRID**2)
        for _ in range(number):
            nearest = torch.minimum(nearest, (pool != chosen[-1]).sum(1))
            chosen.append(pool[int(nearest.argmax())])
        return torch.stack(chosen)
