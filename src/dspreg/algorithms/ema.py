"""EMA: predict with a running average of the weights."""

from __future__ import annotations

from dspreg.algorithms.base import Algorithm
from dspreg.algorithms.weight_average import WeightAverage
from dspreg.errors import ConfigError


class EMA(WeightAverage):
    """Exponential moving average: predicts with an average of the weights that forgets old ones.

        θ̄ ← decay · θ̄ + (1 − decay) · θ  after every step; θ̄ = θ after the first

    It looks back about 1/(1 − decay) steps, 1,000 by default, a fifth of a run of 5,001; in a shorter run decay is
    smaller, so that it is a fifth again. n steps after the first that one still weighs decayⁿ: at the end of a run 0.7
    % with the default, but 74 % if decay=0.999 is set by hand in a run of 300 steps. Training is that of the base, to
    the bit. A layer that has its own prediction goes below: 'ARM+EMA'. Running statistics of a batch norm that is not
    frozen stay those of the last step.

    Polyak & Juditsky, SIAM J. Control Optim. 1992, in the exponential form that is usual; the mean is that of torch's
    `AveragedModel` with `get_ema_multi_avg_fn(decay)`. Changes the prediction alone; one more copy of the weights, no
    extra pass.
    """

    step_options = ("decay",)

    def __init__(self, base: Algorithm | None = None, *, decay: float = 0.999):
        super().__init__(base)
        if not 0 <= decay < 1:
            raise ConfigError(f"EMA: decay={decay}; wanted a number from 0 to below 1")
        self.decay = decay

    def share(self) -> float:
        return 1 - self.decay
