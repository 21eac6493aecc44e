"""The laws of stacking: our algorithms keep them, and an algorithm that breaks one is told which."""

import pytest
import torch

import dspreg.algorithms as index
from dspreg.algorithms import Algorithm, Compatibility
from dspreg.algorithms.registry import algorithms
from dspreg.testing import LawBroken, check_algorithm
from helpers.stacking import ACTING
from reference import broken

IMAGES = {"ARM", "DomainDrop", "JiGen", "MixStyle", "RandConv"}  # vectors mean nothing to these


@pytest.mark.parametrize("name", algorithms())
def test_our_algorithms_keep_the_laws(name):
    assert check_algorithm(getattr(index, name), images=name in IMAGES) is None
    if name in ACTING:
        assert check_algorithm(ACTING[name], images=name in IMAGES) is None


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
        "DSPReg(engine='gauss_newton')",
        "CORAL+DSPReg(engine='gauss_newton(part=0.5)')",
        "GroupDRO+DSPReg(engine='gauss_newton')+SAM",
        "Mixup+DSPReg(engine='lazy(2, gauss_newton)')",
        "DSPReg(engine='exact(part=0.5)')+Fish",
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
    """State of the right kind: staged, and named in `saved_attributes`."""

    saved_attributes = ("scale",)

    def __init__(self, base=None):
        super().__init__(base)
        self.scale = 1.0

    def loss(self, out):
        self.stage("scale", self.scale * 2)
        return self.base.loss(out) + self.scale * out.logits.square().mean()


class Replaced(Algorithm):
    """Leaves out its base on purpose, and says so."""

    compatibility = Compatibility(replaces=frozenset({"loss"}))

    def loss(self, out):
        return out.risks().mean()


def test_algorithms_of_your_own_keep_the_laws():
    for algorithm in (LogitNorm, Remembered, Replaced):
        assert check_algorithm(algorithm) is None
    assert check_algorithm(LogitNorm, weight=0.05) is None
    assert check_algorithm(f"{__name__}.LogitNorm(weight=0.05)+DSPReg") is None


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (broken.ForgetsBuild, r"law 1: .*ForgetsBuild does not use its base's build; call self\.base\.build\(…\)"),
        (broken.ForgetsForward, r"law 1: .* its base's forward; call self\.base\.forward"),
        (
            broken.ForgetsLoss,
            r"law 1: .* its base's loss; call self\.base\.loss\(…\) in it and build on the result, or say",
        ),
        (broken.ForgetsGradient, r"law 1: .* its base's gradient; call self\.base\.gradient"),
        (broken.ForgetsUpdate, r"law 1: .* its base's update; call self\.base\.update"),
        (broken.ForgetsPredict, r"law 1: .* its base's predict; call self\.base\.predict"),
        (broken.DrawsFromNumpy, r"two equal runs differ; draw random numbers from torch"),
        (broken.DrawsFromPython, "two equal runs differ"),
        (broken.HasItsOwnGenerator, "law 2"),
        (broken.SetsABufferForLater, "law 2"),
        (broken.GoesPastItsBase, "law 1: .*GoesPastItsBase does not use its base's loss"),
        (broken.ThrowsTheBaseAway, "law 1"),
        (broken.IgnoresItsOption, r"under its own name: self\.weight = weight"),
        (broken.TakesPositions, r"the option 'weight' of TakesPositions must be keyword-only"),
        (broken.StacksPairs, "law 3: raised RuntimeError: stack expects a non-empty"),
        (broken.ChangesABufferAtOnce, r"law 2: .* change state only through self\.stage"),
        (broken.CountsItsGradients, "law 2"),
        (broken.DividesByPairs, r"law 3: .*DividesByPairs on a single domain is not finite; terms between domains"),
        (broken.NeedsTwoDomains, r"law 3: .*NeedsTwoDomains on a single domain does not move"),
        (
            broken.LooksAtItsBase,
            r"law 4: .*LooksAtItsBase\+SAM and SAM\+.*LooksAtItsBase take different steps",
        ),
        (broken.IgnoresWhatIsAbove, "law 4"),
        (broken.Forgetful, r"law 5: after save, load and continue weights differ; is some state not saved\?"),
        (broken.KeepsAHistory, "law 5"),
        (
            broken.SavesForItself,
            r"law 6: after save and load .*SavesForItself predicts something else; what a prediction",
        ),
        (broken.PredictsWithItsStart, "law 6"),
        (broken.MeasuresACopy, r"law 7: .*\+DSPReg.*MeasuresACopy\.measured .* return self\.base\.measured\(batch\)"),
        (broken.MeasuresWithoutGradients, "law 7"),
        (broken.RenamesItsOption, r"must store every option under its own name: self\.weight"),
        (broken.ChangesItsOption, r"must store every option under its own name"),
        (broken.WantsClassNumbers, "soft labels"),
    ],
)
def test_a_broken_law_is_named(algorithm, message):
    with pytest.raises(LawBroken, match=message):
        check_algorithm(algorithm)


def test_layers_that_make_modules_are_seeded():
    class OtherHead(Algorithm):
        def build(self, task):
            net = self.base.build(task)
            net.classifier = torch.nn.Linear(net.featurizer.width, task.num_classes)
            return net

    assert check_algorithm(OtherHead) is None


def test_a_broken_layer_is_found_inside_a_stack():
    with pytest.raises(LawBroken, match="law 2"):
        check_algorithm("CORAL+reference.broken.HasItsOwnGenerator+SAM")
