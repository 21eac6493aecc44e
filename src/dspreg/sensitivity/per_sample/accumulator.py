"""Weighted sums of squared per-sample gradients, computed without holding the gradients of all samples.

    S_k = Σ_i w_i (∂_k reading_i)²

The gradient of a matrix is a sum over positions, G_i = Σ_l g_il u_ilᵀ: the pixels of an image, the words of a sentence.
With many positions each sample's product is computed in a buffer, squared and added: that of a large matrix sample by
sample, those of small ones several at a time. With very few positions it is cheaper to expand,
(Σ_l g_l u_l)² = Σ_{l ≤ l'} (2 − [l = l']) (g_l g_l') (u_l u_l'), one matrix product for all samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from dspreg.batches import at_least_float32
from dspreg.vectors import ParamVector

MAX_PAIRS = 12  # up to so many pairs of positions per weight the one matrix product is cheaper; measured on ResNets
CPU_CHUNK = 2**18  # entries of per-sample gradients at a time, so that they stay in the cache
LOOPED = 2**15  # from so many entries on, one sample at a time is faster on a CPU; measured on a ViT
GPU_CHUNK = 2**26  # on other devices, where one large operation is faster than many small ones
SAFE_EXPONENT = (
    30  # squares of gradients of 2^±30 are well within float32, also of ones a billion times smaller or larger
)

Row = tuple[int, float]  # which sum, and a sample's weight in it


class Accumulator:
    """G sums over the same samples: of a domain, and of the pseudo-domains of the null (c under random domain labels).

    Args:
        params: The θ_k by name.
        rows: G.
        scales: Factors of the gradients by name, powers of two, set by `choose_scale`. One dictionary for all sums that
            are compared: sums hold s·scale².
    """

    def __init__(self, params: Mapping[str, Tensor], rows: int, scales: dict[str, float] | None = None):
        self.params, self.rows = params, rows
        self.scales = scales if scales is not None else {}
        self.totals: dict[str, Tensor] = {}  # (G, …), in the parameter's dtype, at least float32
        self.set_weights(torch.zeros(rows, 0))

    def set_weights(self, groups: Tensor) -> None:
        """Set the weights (G, B) of the following samples. A weight of 0 costs nothing."""
        self.groups = groups
        self.of_sample: list[list[Row]] = [
            [(g, w) for g, w in enumerate(column) if w] for column in groups.T.tolist()
        ]  # fmt: skip
        alike: dict[tuple[Row, ...], list[int]] = {}
        for i, rows in enumerate(self.of_sample):
            alike.setdefault(tuple(rows), []).append(i)
        self.alike = alike  # the samples with the same weights
        self.members = [row.nonzero()[:, 0] for row in groups]

    def choose_scale(self, name: str, g: Tensor, x: Tensor | None = None) -> None:
        """Before the first squares of a parameter, choose a factor that keeps them in range, by the size of g (·x)."""
        if name in self.scales:
            return
        sizes = [_size(t) for t in (g, x) if t is not None]
        if all(sizes):  # zeros need no factor, and do not show the size of later gradients
            exponent = sum(math.frexp(size)[1] for size in sizes)
            self.scales[name] = 2.0**-exponent if abs(exponent) > SAFE_EXPONENT else 1.0

    def merge(self, other: Accumulator) -> None:
        """Add the sums of other parameters."""
        for name, total in other.totals.items():
            self._total(name).add_(total)

    def row(self, g: int) -> dict[str, Tensor]:
        """One of the G sums, by parameter."""
        return {name: self._total(name)[g] for name in self.params}

    def mean(self, g: int, samples: int) -> ParamVector:
        """One of the G sums, divided by its number of samples."""
        return ParamVector(self.row(g)) / samples

    def pop(self, name: str) -> Tensor:
        """Remove and return all sums of a parameter (G, …)."""
        total = self._total(name)
        del self.totals[name]
        return total

    def clear(self, g: int) -> None:
        for total in self.totals.values():
            total[g].zero_()

    def add_gradients(self, name: str, gradients: Tensor, first: int = 0) -> None:
        """Add the gradients (m, …) of the samples from `first` on. They are overwritten."""
        gradients = self._scale(name, gradients)
        squares = gradients.square_() if gradients.is_contiguous() else gradients.square()
        weights = self.groups[:, first : first + len(squares)].to(squares)
        total = self._total(name)
        total.add_(torch.tensordot(weights, squares, 1).view(total.shape))

    def add_sample(self, name: str, gradient: Tensor, i: int) -> None:
        """Add the gradient of sample i."""
        gradient, total = self._scale(name, gradient), self._total(name)
        gradient = gradient.view(total.shape[1:])
        for g, weight in self.of_sample[i]:
            total[g].addcmul_(gradient, gradient, value=weight)

    def add_each(self, name: str, gradient_of: Callable[[int], Tensor]) -> None:
        """Add the gradients of all samples, one at a time: `gradient_of(i)` may overwrite what it returned before.

        Samples with the same weights in several sums are summed once, and then added to each: the squares of a sample
        are one pass over memory, however many sums it is in.
        """
        total = self._total(name)
        shared = total.new_empty(0)
        for rows, samples in self.alike.items():
            targets = [(total[g], weight) for g, weight in rows]
            if together := len(rows) > 1 and len(samples) > 1:
                shared = shared.zero_() if shared.numel() else torch.zeros_like(total[0])
                targets = [(shared, 1.0)]
            for i in samples if rows else ():
                gradient = self._scale(name, gradient_of(i)).view(total.shape[1:])
                for target, weight in targets:
                    target.addcmul_(gradient, gradient, value=weight)
            if together:
                for g, weight in rows:
                    total[g].add_(shared, alpha=weight)

    def add_sparse(self, name: str, gradients: Tensor, samples: Tensor, rows: Tensor) -> None:
        """Add gradients (U, …) of rows `rows` of a table, for the samples `samples`; no pair of them occurs twice."""
        squares, total = self._scale(name, gradients).square_(), self._total(name)
        for weights, sums in zip(self.groups, total, strict=True):
            sums.index_add_(0, rows, squares * weights.to(squares)[samples, None])

    def add_products(self, name: str, g: Tensor, u: Tensor) -> None:
        """Add the gradients G_i = g_i u_iᵀ of a matrix, from g (B, O, L) and u (B, I, L)."""
        n, out, positions = g.shape
        inputs = u.shape[1]
        if positions * (positions + 1) // 2 <= MAX_PAIRS:
            all_positions = list(range(positions))
            pairs = PositionPairs(self, name, g, u)
            pairs.add_to(self._total(name).view(self.rows, out, inputs), all_positions, all_positions)
            return
        size = chunk_size(g, out * inputs)
        if size == 1 or (g.device.type == "cpu" and out * inputs >= LOOPED):
            buffer = g.new_empty(out, inputs)
            of_samples = list(zip(g.unbind(), u.mT.unbind(), strict=True))
            self.add_each(name, lambda i: torch.mm(*of_samples[i], out=buffer))
            return
        buffer = g.new_empty(min(size, n), out, inputs)  # one for all: fresh memory costs more than the product
        for i in range(0, n, size):
            gs, us = g[i : i + size], u[i : i + size].transpose(1, 2)
            self.add_gradients(name, torch.bmm(gs, us, out=buffer[: len(gs)]), i)

    def permuted_view(self, name: str, order: Sequence[int]) -> Tensor:
        """The sums of a parameter (G, …), dimensions in another order: that in memory, if nothing was added yet."""
        if name not in self.totals:
            shape = self.params[name].shape
            zeros = self._zeros(name, (self.rows, *(shape[i] for i in order)))
            self.totals[name] = zeros.permute(0, *(1 + order.index(i) for i in range(len(order))))
        return self.totals[name].permute(0, *(1 + i for i in order))

    def _total(self, name: str) -> Tensor:
        if name not in self.totals:
            self.totals[name] = self._zeros(name, (self.rows, *self.params[name].shape))
        return self.totals[name]

    def _zeros(self, name: str, shape: Sequence[int]) -> Tensor:
        p = self.params[name]
        return torch.zeros(shape, dtype=torch.promote_types(p.dtype, torch.float32), device=p.device)

    def _scale(self, name: str, gradient: Tensor) -> Tensor:
        scale = self.scales.get(name, 1.0)
        return at_least_float32(gradient) if scale == 1 else at_least_float32(gradient) * scale


class PositionPairs:
    """Products over pairs of positions, for g (B, O, L) and u (B, I, L')."""

    def __init__(self, sums: Accumulator, name: str, g: Tensor, u: Tensor):
        g = sums._scale(name, g)
        n = len(g)
        all_samples = slice(None)
        chosen = [all_samples if len(members) == n else members for members in sums.members]
        positions_first = g.permute(2, 0, 1), at_least_float32(u).permute(2, 0, 1)
        self.plain = [[t[:, these].contiguous() for t in positions_first] for these in chosen]  # (L, B, O), (L', B, I)
        weights = [w[these].to(g)[:, None] for w, these in zip(sums.groups, chosen, strict=True)]
        self.weighted = [g * w for (g, _), w in zip(self.plain, weights, strict=True)]

    def add_to(self, totals: Tensor, of_g: list[int], of_u: list[int]) -> None:
        """Add Σ_i w_i (Σ_l g_il u_il)² to `totals` (G, O, I), with l over corresponding positions of g and of u."""
        a, b = index_pairs(len(of_g))
        (ga, gb), (ua, ub) = ([[of[i] for i in side] for side in (a, b)] for of in (of_g, of_u))
        for total, (g, u), weighted in zip(totals, self.plain, self.weighted, strict=True):
            if not g.shape[1]:
                continue
            left, right = (weighted[ga], u[ua]) if len(a) > 1 else (weighted[ga[0]][None], u[ua[0]][None])
            left, right = left * g[gb], right * u[ub]
            left[len(of_g) :].mul_(2)  # (l, l') stands for (l', l) as well
            total.addmm_(left.flatten(0, 1).T, right.flatten(0, 1))
            if len(a) > 1:
                total.clamp_(min=0)  # rounding may leave a negative number


@lru_cache
def index_pairs(positions: int) -> tuple[list[int], list[int]]:
    """All l ≤ l', those with l = l' first."""
    same = [(i, i) for i in range(positions)]
    both = same + [(i, j) for i in range(positions) for j in range(i + 1, positions)]
    return [i for i, _ in both], [j for _, j in both]


def _size(t: Tensor) -> float:
    """The largest absolute value, of the first sample if that is not 0."""
    size = float(t[:1].abs().amax()) if t.numel() else 0.0
    return size or (float(t.abs().amax()) if t.numel() else 0.0)


def chunk_size(like: Tensor, numel: int) -> int:
    """Samples at a time, if the gradient of one has `numel` entries."""
    return max(1, (CPU_CHUNK if like.device.type == "cpu" else GPU_CHUNK) // max(1, numel))
