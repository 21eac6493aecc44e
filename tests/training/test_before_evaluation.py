"""What layers are told before an evaluation: how what is below them predicts; once, however training is stopped."""

import pytest
import torch
import torch.nn.functional as F

from dspreg.algorithms import Algorithm
from dspreg.errors import Preempted
from dspreg.sensitivity.evaluation_mode import evaluation_mode
from dspreg.training import train
from dspreg.training.experiment import prepare_experiment
from dspreg.vectors import theta
from helpers import tiny


class Scaled(Algorithm):
    """Its prediction depends on all that it was told, so that being told twice shows."""

    saved_attributes = ("scale",)
    heard = []  # of all instances

    def __init__(self, base=None):
        super().__init__(base)
        self.scale = 1.0

    def before_evaluation(self, validation):
        Scaled.heard.append((validation, theta(self.net), self.scale))
        self.scale += sum(validation.loss.values())

    def predict(self, x):
        return self.base.predict(x) * self.scale


SPEC = f"{__name__}.Scaled+{__name__}.Scaled"


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return tiny.make_images(tmp_path_factory.mktemp("images") / "woods")


@pytest.fixture(autouse=True)
def _forget():
    Scaled.heard.clear()


@pytest.fixture(scope="module")
def whole(images, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    train(tiny.settings(images, algorithm=SPEC), tiny.execution(), out)
    return tiny.ending(out)


def test_it_is_told_before_every_evaluation_and_the_last_how_its_base_predicts(images, tmp_path):
    given = tiny.settings(images, algorithm=SPEC, augment_validation=False, steps=3, evaluate_every=2, frozen_bn=True)
    train(given, tiny.execution(), tmp_path / "run")
    assert [validation.step for validation, _, _ in Scaled.heard] == [0, 0, 2, 2]  # two layers, the inner first
    inner, point, _ = Scaled.heard[2]
    outer, _, _ = Scaled.heard[3]
    experiment = prepare_experiment(given, tiny.execution())
    stack = experiment.algorithm()
    for name, p in stack.net.named_parameters():
        p.data.copy_(point[name])
    below = 1.0 + sum(Scaled.heard[0][0].loss.values()) + sum(inner.loss.values())  # of the inner layer by then
    assert inner.loss.keys() == {"ash", "birch", "cedar"}
    for name in experiment.sources:
        part = experiment.part(name, "out", experiment.transform("none"))
        x, y = part.batch(range(len(part)))
        with evaluation_mode(stack), torch.no_grad():
            logits = stack.net(part.transform.normalise(x))
        assert inner.loss[name] == pytest.approx(float(F.cross_entropy(logits, y)), rel=1e-5)
        assert outer.loss[name] == pytest.approx(float(F.cross_entropy(logits * below, y)), rel=1e-5)


@pytest.mark.parametrize("moment", [5, 9, 13, 16, 19, 22, 26, 31, 36])
def test_stopped_anywhere_it_ends_in_the_same_bits(whole, images, tmp_path, moment):
    given = tiny.settings(images, algorithm=SPEC)
    with pytest.raises(Preempted):
        train(given, tiny.execution(), tmp_path / "run", pause=tiny.stop_at(moment))
    train(given, tiny.execution(), tmp_path / "run")
    assert tiny.ending(tmp_path / "run") == whole
