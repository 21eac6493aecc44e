"""Fish: make the gradients of the domains point the same way."""

from __future__ import annotations

from collections.abc import Sequence

from dspreg.algorithms.base import Algorithm, Direction, Log
from dspreg.algorithms.compatibility import Compatibility
from dspreg.batches import Batch
from dspreg.distributions import Choice
from dspreg.errors import ConfigError
from dspreg.vectors import move_to, theta


class Fish(Algorithm):
    """Step through the domains one after the other, then go part of the way.

        θ₀ = θ,  θ_d = update(θ_{d−1}, domain d),  θ ← θ + meta_lr · (θ_D − θ)

    To first order this maximises the inner products between the domains' gradients.

    Shi et al., ICLR 2022. The inner optimiser's state is carried from step to step, as in DomainBed. Changes `update`;
    as many passes as ERM, on smaller batches. The loss in the log is the last domain's. All domains of a step see the
    same dropout mask, where DomainBed draws one for each.
    """

    compatibility = Compatibility(calls_base_per_domain=True)
    space = {"meta_lr": Choice(0.05, 0.1, 0.5, key="meta_lr")}

    def __init__(self, base: Algorithm | None = None, *, meta_lr: float = 0.5):
        super().__init__(base)
        if not 0 < meta_lr < float("inf"):
            raise ConfigError(f"Fish: meta_lr={meta_lr}; wanted a finite number > 0")
        self.meta_lr = meta_lr

    def update(self, direction: Direction, batches: Sequence[Batch]) -> Log:
        start = theta(self.net)
        log: Log = {}
        for batch in batches:
            log = self.base.update(direction, [batch])
        move_to(self.net, start + (theta(self.net) - start) * self.meta_lr)
        return log
