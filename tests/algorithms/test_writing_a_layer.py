"""Weight averaging, written from the head of base.py: it trains, saves, loads, and stacks with DSP-Reg either way."""

import json
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from dspreg import load
from dspreg.algorithms import Algorithm, DSPReg, Fish, parse
from dspreg.cli import main
from dspreg.errors import ConfigError, Notice
from dspreg.runs.folder import RunFolder
from dspreg.testing import LawBroken, check_algorithm, ready, toy_batches
from dspreg.training import train_step
from dspreg.vectors import average, theta
from helpers.averaging import Chosen, Copied, Late, Staged

EXAMPLES = Path(__file__).parents[2] / "examples"
KINDS = (Staged, Late, Copied, Chosen)


@pytest.fixture
def swa(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    import weight_averaging

    yield weight_averaging.SWA
    del sys.modules["weight_averaging"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_way_of_writing_it_keeps_the_laws(kind):
    assert check_algorithm(kind) is None


def test_the_example_keeps_the_laws(swa):
    assert check_algorithm(swa, start=1) is None
    assert check_algorithm("weight_averaging.SWA(start=1)+DSPReg(refresh_steps=1, measure_batches=1)") is None
    assert check_algorithm("DSPReg(refresh_steps=1, measure_batches=1)+weight_averaging.SWA(start=1)") is None


def test_the_example_predicts_with_the_mean_of_the_weights(swa):
    stack, seen = ready(Fish(swa(start=2))), []
    for t in range(5):
        train_step(stack, toy_batches(t))
        seen.append(theta(stack.net))
    mean = average(seen[2:])  # where the steps ended, not where Fish's inner ones did
    assert torch.allclose(stack.base.mean.flat(), mean.flat(), rtol=1e-12)
    x = toy_batches(9)[0].x
    stack.eval()
    expected = torch.func.functional_call(stack.net, dict(mean), (x,))
    assert torch.allclose(stack.predict(x), expected, rtol=1e-10)
    assert not torch.allclose(stack.net(x), expected, rtol=1e-3)


def steps(stack):
    for t in range(5):
        train_step(stack, toy_batches(t))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("over", [True, False])
def test_c_is_that_of_the_network_that_is_trained(kind, over):
    def made(layer):
        penalty = {"refresh_steps": 2, "measure_batches": 2}
        return ready(layer(DSPReg(**penalty)) if over else DSPReg(layer(None), **penalty))

    stack, plain = made(kind), made(Algorithm)
    said = rf"{kind.__name__}\.predict is no differentiable function .* override `measured`"
    with pytest.warns(Notice, match=said) as notices:
        steps(stack)
    assert len(notices) == 1
    steps(plain)
    c, expected = (next(each.c for each in s.layers() if isinstance(each, DSPReg)) for s in (stack, plain))
    assert float(c.flat().median()) > 0.05
    assert torch.equal(c.flat(), expected.flat())
    assert torch.equal(theta(stack.net).flat(), theta(plain.net).flat())  # averaging moves no weight


class Tempered(Algorithm):
    """A prediction that is a differentiable function of the network is measured as it is."""

    def predict(self, x):
        return self.base.predict(x) / 3


def test_a_differentiable_prediction_is_what_is_measured():
    stack = ready(DSPReg(Tempered()))
    (batch, *_), x = toy_batches(0), toy_batches(1)[0].x
    stack.eval()
    assert torch.equal(stack.measured(batch)(x), stack.net(x) / 3)


class Constant(Copied):
    def measured(self, batch):
        return self.average


def test_what_does_not_depend_on_the_network_is_refused_by_name_with_the_remedy():
    remedy = r"Constant\.measured .* c would be 0 everywhere; return self\.base\.measured\(batch\) in it"
    for stack in (DSPReg(Constant(), refresh_steps=1), Constant(DSPReg(refresh_steps=1))):
        ready(stack)
        train_step(stack, toy_batches(0))
        with pytest.raises(ConfigError, match=remedy):
            train_step(stack, toy_batches(1))
    with pytest.raises(LawBroken, match=rf"law 7: .*{remedy}"):
        check_algorithm(Constant)


def trained(out, spec, *more):
    options = ["--dataset", "digits", "--target", "print", "--steps", "13", "--algorithm", spec, "--threads", "1"]
    plain = ["--set", "augment_validation=false", "--set", "evaluate_every=100", "--set", "batch_size=8"]
    assert main(["train", *options, *plain, "--profile", "never", "--out", str(out), *more]) == 0
    return RunFolder(out)


@pytest.mark.parametrize(
    "spec",
    [
        "weight_averaging.SWA(start=2)",
        "weight_averaging.SWA(start=2)+DSPReg(refresh_steps=4, measure_batches=1)",
        "DSPReg(refresh_steps=4, measure_batches=1)+weight_averaging.SWA(start=2)",
        "helpers.averaging.Copied",
    ],
)
@pytest.mark.usefixtures("swa")
@pytest.mark.filterwarnings("ignore::dspreg.Notice")
def test_trained_saved_evaluated_and_stacked_on_the_digits(tmp_path, capsys, spec):
    folder = trained(tmp_path / "run", spec)
    *_, last = folder.records
    for event in folder.refreshes:
        assert all(layer["median"] > 0.05 for layer in event["layers"].values())
    assert len(list(folder.refreshes)) == (3 if "DSPReg" in spec else 0)
    capsys.readouterr()
    words = ["evaluate", str(folder.path), "--which", "last", "--json", "--out", str(tmp_path / "scores")]
    assert main([*words, "--trust", "weight_averaging", "--trust", "helpers"]) == 0
    scores = json.loads(capsys.readouterr().out)["domains"]
    for name in ("handwritten", "outline", "sign"):
        assert scores[name]["accuracy"] == last["accuracy"][name]["out"]
    # and this is not what the weights that were trained last would have scored
    model, _ = load(folder.path, "last", trust=("weight_averaging", "helpers"))
    x = torch.rand(4, 3, 28, 28)
    assert not torch.allclose(model(x), model.algorithm.net(x), rtol=1e-3)


class Unsaved(Algorithm):
    """Predicts with something that is in no file."""

    factor = 1.0

    def on_step_end(self):
        self.factor += 0.5

    def predict(self, x):
        return self.base.predict(x) * self.factor


class Listed(Algorithm):
    saved_attributes = ("seen",)

    def __init__(self, base=None):
        super().__init__(base)
        self.seen = []

    def predict(self, x):
        return self.base.predict(x) * (1 + len(self.seen))


class Unloaded(Algorithm):
    """Predicts with weights of the start, which a loaded model makes anew, and other ones."""

    def build(self, task):
        net = self.base.build(task)
        self.start = (nn.Linear(net.featurizer.width, task.num_classes),)
        return net

    def predict(self, x):
        return self.base.predict(x) + self.start[0](self.net.featurizer(x))


@pytest.mark.parametrize("name", ["Unsaved", "Unloaded"])
def test_a_model_that_would_predict_something_else_is_not_finished(tmp_path, capsys, name):
    spec = f"{__name__}.{name}"
    options = ["--dataset", "digits", "--target", "print", "--steps", "2", "--threads", "1", "--profile", "never"]
    assert main(["train", *options, "--algorithm", spec, "--out", str(tmp_path / "run")]) == 2
    assert f"{name} predicts with something that is not saved. Make it a module" in capsys.readouterr().err
    assert RunFolder(tmp_path / "run").result() is None


def test_the_laws_find_it_before_training():
    with pytest.raises(LawBroken, match="law 5: after save, load and continue predictions differ"):
        check_algorithm(Unsaved)


def test_state_that_a_model_file_can_not_hold_is_refused_before_there_is_a_run(tmp_path, capsys):
    options = ["--dataset", "digits", "--target", "print", "--steps", "2", "--threads", "1"]
    assert main(["train", *options, "--algorithm", f"{__name__}.Listed", "--out", str(tmp_path / "run")]) == 2
    assert "Listed predicts, and its seen is a list, which a model file does not hold; make" in capsys.readouterr().err
    assert not (tmp_path / "run" / "run.json").exists()


def test_both_of_two_averages_are_saved():
    stack = ready(Staged(Late(parse("CORAL"))))
    fresh = ready(Staged(Late(parse("CORAL"))))
    for t in range(4):
        train_step(stack, toy_batches(t))
    from dspreg.training.model import load_tensors, tensors_of

    load_tensors(fresh, tensors_of(stack), "here")
    fresh.stack.steps = stack.t
    x = toy_batches(7)[0].x
    for one, other in zip(stack.eval().layers(), fresh.eval().layers(), strict=True):
        assert torch.equal(one.predict(x), other.predict(x))
