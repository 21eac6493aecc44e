"""GGA: step from a point nearby where the domains' gradients agree."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Tensor

from dspreg.algorithms.base import Algorithm, Direction, Log
from dspreg.algorithms.compatibility import Compatibility
from dspreg.batches import Batch
from dspreg.devices import send, widest_float
from dspreg.distributions import Choice
from dspreg.errors import ConfigError
from dspreg.networks.batch_norm import scratch_buffers
from dspreg.penalty.autocast import autocast_off
from dspreg.randomness import generator
from dspreg.vectors import ParamVector, gradient, move_to, standing_at, theta


class GGA(Algorithm):
    """Gradient-guided annealing: early in training, search around θ for gradients that agree, and step from there.

        φ ← φ + ρ u,  u ~ U(−1, 1)^P,  accepted if L < L* + slack and s > s*,  s = min_{i<j} cos(g_i, g_j)

    `tries` times. φ are the featurizer's parameters, and g_d = ∇L_d over all, the classifier's too. An accepted point
    gives the new L* and s*, and the walk goes on from θ; after a rejection it goes on from where it is. The layers
    below then step from the last accepted point, the optimiser's state being as it was. Steps `start` to `end` search,
    both included.

    Ballas & Diou, CVPR 2025, as their code is since July 2025 (before, it moved none or some of these parameters), with
    the options of their PACS runs; ρ is 1e-6 on VLCS. Theirs draws a dropout mask for every look, so that a point may
    be accepted for its mask; here all looks of a step see the same, in full precision, as ρ is too small for less, and
    batch norm takes the batch in once. L is the objective of the whole stack and g_d its plain gradient, whatever a
    gradient layer such as SAM makes of it.

    Changes `update`; a step that searches takes `tries` + 1 gradients and as many forward passes more.
    """

    compatibility = Compatibility(needs_several_domains=True, trains_featurizer=True)
    space = {"rho": Choice(1e-6, 1e-5)}
    step_options = ("start", "end")

    def __init__(
        self,
        base: Algorithm | None = None,
        *,
        rho: float = 1e-5,
        start: int = 100,
        end: int = 200,
        tries: int = 250,
        slack: float = 0.1,
    ):
        super().__init__(base)
        if not 0 < rho < float("inf"):
            raise ConfigError(f"GGA: rho={rho}; wanted a finite number > 0")
        if not 0 <= start <= end:
            raise ConfigError(f"GGA: start={start}, end={end}; wanted 0 ≤ start ≤ end, so give both if you give one")
        if tries < 1:
            raise ConfigError(f"GGA: tries={tries}; wanted at least 1")
        if not slack >= 0:
            raise ConfigError(f"GGA: slack={slack}; wanted a number ≥ 0")
        self.rho, self.start, self.end, self.tries, self.slack = rho, start, end, tries, slack

    def update(self, direction: Direction, batches: Sequence[Batch]) -> Log:
        if self.start <= self.t <= self.end and len(batches) > 1:
            move_to(self.net, self.search(batches))
        return self.base.update(direction, batches)

    def search(self, batches: Sequence[Batch]) -> ParamVector:
        """The last point that was accepted, θ if none was."""
        random = generator(*self.task.key, self.t, "GGA")
        start = best = at = theta(self.net).select("featurizer.*")
        with autocast_off(next(iter(start.values())).device.type):
            # all domains first: what a layer stages or notes in a step is its first look, and batch norm's is as well
            loss = self.height(batches)
            with scratch_buffers(self.net):
                similarity = first = self.similarity(batches)
                for _ in range(self.tries):
                    at = at.map(lambda p: p + self.rho * (2 * draw_uniform(p, random) - 1))
                    with standing_at(self.net, at):
                        similar, height = self.similarity(batches), self.height(batches)
                    better = (height - loss < self.slack) & (similar > similarity)  # nobody waits to see whether
                    similarity, loss = torch.where(better, similar, similarity), torch.where(better, height, loss)
                    best, at = choose(better, at, best), choose(better, start, at)
        self.note(similarity=similarity, gained=similarity - first)
        return best

    def objective(self, batches: Sequence[Batch]) -> Tensor:
        value: Tensor = self.stack.evaluate(self.stack.top.loss, batches)
        return value

    def height(self, batches: Sequence[Batch]) -> Tensor:
        """The objective, so wide that differences of it are exact to what `slack` is compared with."""
        value = self.objective(batches).detach()
        return value.to(widest_float(value.device))

    def similarity(self, batches: Sequence[Batch]) -> Tensor:
        """Of the two domains whose gradients agree least."""
        each = [gradient(self.objective([batch]), self.net) for batch in batches]
        return torch.stack([a.cosine(b) for a, b in combinations(each, 2)]).min()


def choose(first: Tensor, a: ParamVector, b: ParamVector) -> ParamVector:
    """a if `first`, a truth value on the device, else b."""
    return a.map(lambda x, y: torch.where(first, x, y), b)


def draw_uniform(like: Tensor, random: torch.Generator) -> Tensor:
    """U(0, 1), the same on every device."""
    return send(torch.rand(like.shape, generator=random, dtype=like.dtype), like.device)
