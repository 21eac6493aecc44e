"""Features of a frozen backbone, computed once: the same training as with images, for every method that gets them."""

import json
import warnings
from dataclasses import replace

import pytest
import torch

import dspreg
from dspreg.algorithms import parse
from dspreg.algorithms.compatibility import reads_images
from dspreg.algorithms.registry import algorithms
from dspreg.batches import Batch
from dspreg.config.trained_part import TrainedPart
from dspreg.errors import ConfigError, Notice, Preempted
from dspreg.networks import make_backbone
from dspreg.testing import toy_batches, toy_task
from dspreg.training import train, train_step
from dspreg.training.experiment import Experiment, prepare_experiment
from dspreg.training.trained_part import freeze
from helpers import tiny
from helpers.stacking import ACTING

pytestmark = pytest.mark.filterwarnings("ignore::dspreg.Notice")
NAMES = [name for name in algorithms(experimental=True) if name != "ERM"]
SHAPE = (3, 32, 32)


def frozen_stack(spec, kept=None):
    """On a frozen network in float64; with `kept`, c is measured on features."""
    backbone = make_backbone("test_resnet", weights="none", image_size=32, dropout=0.25)
    task = toy_task(inputs=SHAPE)
    samples = task.samples

    def of_features(t, n):
        return {name: [replace(b, x=kept(b.x)) for b in each] for name, each in samples(t, n).items()}

    task = replace(
        task, backbone=backbone.make, adapt=lambda net: freeze(net, TrainedPart("head"), "test_resnet"),
        samples=of_features if kept else samples,
    )  # fmt: skip
    return parse(spec).setup(task, lambda p: torch.optim.Adam(p, lr=0.05)).double()


def state(stack):
    return {**stack.state_dict(), **dict(stack.net.state_dict())}


@pytest.mark.parametrize("name", NAMES)
def test_a_step_on_features_is_the_step_on_images(name):
    """Three steps of every method that may be given features; the others say that they read images."""
    spec = ACTING.get(name, name)
    if reads_images(parse(spec)):
        return
    refused = None
    try:
        plain = frozen_stack(spec)
    except ConfigError as error:
        refused = str(error)
    if refused is not None:
        assert refused.startswith(f"{name} trains the featurizer, and all of it is frozen")
        return

    def features(x):
        with torch.no_grad():
            return plain.eval().net.featurizer.undropped(x)

    ours = frozen_stack(spec, features)
    for t in range(3):
        images = toy_batches(t, inputs=SHAPE)
        rows = [Batch(features(b.x), b.y, b.domain) for b in images]
        train_step(plain.train(), images)
        train_step(ours.train(), rows)
    for key, value in state(plain).items():
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(state(ours)[key], value, rtol=0, atol=1e-9, msg=key)
    assert (ours.net.classifier.weight - frozen_stack(spec).net.classifier.weight).abs().max() > 1e-3 or name == "LPFT"


def test_those_that_read_images_are_known():
    found = {name for name in NAMES if reads_images(parse(ACTING.get(name, name)))}
    assert found == {"ARM", "DomainDrop", "GMDG", "JiGen", "MIRO", "MixStyle", "Mixup", "RandConv", "SagNet"}


def test_a_method_of_ones_own_gets_images_unless_it_changes_the_loss_alone():
    class Louder(dspreg.Algorithm):
        def forward(self, batches):
            return self.base([Batch(2 * b.x, b.y, b.domain) for b in batches])

    class Softer(dspreg.Algorithm):
        def loss(self, out):
            return 0.5 * self.base.loss(out)

    assert reads_images(Louder())
    assert not reads_images(Softer())


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return tiny.make_images(tmp_path_factory.mktemp("images") / "woods")


def settings(images, **changes):
    return tiny.settings(
        images, **{"algorithm": "CORAL", "train": "head", "augment": False, "frozen_bn": True, "lr": 0.01, **changes}
    )


def test_a_linear_probe_is_that_of_a_plain_loop(images, tmp_path):
    """ERM on the features, with torch's Adam, on the same batches."""
    given = settings(images, algorithm="ERM", dropout=0.0, weight_decay=0.0)
    train(given, tiny.execution(), tmp_path / "run")
    experiment = prepare_experiment(given, tiny.execution())
    net = experiment.algorithm().eval().net
    head = torch.nn.Linear(net.featurizer.width, 3)
    head.load_state_dict(net.classifier.state_dict())
    optimizer = torch.optim.Adam(head.parameters(), lr=0.01)
    for t in range(14):
        read = [(experiment.transform("none").normalise(x), y) for x, y in experiment.steps()[t]]
        x, y = torch.cat([x for x, _ in read]), torch.cat([y for _, y in read])
        with torch.no_grad():
            features = net.featurizer.model(x)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(head(features), y).backward()
        optimizer.step()
    model, _ = dspreg.load(tmp_path / "run", which="last")
    torch.testing.assert_close(model.algorithm.net.classifier.weight, head.weight, rtol=0, atol=1e-5)
    torch.testing.assert_close(model.algorithm.net.classifier.bias, head.bias, rtol=0, atol=1e-5)


