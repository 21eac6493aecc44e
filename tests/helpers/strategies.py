"""`persample` beside a naive loop over single samples, and which parameters it sent the slow way."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

import dspreg
from dspreg.sensitivity.estimators import readings
from dspreg.sensitivity.evaluation_mode import evaluation_mode
from dspreg.sensitivity.per_sample import estimator as persample
from dspreg.sensitivity.per_sample.accumulator import Accumulator
from dspreg.sensitivity.samples import Samples


def weights(samples: int) -> Tensor:
    """Of three sums at once: over everyone, over every second sample, and with unequal weights and a zero."""
    n = torch.arange(samples, dtype=torch.float64)
    return torch.stack([torch.ones_like(n), n % 2, n / 2])


def naive(net: nn.Module, x: Tensor, params: dict[str, Tensor]) -> dict[str, Tensor]:
    """Σ_i w_i Σ_a (∂ output_ia)² for each of the `weights`, one sample and one output at a time."""
    w = weights(len(x))
    total = {n: torch.zeros(len(w), *p.shape, dtype=torch.float64) for n, p in params.items()}
    for i in range(len(x)):
        for value in net(x[i : i + 1].clone()).reshape(-1):
            if not value.requires_grad:
                continue
            grads = torch.autograd.grad(value, list(params.values()), retain_graph=True, allow_unused=True)
            for n, g in zip(params, grads, strict=True):
                if g is not None:
                    total[n] += w[:, i].reshape(-1, *[1] * g.ndim) * g.double() ** 2
    return total


def quick(net: nn.Module, x: Tensor) -> tuple[dict[str, Tensor], set[str]]:
    """The same by `persample`, and the names that went the slow way."""
    params = {n: p for n, p in net.named_parameters() if p.requires_grad}
    sums, slow = Accumulator(params, 3), set()
    sums.set_weights(weights(len(x)))

    def noted(reading, rest, *args, **options):
        slow.update(rest)
        return estimate_rest(reading, rest, *args, **options)

    estimate_rest = persample.estimate_rest
    with (
        evaluation_mode(net),
        mock.patch.object(persample, "estimate_rest", noted),
        warnings.catch_warnings(action="ignore", category=dspreg.Notice),
    ):
        persample.estimate_per_sample(readings(net, "output"), params, Samples(x), sums, net=net)
    rows = [sums.mean(g, 1) for g in range(3)]
    return {n: torch.stack([row[n].double() / sums.scales.get(n, 1) ** 2 for row in rows]) for n in params}, slow


def slow_ones(net: nn.Module, x: Tensor, tolerance: float = 1e-10) -> set[str]:
    """The names that went the slow way, when all numbers are as they should be; each tensor by its own size."""
    ours, slow = quick(net, x)
    with evaluation_mode(net):
        theirs = naive(net, x, {n: p for n, p in net.named_parameters() if p.requires_grad})
    for n, expected in theirs.items():
        error = (ours[n] - expected).abs().amax() if expected.numel() else 0
        assert error <= tolerance * (expected.abs().amax() if expected.numel() else 1), n
    return slow


class Net(nn.Module):
    """A network of a few parts and one function."""

    def __init__(self, forward: Callable[[Any, Tensor], Tensor], **parts: Any):
        super().__init__()
        self.function = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def net(forward: Callable[[Any, Tensor], Tensor], **parts: Any) -> nn.Module:
    return Net(forward, **parts).double()


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)
