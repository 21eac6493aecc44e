"""A method of your own in twenty lines, stacked with DSP-Reg and checked.

python examples/my_algorithm.py
PYTHONPATH=examples dspreg algorithms my_algorithm.LogitNorm
"""

import dspreg
from dspreg.priors import LogUniform
from dspreg.testing import check_algorithm


class LogitNorm(dspreg.Algorithm):
    """Keep logits small: adds weight · mean ‖logits‖²."""

    space = {"weight": LogUniform(-5, -1)}

    def __init__(self, base=None, *, weight: float = 0.1):
        super().__init__(base)
        self.weight = weight

    def loss(self, out):
        return self.base.loss(out) + self.weight * out.logits.square().sum(1).mean()


if __name__ == "__main__":
    check_algorithm(LogitNorm)
    print("LogitNorm keeps the laws of stacking.")
    print("It stacks with", dspreg.describe(dspreg.DSPReg(LogitNorm(weight=0.05))))
