"""The laws of stacking: our algorithms keep them, and an algorithm that breaks one is told which."""

import random

import numpy as np
import pytest
import torch
from torch import nn

import dspreg.algorithms as index
from dspreg import vectors
from dspreg.algorithms import ERM, Algorithm
from dspreg.algorithms.spec import parse
from dspreg.batches import Batch
from dspreg.networks import Network
from dspreg.randomness import seeded
from dspreg.testing import LawBroken, check_algorithm

OURS = [name for name in index.__all__ if isinstance(getattr(index, name), type) and name not in ("Algorithm", "Task")]


@pytest.mark.parametrize("name", OURS)
def test_our_algorithms_keep_the_laws(name):
    assert check_algorithm(getattr(index, name)) is None


@pytest.mark.parametrize(
    "spec",
    [
        "CORAL+DSPReg",
        "SAM+DSPReg",
        "DSPReg+SAM",
        "Mixup+DSPReg",
        "Mixup+GroupDRO+CORAL",
        "GroupDRO+DSPReg(engine='lookahead')",
        "DSPReg(engine='momentum')+Fish",
        "Fish+DSPReg",
        "CORAL+GroupDRO+DSPReg+SAM",
        "DSPReg(engine='central')",
        "DSPReg(engine='lazy(2)')",
        "DSPReg(engine='lazy(2, exact)', refresh_steps=2)",
        "DSPReg(coefficients='static')",
        "DSPReg(coefficients='ones')",
        "DSPReg(coefficients='mean')",
        "DSPReg(coefficients='shuffled')",
        "DSPReg(coefficients='hard', quantile=0.5)",
        "DSPReg(estimator='signed', draws=2, only='featurizer.*', warmup=1)",
    ],
)
def test_stacks_keep_the_laws(spec):
    assert check_algorithm(spec) is None


class LogitNorm(Algorithm):
    """Keep logits small: adds weight · mean ‖logits‖². The example of the documentation."""

    def __init__(self, base=None, *, weight: float = 0.1):
        super().__init__(base)
        self.weight = weight

    def loss(self, out):
        return self.base.loss(out) + self.weight * out.logits.square().sum(1).mean()


class Remembered(Algorithm):
    """State of the right kind: staged, and named in `remembers`."""

    remembers = ("scale",)

    def __init__(self, base=None):
        super().__init__(base)
        self.scale = 1.0

    def loss(self, out):
        self.stage("scale", self.scale * 2)
        return self.base.loss(out) + self.scale * out.logits.square().mean()


class Replaced(Algorithm):
    """Leaves out its base on purpose, and says so."""

    replaces = frozenset({"loss"})

    def loss(self, out):
        return out.risks().mean()


def test_algorithms_of_your_own_keep_the_laws():
    for algorithm in (LogitNorm, Remembered, Replaced):
        assert check_algorithm(algorithm) is None
    assert check_algorithm(LogitNorm, weight=0.05) is None
    assert check_algorithm(f"{__name__}.LogitNorm(weight=0.05)+DSPReg") is None


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


class Forgetful(Remembered):
    remembers = ()


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


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (ForgetsBuild, r"law 1: .*ForgetsBuild does not reach its base in build; call self\.base\.build\(…\)"),
        (ForgetsForward, r"law 1: .* in forward; call self\.base\.forward"),
        (ForgetsLoss, r"law 1: .* in loss; call self\.base\.loss\(…\) in it, or say that it replaces it"),
        (ForgetsGradient, r"law 1: .* in gradient; call self\.base\.gradient"),
        (ForgetsUpdate, r"law 1: .* in update; call self\.base\.update"),
        (ForgetsPredict, r"law 1: .* in predict; call self\.base\.predict"),
        (DrawsFromNumpy, r"law 2: .*DrawsFromNumpy is not the same function twice.* draw random numbers from torch"),
        (DrawsFromPython, "law 2"),
        (HasItsOwnGenerator, "law 2"),
        (ChangesABufferAtOnce, r"law 2: .* change state only through self\.stage"),
        (CountsItsGradients, "law 2"),
        (DividesByPairs, r"law 3: .*DividesByPairs on a single domain is not finite; terms between domains must vanish"),
        (NeedsTwoDomains, r"law 3: .*NeedsTwoDomains on a single domain does not move"),
        (LooksAtItsBase, r"law 4: above .*LooksAtItsBase\+SAM and below SAM\+.*LooksAtItsBase take different steps"),
        (IgnoresWhatIsAbove, "law 4"),
        (Forgetful, r"law 5: after save, load and continue weights differ; is some state not saved\?"),
        (KeepsAHistory, "law 5"),
        (RenamesItsOption, r"must store every option under its own name: .*'weight'"),
        (ChangesItsOption, r"the spec does not round-trip: .*weight=0\.2\)' became .*weight=0\.4\)'"),
        (WantsClassNumbers, "one-hot soft labels give another step"),
    ],
)
def test_a_broken_law_is_named(broken, message):
    with pytest.raises(LawBroken, match=message):
        check_algorithm(broken)


def test_a_broken_layer_is_found_inside_a_stack():
    with pytest.raises(LawBroken, match="law 2"):
        check_algorithm(f"CORAL+{__name__}.DrawsFromPython+SAM")
    assert parse(f"CORAL+{__name__}.DrawsFromPython+SAM").base.base.weight == 1.0
