"""What layers see of evaluations: held-out images of the sources, in every run alike, and nothing of the target."""

import math
import shutil

import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from dspreg.algorithms import Algorithm
from dspreg.errors import Preempted
from dspreg.sensitivity.evaluation_mode import evaluation_mode
from dspreg.training import evaluate as evaluation
from dspreg.training import train
from dspreg.training.checkpoint import Checkpoints
from dspreg.training.experiment import prepare_experiment
from dspreg.vectors import theta
from helpers import averaging, tiny

pytestmark = pytest.mark.filterwarnings("ignore::dspreg.Notice")
SPEC = f"{averaging.__name__}.Chosen(start=0)"


class Listening(Algorithm):
    """Keeps what it was told, as numbers; its loss and its noise depend on them, so that all of it shows."""

    saved_attributes = ("told", "noise")
    heard = []  # of all instances

    def __init__(self, base=None):
        super().__init__(base)
        self.told, self.noise = 0.0, 0.0

    def on_evaluation(self, validation):
        Listening.heard.append((self.t, validation, theta(self.net)))
        self.stage("told", self.told + sum(validation.loss.values()) + sum(validation.accuracy.values()))
        self.noise += float(torch.rand(()))
        self.log_event("heard", loss=dict(validation.loss))

    def loss(self, out):
        return self.base.loss(out) + 0.01 * (self.told + self.noise) * out.logits.square().mean()


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return tiny.make_images(tmp_path_factory.mktemp("images") / "woods")


@pytest.fixture(autouse=True)
def _forget():
    Listening.heard.clear()


def settings(images, spec=f"{__name__}.Listening", **changes):
    return tiny.settings(images, algorithm=spec, **changes)


def test_it_hears_accuracy_and_loss_of_source_validation_after_every_evaluation_but_the_last(images, tmp_path):
    train(settings(images, augment_validation=False), tiny.execution(), tmp_path / "run")
    found = tiny.ending(tmp_path / "run")
    assert [record["step"] for record in found["records"]] == [0, 4, 8, 12, 13]
    assert [(t, validation.step) for t, validation, _ in Listening.heard] == [(1, 0), (5, 4), (9, 8), (13, 12)]
    for (_, validation, _), record in zip(Listening.heard, found["records"], strict=False):
        sources = {name: record["accuracy"][name]["out"] for name in ("ash", "birch", "cedar")}
        assert validation.accuracy == sources
        assert validation.loss.keys() == sources.keys()


def test_the_loss_is_the_mean_cross_entropy_of_each_source(images, tmp_path):
    given = settings(images, augment_validation=False, steps=2, evaluate_every=1, frozen_bn=True)
    train(given, tiny.execution(), tmp_path / "run")
    ((_, validation, point),) = Listening.heard
    experiment = prepare_experiment(given, tiny.execution())
    stack = experiment.algorithm()
    for name, p in stack.net.named_parameters():
        p.data.copy_(point[name])
    for name in experiment.sources:
        part = experiment.part(name, "out", experiment.transform("none"))
        x, y = part.batch(range(len(part)))
        with evaluation_mode(stack), torch.no_grad():
            logits = stack.net(part.transform.normalise(x))
        assert validation.loss[name] == pytest.approx(float(F.cross_entropy(logits, y)), rel=1e-5)
        assert validation.accuracy[name] == float((logits.argmax(1) == y).double().mean())


def test_nothing_of_the_target_reaches_it(tmp_path):
    heard = []
    for name in ("clean", "poisoned"):
        root = tiny.make_images(tmp_path / name / "woods")
        if name == "poisoned":
            shutil.rmtree(root / "elm")
            (root / "elm" / "cat").mkdir(parents=True)
            for i in range(12):
                Image.new("RGB", (1 + 40 * i, 3), "white").save(root / "elm" / "cat" / f"{i}.png")
        train(settings(root), tiny.execution(), tmp_path / name / "run")
        heard.append([validation for _, validation, _ in Listening.heard])
        Listening.heard.clear()
        assert all("elm" not in {**v.loss, **v.accuracy} for v in heard[-1])
    assert heard[0] == heard[1]
    clean, poisoned = (tiny.ending(tmp_path / name / "run") for name in ("clean", "poisoned"))
    assert clean["files"]["last.safetensors"] == poisoned["files"]["last.safetensors"]
    assert clean["records"] != poisoned["records"]  # the target itself was another