@pytest.mark.parametrize("spec", ["CORAL", "DSPReg(refresh_steps=4, measure_batches=1)+EMA(decay=0.5)"])
def test_a_run_on_kept_features_is_the_run_on_images_up_to_rounding(images, tmp_path, monkeypatch, spec):
    given = settings(images, algorithm=spec)
    kept = train(given, tiny.execution(profile="always"), tmp_path / "kept")
    monkeypatch.setattr(Experiment, "keeps_features", False)
    plain = train(given, tiny.execution(profile="always"), tmp_path / "plain")
    assert kept["selected"] == plain["selected"]
    for which in ("last", "selected"):
        ours, theirs = (dspreg.load(tmp_path / n, which=which)[0] for n in ("kept", "plain"))
        for a, b in zip(
            ours.algorithm.net.state_dict().values(), theirs.algorithm.net.state_dict().values(), strict=True
        ):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    a, b = (dspreg.Profile.load(tmp_path / n / "profiles/end.safetensors").c for n in ("kept", "plain"))
    assert a.keys() == b.keys() == {"classifier.weight", "classifier.bias"}
    torch.testing.assert_close(a.flat(), b.flat(), rtol=1e-3, atol=1e-3)


def test_images_pass_through_the_backbone_once(images, tmp_path, monkeypatch):
    from dspreg.networks.pretrained import TimmFeaturizer

    seen = []
    before = TimmFeaturizer.undropped
    monkeypatch.setattr(TimmFeaturizer, "undropped", lambda self, x: (seen.append(len(x)), before(self, x))[1])
    train(settings(images), tiny.execution(), tmp_path / "run")
    every = sum(3 * (9 + d) for d in range(4))
    assert sum(seen) == every


def test_a_stopped_probe_ends_in_the_same_bits(images, tmp_path):
    given = settings(images, algorithm="DSPReg(refresh_steps=4, measure_batches=1)", dropout=0.2)
    train(given, tiny.execution(), tmp_path / "once")
    for moment in (2, 9, 14):
        with pytest.raises(Preempted):
            train(given, tiny.execution(), tmp_path / "stopped", pause=tiny.stop_at(moment))
    train(given, tiny.execution(), tmp_path / "stopped")
    assert tiny.ending(tmp_path / "stopped") == tiny.ending(tmp_path / "once")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"augment": True}, "images are augmented"),
        ({"algorithm": "Mixup"}, "Mixup works on images"),
        ({"algorithm": "MixStyle+DSPReg(measure_batches=1)"}, "MixStyle works on images"),
    ],
)
def test_where_features_are_not_kept_it_says_why_and_trains_on_images(images, tmp_path, changes, said):
    given = settings(images, steps=2, **changes)
    with warnings.catch_warnings(record=True) as notices:
        warnings.simplefilter("always", Notice)
        experiment = prepare_experiment(given, tiny.execution())
    assert any("computed anew at every step" in str(n.message) and said in str(n.message) for n in notices)
    assert not experiment.keeps_features
    train(given, tiny.execution(), tmp_path / "run")
    model, _ = dspreg.load(tmp_path / "run")
    start = experiment.algorithm().net.featurizer.state_dict()
    assert all(torch.equal(start[n], t) for n, t in model.algorithm.net.featurizer.state_dict().items())


# The user's cache.


@pytest.fixture
def weights(tmp_path):
    from safetensors.torch import save_file

    net = make_backbone("test_resnet", weights="none", image_size=24).make()
    save_file({n: t.contiguous() for n, t in net.model.state_dict().items()}, tmp_path / "w.safetensors")
    return str(tmp_path / "w.safetensors")


def test_a_second_run_finds_the_features_and_ends_in_the_same_bits(images, tmp_path, weights, monkeypatch):
    from dspreg.networks.pretrained import TimmFeaturizer

    monkeypatch.setenv("DSPREG_CACHE", str(tmp_path / "cache"))
    given = settings(images, weights=weights)
    train(given, tiny.execution(cache="disk"), tmp_path / "first")
    files = sorted((tmp_path / "cache/features").iterdir())
    assert len(files) == 4
    seen = []
    before = TimmFeaturizer.undropped
    monkeypatch.setattr(TimmFeaturizer, "undropped", lambda self, x: (seen.append(len(x)), before(self, x))[1])
    train(given, tiny.execution(cache="disk"), tmp_path / "second")
    assert not seen
    assert tiny.ending(tmp_path / "second") == tiny.ending(tmp_path / "first")
    files[0].write_bytes(files[0].read_bytes()[:-1] + b"?")  # damaged: computed again, and found to be as it was
    train(given, tiny.execution(cache="disk"), tmp_path / "third")
    assert 0 < sum(seen) <= 36
    assert tiny.ending(tmp_path / "third") == tiny.ending(tmp_path / "first")
    seen.clear()
    train(given | {"image_size": 32}, tiny.execution(cache="disk"), tmp_path / "larger")
    assert sum(seen) == sum(3 * (9 + d) for d in range(4))
    train(given, tiny.execution(cache="none"), tmp_path / "none")
    assert len(list((tmp_path / "cache/features").iterdir())) == 8
    described = json.loads((tmp_path / "none/run.json").read_text())
    assert described["settings"]["train"] == "head"
