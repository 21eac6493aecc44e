"""SWA: predict with the mean of the weights of the last part of training."""

from __future__ import annotations

from dspreg.algorithms.base import Algorithm
from dspreg.algorithms.weight_average import WeightAverage
from dspreg.errors import ConfigError


class SWA(WeightAverage):
    """Stochastic weight averaging: predicts with the mean of the weights after step `start` and every step after it.

        θ̄ = mean_{t ≥ start} θ_t

    θ_t is where step t, counted from 0, ended. Training is that of the base, to the bit; before `start` so is the
    prediction, and if a run ends before it. The default averages the second half of a run of 5,001 steps. A layer that
    has its own prediction goes below: 'ARM+SWA'. What is averaged, and what happens to batch norm, is said in
    `WeightAverage`: running statistics stay those of the last step, and are wrong for the mean unless batch norm is
    frozen, as it is by default.

    Izmailov et al., UAI 2018, who average once per epoch or cycle, at a constant or cyclic learning rate, and take
    batch norm's statistics anew; every step, as in SWAD (Cha et al., NeurIPS 2021). The mean is that of torch's
    `AveragedModel`. Changes the prediction alone; one more copy of the weights, no extra pass.
    """

    step_options = ("start",)

    def __init__(self, base: Algorithm | None = None, *, start: int = 2500):
        super().__init__(base)
        if start < 0:
            raise ConfigError(f"SWA: start={start}; wanted a number of steps ≥ 0")
        self.start = start

    def share(self) -> float:
        return 1 / self.count

    def on_step_end(self) -> None:
        if self.t >= self.start:
            super().on_step_end()
