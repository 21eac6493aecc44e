"""A method of your own in a dozen lines, stacked with DSP-Reg.

PYTHONPATH=examples dspreg algorithms my_algorithm.LogitNorm
PYTHONPATH=examples dspreg train --dataset digits --target print --steps 60 --out runs/mine \
    --algorithm "my_algorithm.LogitNorm(weight=0.05)+DSPReg"
"""

import dspreg
from dspreg.distributions import LogUniform


class LogitNorm(dspreg.Algorithm):
    """Keep logits small: adds weight · mean ‖logits‖²."""

    space = {"weight": LogUniform(-5, -1)}

    def __init__(self, base=None, *, weight: float = 0.1):
        super().__init__(base)
        self.weight = weight

    def loss(self, out):
        return self.base.loss(out) + self.weight * out.logits.square().sum(1).mean()
