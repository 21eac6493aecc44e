"""RandConv: images in random textures, and the same answer for all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from dspreg.algorithms.base import Algorithm
from dspreg.algorithms.compatibility import ONLY_CLASSES, Compatibility
from dspreg.algorithms.image_reader import repeat
from dspreg.algorithms.task import Task
from dspreg.batches import Batch, Outputs, at_least_float32
from dspreg.devices import send
from dspreg.errors import ConfigError
from dspreg.networks import Network

COPIES = 3
SIZES = (1, 3, 5, 7)  # of kernels


class RandConv(Algorithm):
    """Train on images under random convolutions, and ask for one answer under three of them.

        x^j = a_j (w_j * x) + (1 − a_j) x,  a_j ~ U(0, 1),  w_j ~ N(0, 1/(C k²)) of (C, C, k, k),  k one of 1, 3, 5, 7
        L(x¹) + weight · mean_i ⅓ Σ_j KL(p_i^j ‖ p̄_i),  p̄ = ⅓ Σ_j p^j

    x (N, C, H, W) images, p (N, C) predictions; j = 1, 2, 3. A random convolution keeps shapes and changes textures,
    the more the larger k. All images of a step have the same three. With `mix=False` a_j = 1, with probability 1 − `p`
    x^j = x. Prediction and measuring see plain images.

    Xu et al., ICLR 2021: RC_mix and its weight of 10 are those of their script for digits, whose RC_img is `mix=False,
    p=0.5, weight=5`; their scripts for PACS are not published. Their code convolves for j = 2, 3 what it has convolved
    for j = 1 already; here all three are of x, as in the paper. Changes `forward` and `loss`; one pass over three
    times the images.
    """

    # it compares predictions by their softmax
    compatibility = Compatibility(kinds=ONLY_CLASSES, rearranges_samples=True, reads_images=True)

    def __init__(self, base: Algorithm | None = None, *, weight: float = 10.0, mix: bool = True, p: float = 1.0):
        super().__init__(base)
        if not 0 <= weight < float("inf"):
            raise ConfigError(f"RandConv: weight={weight}; wanted a finite number ≥ 0")
        if not 0 < p <= 1:
            raise ConfigError(f"RandConv: p={p}; wanted a probability above 0, at most 1")
        self.weight, self.mix, self.p = weight, mix, p

    def build(self, task: Task) -> Network:
        if any(isinstance(layer, RandConv) for layer in self.base.layers()):
            raise ConfigError("RandConv stands twice in this stack; wanted once")
        return self.base.build(task)

    def forward(self, batches: Sequence[Batch]) -> Outputs:
        if batches[0].x.ndim != 4:
            shape = tuple(batches[0].x.shape)
            raise ConfigError(f"RandConv wants images (B, C, H, W), and these are {shape}; leave it out")
        changes = [self.draw(batches[0].x) for _ in range(COPIES)]
        thrice = [replace(b, x=self.convolve(b.x, changes)) for b in repeat(batches, COPIES)]
        out: Outputs = self.base(thrice)
        sizes = tuple(size // COPIES for size in out.sizes)
        first = out.replace(
            features=out.features[::COPIES], logits=out.logits[::COPIES], labels=out.labels[::COPIES], sizes=sizes,
            sample_weights=None if out.sample_weights is None else out.sample_weights[::COPIES],
        )  # fmt: skip
        return first.replace(extras={**out.extras, "RandConv": spread(out.logits.unflatten(0, (-1, COPIES)))})

    def draw(self, x: Tensor) -> tuple[Tensor, float] | None:
        """A kernel and its share; None for the image as it is."""
        if float(torch.rand(())) >= self.p:
            return None
        channels, k = x.shape[1], SIZES[int(torch.randint(len(SIZES), ()))]
        share = float(torch.rand(())) if self.mix else 1.0
        kernel = send(torch.randn(channels, channels, k, k), x.device).to(x.dtype)
        return kernel / math.sqrt(channels * k * k), share

    def convolve(self, x: Tensor, changes: Sequence[tuple[Tensor, float] | None]) -> Tensor:
        """Each copy of each image by its own. (COPIES · B, C, H, W)"""
        copies = []
        for j, change in enumerate(changes):
            one = x[j::COPIES]
            if change is not None:
                kernel, share = change
                one = torch.lerp(one, F.conv2d(one, kernel, padding=kernel.shape[-1] // 2).to(one.dtype), share)
            copies.append(one)
        return torch.stack(copies, 1).flatten(0, 1)

    def loss(self, out: Outputs) -> Tensor:
        inconsistency = out.extras["RandConv"]
        self.note(inconsistency=inconsistency)
        return self.base.loss(out) + self.weight * inconsistency


def spread(logits: Tensor) -> Tensor:
    """The mean over samples and copies of KL(p ‖ p̄). Of (N, copies, C)"""
    log_p = at_least_float32(logits).log_softmax(2)
    log_mean = log_p.logsumexp(1, keepdim=True) - math.log(logits.shape[1])
    return (log_p.exp() * (log_p - log_mean)).sum(2).mean()