@pytest.fixture(scope="module", params=[SPEC, f"{__name__}.Listening"])
def whole(request, images, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    train(settings(images, request.param), tiny.execution(), out)
    return request.param, tiny.ending(out)


@pytest.mark.parametrize("moment", [3, 9, 12, 17, 24, 31])
def test_stopped_anywhere_it_ends_in_the_same_bits(whole, images, tmp_path, moment):
    spec, expected = whole
    with pytest.raises(Preempted):
        train(settings(images, spec), tiny.execution(), tmp_path / "run", pause=tiny.stop_at(moment))
    train(settings(images, spec), tiny.execution(), tmp_path / "run")
    assert tiny.ending(tmp_path / "run") == expected


@pytest.mark.parametrize("evaluation", [0, 1, 2, 3])
def test_killed_between_an_evaluation_and_its_checkpoint_it_ends_in_the_same_bits(
    whole, images, tmp_path, monkeypatch, evaluation
):
    spec, expected = whole
    save, steps = Checkpoints.save, [1, 5, 9, 13]

    def killed(self, step, state):
        if step == steps[evaluation] and state["recorded"] == step - 1:
            raise KeyboardInterrupt
        save(self, step, state)

    monkeypatch.setattr(Checkpoints, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        train(settings(images, spec), tiny.execution(), tmp_path / "run")
    monkeypatch.undo()
    train(settings(images, spec), tiny.execution(), tmp_path / "run")
    assert tiny.ending(tmp_path / "run") == expected


def test_the_small_swad_closes_its_window_by_the_validation_loss(images, tmp_path, monkeypatch):
    """With losses that only rise nothing is averaged after the second evaluation."""
    count = evaluation.Tally.counting
    rising = iter(range(10_000))

    def worse(self, logits, y, *, losses=False):
        found = count(self, logits, y)
        return evaluation.Tally(found.correct, found.total, found.finite, float(next(rising)) if losses else math.nan)

    from dspreg import load

    def better(self, logits, y, *, losses=False):
        found = worse(self, logits, y, losses=losses)
        return evaluation.Tally(found.correct, found.total, found.finite, 20_000 - found.cross_entropy)

    monkeypatch.setattr(evaluation.Tally, "counting", better)
    train(settings(images, SPEC), tiny.execution(), tmp_path / "falling")
    monkeypatch.setattr(evaluation.Tally, "counting", worse)
    train(settings(images, SPEC), tiny.execution(), tmp_path / "rising")
    monkeypatch.undo()
    falling, rising = (load(tmp_path / name, "last", trust=("helpers",))[0].algorithm for name in ("falling", "rising"))
    assert rising.count == 5  # steps 0 to 4
    assert falling.count > 5
    assert all(torch.equal(falling.net.state_dict()[n], t) for n, t in rising.net.state_dict().items())
    assert not torch.equal(falling.mean.flat(), rising.mean.flat())


def test_nobody_pays_for_a_loss_that_no_layer_asks_for(images, tmp_path, monkeypatch):
    seen = []
    count = evaluation.Tally.counting
    monkeypatch.setattr(
        evaluation.Tally,
        "counting",
        lambda self, logits, y, *, losses=False: seen.append(losses) or count(self, logits, y, losses=losses),
    )
    train(settings(images, "CORAL", steps=2), tiny.execution(), tmp_path / "run")
    assert seen
    assert not any(seen)
