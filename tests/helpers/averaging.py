"""Weight averaging as people write it, from the head of base.py alone; not all of them say what c is measured of."""

from copy import deepcopy

import torch

from dspreg.algorithms import Algorithm, Compatibility
from dspreg.vectors import ParamVector, standing_at, theta


class Staged(Algorithm):
    """The mean is a vector that is staged, and a prediction stands there."""

    step_options = ("start",)
    saved_attributes = ("mean", "count")

    def __init__(self, base=None, *, start: int = 1):
        super().__init__(base)
        self.start, self.mean, self.count = start, ParamVector(), 0

    def update(self, direction, batches):
        log = self.base.update(direction, batches)
        if self.t >= self.start:
            self.stage("mean", self.mean + (theta(self.net) - self.mean) / (self.count + 1))
            self.stage("count", self.count + 1)
        return log

    def predict(self, x):
        with standing_at(self.net, self.mean):
            return self.base.predict(x)


class Late(Staged):
    """There is no mean before the first step that counts, and a prediction asks at which step it is."""

    def __init__(self, base=None, *, start: int = 1):
        super().__init__(base, start=start)
        self.mean = None

    def update(self, direction, batches):
        log = self.base.update(direction, batches)
        if self.t >= self.start:
            self.stage("mean", theta(self.net) if self.mean is None else (self.mean + theta(self.net)) / 2)
        return log

    def predict(self, x):
        if self.t <= self.start:
            return self.base.predict(x)
        return super().predict(x)


class Copied(Algorithm):
    """The mean is a network, moved when a step is over."""

    compatibility = Compatibility(replaces=frozenset({"predict"}))

    def build(self, task):
        net = self.base.build(task)
        self.average = deepcopy(net).requires_grad_(False)
        return net

    @torch.no_grad()
    def on_step_end(self):
        for mean, p in zip(self.average.parameters(), self.net.parameters(), strict=True):
            mean.lerp_(p, 0.5)

    def predict(self, x):
        return self.average(x)


class Chosen(Staged):
    """As SWAD does it, in short: only weights after which the validation loss is not above its best so far count."""

    saved_attributes = ("mean", "count", "best", "open")

    def __init__(self, base=None, *, start: int = 1):
        super().__init__(base, start=start)
        self.best, self.open = float("inf"), True

    def on_evaluation(self, validation):
        loss = sum(validation.loss.values()) / len(validation.loss)
        self.open = loss <= self.best
        self.best = min(self.best, loss)

    def update(self, direction, batches):
        return super().update(direction, batches) if self.open else self.base.update(direction, batches)
