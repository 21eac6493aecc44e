"""Algorithms that each break one law of stacking, for `check_algorithm` to find."""

import random
from copy import deepcopy
from itertools import pairwise

import numpy as np
import torch
from torch import nn

from dspreg import vectors
from dspreg.algorithms import ERM, Algorithm
from dspreg.batches import Batch
from dspreg.networks import Network
from dspreg.randomness import seeded

# Law 1: reach your base.


class ForgetsBuild(Algorithm):
    def build(self, task):
        features = task.backbone()
        return Network(features, nn.Linear(features.width, task.num_classes))


class ForgetsForward(Algorithm):
    def forward(self, batches):
        return ERM.forward(self, batches)


class ForgetsLoss(Algorithm):
    def loss(self, out):
        return out.risks().max()


class ForgetsGradient(Algorithm):
    def gradient(self, objective, batches):
        loss = objective(batches)
        return loss.detach(), vectors.gradient(loss, self.net)


class ForgetsUpdate(Algorithm):
    def update(self, direction, batches):
        return ERM.update(self, direction, batches)


class ForgetsPredict(Algorithm):
    def predict(self, x):
        return self.net(x)


# Law 2: the objective is a function, and nothing changes before the step ends.


class DrawsFromNumpy(Algorithm):
    def forward(self, batches):
        return self.base([Batch(b.x + np.random.rand(), b.y, b.domain) for b in batches])


class DrawsFromPython(Algorithm):
    def loss(self, out):
        return self.base.loss(out) * random.uniform(0.5, 1.5)


class HasItsOwnGenerator(Algorithm):
    def __init__(self, base=None):
        super().__init__(base)
        self.random = torch.Generator()

    def loss(self, out):
        return self.base.loss(out) + (out.logits * torch.rand(3, generator=self.random)).mean()


class ChangesABufferAtOnce(Algorithm):
    def build(self, task):
        self.register_buffer("q", torch.ones(task.num_domains))
        return self.base.build(task)

    def loss(self, out):
        self.q[list(out.domains)] *= (0.1 * out.risks().detach()).exp()
        q = self.q[list(out.domains)]
        return self.base.loss(out.replace(weights=q / q.sum()))


class CountsItsGradients(Algorithm):
    count = 0

    def gradient(self, objective, batches):
        self.count += 1
        loss, g = self.base.gradient(objective, batches)
        return loss, g / self.count


# Law 3: one domain is a domain too.


class DividesByPairs(Algorithm):
    def loss(self, out):
        risks = out.risks()
        differences = [(a - b) ** 2 for i, a in enumerate(risks) for b in risks[:i]]
        return self.base.loss(out) + sum(differences, risks.new_zeros(())) / len(differences)


class NeedsTwoDomains(Algorithm):
    def loss(self, out):
        return self.base.loss(out) * (len(out.sizes) - 1)


# Law 4: across arrows, order does not matter.


class LooksAtItsBase(Algorithm):
    def loss(self, out):
        penalty = out.logits.square().mean() if isinstance(self.base, ERM) else 0.0
        return self.base.loss(out) + penalty


class IgnoresWhatIsAbove(Algorithm):
    """Follows its own objective and not the direction it is given, which the layers above have shaped."""

    def objective(self, batches):
        with seeded("mine", self.t):
            return self.loss(self(batches))

    def update(self, direction, batches):
        return self.base.update(lambda batches: self.gradient(self.objective, batches), batches)


# Law 5: everything that lives longer than a step is in `state_dict`.


class Forgetful(Algorithm):
    """Stages, but does not name what it staged in `saved_attributes`."""

    scale = 1.0

    def loss(self, out):
        self.stage("scale", self.scale * 2)
        return self.base.loss(out) + self.scale * out.logits.square().mean()


class KeepsAHistory(Algorithm):
    def __init__(self, base=None):
        super().__init__(base)
        self.last = 0.0

    def update(self, direction, batches):
        log = self.base.update(direction, batches)
        self.stage("last", float(log["loss"]))
        return log

    def loss(self, out):
        return self.base.loss(out) + self.last * out.features.square().mean()


# What the command line needs.


class RenamesItsOption(Algorithm):
    def __init__(self, base=None, *, weight: float = 0.1):
        super().__init__(base)
        self.factor = weight


class ChangesItsOption(Algorithm):
    def __init__(self, base=None, *, weight: float = 0.1):
        super().__init__(base)
        self.weight = 2 * weight


class WantsClassNumbers(Algorithm):
    def loss(self, out):
        first = out.labels.reshape(len(out.labels), -1)[:, 0].to(out.logits.dtype)
        return self.base.loss(out) + (first * out.logits[:, 0]).mean()


# What a weaker check would let pass.


class GoesPastItsBase(Algorithm):
    def loss(self, out):
        return self.stack.layers[-1].loss(out) * 2


class ThrowsTheBaseAway(Algorithm):
    def loss(self, out):
        self.base.loss(out)
        return out.risks().max()


class IgnoresItsOption(Algorithm):
    def __init__(self, base=None, *, weight: float = 0.1):
        super().__init__(base)
        self.weight = 0.1


class TakesPositions(Algorithm):
    def __init__(self, base=None, weight: float = 0.1):
        super().__init__(base)
        self.weight = weight


class SetsABufferForLater(Algorithm):
    """Without any effect on the first steps."""

    def build(self, task):
        self.register_buffer("calls", torch.zeros(()))
        return self.base.build(task)

    def loss(self, out):
        self.calls += 1
        return self.base.loss(out)


class StacksPairs(Algorithm):
    def loss(self, out):
        parts = out.by_domain(out.features)
        return self.base.loss(out) + torch.stack([(a - b).mean() for a, b in pairwise(p.mean(0) for p in parts)]).mean()


# Law 6: what predicts is what is saved.


class SavesForItself(Algorithm):
    """Its checkpoints are whole, by a state of its own that no model file has."""

    def __init__(self, base=None):
        super().__init__(base)
        self.scale = 1.0

    def on_step_end(self):
        self.scale /= 2

    def predict(self, x):
        return self.base.predict(x) * self.scale

    def get_extra_state(self):
        return {"scale": self.scale}

    def set_extra_state(self, state):
        self.scale = state["scale"]


class PredictsWithItsStart(Algorithm):
    """With weights that it made itself and keeps from `state_dict`."""

    def build(self, task):
        net = self.base.build(task)
        self.start = (nn.Linear(net.featurizer.width, task.num_classes),)
        return net

    def predict(self, x):
        return self.base.predict(x) + self.start[0].double()(self.net.featurizer(x))


# Law 7: `measured` is a differentiable function of the parameters that are trained.


class MeasuresACopy(Algorithm):
    def build(self, task):
        net = self.base.build(task)
        self.copy = deepcopy(net)
        return net

    def measured(self, batch):
        return self.copy


class MeasuresWithoutGradients(Algorithm):
    def measured(self, batch):
        return torch.no_grad()(self.predict)
