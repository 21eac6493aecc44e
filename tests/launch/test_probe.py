"""`sweep --dry-run --probe`: hours from a few steps, nothing left behind, and methods that fail told by name."""

import re
import sys

import pytest

from dspreg.cli import main
from dspreg.config.train_config import Execution
from dspreg.data.splits import steps_per_epoch
from dspreg.errors import Diverged
from dspreg.launch import probe
from dspreg.launch.probe import Prober, by_network, probe_run
from dspreg.protocol.estimate import Prices
from dspreg.runs.run import Run

HOW = Execution(device="cpu", threads=1)
PLAN = ["sweep", "--dataset", "digits", "--trials", "1", "--draws", "1", "--only", "training", "--targets", "print",
        "--set", "batch_size=4", "--device", "cpu", "--dry-run"]  # fmt: skip

METHODS = '''
import dspreg

class Raises(dspreg.Algorithm):
    def loss(self, out):
        if self.t == 1:
            raise KeyError("color")
        return self.base.loss(out)

class Grows(dspreg.Algorithm):
    def loss(self, out):
        return self.base.loss(out) * (float("inf") if self.t == 1 else 1.0)

class Forgets(dspreg.Algorithm):
    """Predicts with something that no file holds."""
    def on_step_end(self):
        self.shift = 5.0
    def predict(self, x):
        return self.base.predict(x) * (1 - getattr(self, "shift", 0.0))

class Evaluates(dspreg.Algorithm):
    def on_evaluation(self, validation):
        raise ValueError("not a number of sources: " + str(len(validation.accuracy)))
'''


@pytest.fixture
def methods(tmp_path, monkeypatch):
    (tmp_path / "probed_methods.py").write_text(METHODS)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "probed_methods"
    sys.modules.pop("probed_methods", None)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(probe, "MOST_STEPS", 2)


def run(algorithm="ERM", **options):
    return Run(dataset="digits", targets=("print",), algorithm=algorithm, options={"batch_size": 4, **options})


def test_a_run_has_the_price_of_its_steps_evaluations_and_measurements():
    probed = probe_run(run("DSPReg"), HOW)
    assert (probed.steps, probed.prices.step > 0, probed.prices.evaluation > 0) == (3, True, True)
    assert probed.prices.refresh is not None
    made = probe.Probed(probed.experiment, Prices(2.0, 30.0, 7.0), 3)
    longer = run("DSPReg", steps=500, evaluate_every=100, batch_size=8)
    work, seconds = made.seconds(longer)
    inside = [len(probed.experiment.splits[name][0]) for name in probed.experiment.sources]
    epoch = steps_per_epoch(inside, 3 * 8)
    refreshes = sum((t + epoch) % (2 * epoch) == 0 for t in range(500))
    assert (work.steps, work.evaluations, work.refreshes) == (500, 6, refreshes + 2)
    assert seconds == pytest.approx(500 * 2.0 * 8 / 4 + 6 * 30 + (refreshes + 2) * 7)


def test_hours_of_a_plan_and_nothing_is_left(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(probe, "probe_run", lambda run, *_: probe.Probed(  # an hour a run
        probe_run(run, HOW).experiment, Prices(36.0, 0.0), 3))  # fmt: skip
    assert main([*PLAN, "--algorithms", "ERM", "--set", "steps=100", "--probe", "--store", "new"]) == 0
    said = capsys.readouterr()
    assert re.search(r"^digits +ERM +1 +0 +0 +1$", said.out, re.M)
    assert "by a few steps on this machine" in said.out
    assert "ERM on digits, small-cnn: 60 min a run, by 3 steps: 100 steps at 36 s" in said.out
    assert "trying a few steps of ERM on digits" in said.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "code", "says"),
    [
        ("Raises", 5, "KeyError: 'color'"),
        ("Grows", 5, "not finite"),
        ("Forgets", 2, "does not predict what the trained one does"),
        ("Evaluates", 5, "ValueError: not a number of sources: 3"),
    ],
)
def test_a_method_that_would_fail_is_told_by_name(methods, capsys, name, code, says):
    assert main([*PLAN, "--algorithms", "ERM", f"{methods}.{name}", "--probe"]) == code
    said = capsys.readouterr().out
    failed = next(line for line in said.splitlines() if " fails: " in line)
    assert failed.startswith(f"{methods}.{name} on digits fails: ")
    assert says in failed
    assert "ERM on digits, small-cnn: " in said  # the others are tried all the same


def test_data_that_are_missing_are_told(tmp_path, capsys):
    args = ["sweep", "--dataset", "PACS", "--root", str(tmp_path), "--algorithms", "ERM", "--draws", "1", "--dry-run"]
    assert main([*args, "--probe"]) == 3
    assert "ERM on PACS fails: " in capsys.readouterr().out


def test_it_is_for_a_dry_run(capsys):
    assert main([*PLAN[:-1], "--algorithms", "ERM", "--probe"]) == 2
    assert "add --dry-run" in capsys.readouterr().err


def test_what_differs_in_the_network_is_tried_apart(monkeypatch):
    runs = [run(), run(steps=9), run(image_size=32), run(model="resnet18.tv_in1k")]
    assert [len(each) for each in by_network(runs)] == [2, 1, 1]
    tried = []

    def fail(run, *_):
        tried.append(run)
        raise Diverged("step 1: not finite", 1)

    monkeypatch.setattr(probe, "probe_run", fail)
    prober = Prober(HOW)
    assert prober.seconds(runs) is None
    assert (len(tried), len(prober.lines), prober.exit_code) == (3, 3, 5)
