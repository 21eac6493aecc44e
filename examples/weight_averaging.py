"""How to write a layer with state: predict with averaged weights (SWA, Izmailov et al., UAI 2018).

The catalogue has `SWA` and `EMA`, which update the mean in place; this is the shortest that keeps the laws.

PYTHONPATH=examples dspreg train --dataset digits --target print --steps 60 --out runs/averaged \
    --algorithm "weight_averaging.SWA(start=20)+DSPReg"
"""

import dspreg
from dspreg import standing_at, theta


class SWA(dspreg.Algorithm):
    """Predict with the mean of the weights at the end of step `start` and of every step after it."""

    step_options = ("start",)  # fewer in a short run
    saved_attributes = ("mean", "count")  # in checkpoints, and in the model, because `predict` needs them

    def __init__(self, base=None, *, start: int = 1000):
        super().__init__(base)
        self.start, self.mean, self.count = start, dspreg.ParamVector(), 0

    def on_step_end(self):
        if self.t >= self.start:
            self.count += 1
            self.mean = self.mean + (theta(self.net) - self.mean) / self.count

    def predict(self, x):
        with standing_at(self.net, self.mean):  # parameters that it does not name stay where they are
            return self.base.predict(x)

    def measured(self, batch):
        return self.base.measured(batch)  # c is of the weights that are trained, not of their mean
