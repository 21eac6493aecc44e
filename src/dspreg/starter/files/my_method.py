"""A method of my own: a layer around another one. It stacks with all others: "CORAL+my_method.LogitNorm+DSPReg"."""

import dspreg
from dspreg.distributions import LogUniform


class LogitNorm(dspreg.Algorithm):
    """Keep logits small: adds weight · mean ‖logits‖².

    Args:
        weight: Of the penalty.
    """

    space = {"weight": LogUniform(-5, -1)}  # where a random search of a sweep draws it

    def __init__(self, base=None, *, weight: float = 0.1):
        super().__init__(base)
        self.weight = weight

    def loss(self, out):
        return self.base.loss(out) + self.weight * out.logits.square().sum(1).mean()
