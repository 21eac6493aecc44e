"""In a short run every method still is itself: no row of a table is ERM's under another name."""

import warnings

import pytest
import torch

from dspreg.algorithms.registry import algorithms
from dspreg.batches import Batch
from dspreg.config.train_config import Execution
from dspreg.errors import Notice
from dspreg.runs.folder import RunFolder
from dspreg.training.experiment import prepare_experiment
from dspreg.training.loop import evaluates_at, validate_below
from dspreg.training.state import State
from dspreg.training.step import train_step
from helpers.stacking import weights_of_prediction

STEPS = 24
QUICK = {"GGA": "GGA(tries=3)"}  # of its 250, which take a minute


def trained(spec, place):
    """The weights of the network that predicts, after a short run on the digits, as the trainer would make it."""
    given = {"dataset": "digits", "targets": ("print",), "algorithm": spec, "steps": STEPS, "batch_size": 4}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)  # what is scaled, and batches that repeat
        experiment = prepare_experiment(given, Execution(threads=1))
        algorithm, batches = experiment.algorithm(), experiment.steps()
        shown = experiment.transform(experiment.settings.augment).normalise
        place.mkdir()
        for t in range(STEPS):
            train_step(algorithm, [Batch(shown(x), y, d) for d, (x, y) in enumerate(batches[t])])
            if evaluates_at(experiment, t):  # SWAD predicts with what it is told there
                validate_below(experiment, State(algorithm, RunFolder(place)), lambda: None, lambda: None)
    return weights_of_prediction(algorithm)


@pytest.fixture(scope="module")
def erm(tmp_path_factory):
    return trained("ERM", tmp_path_factory.mktemp("erm") / "run")


def test_two_runs_of_erm_are_the_same(erm, tmp_path):
    assert all(torch.equal(a, erm[name]) for name, a in trained("ERM", tmp_path / "run").items())


@pytest.mark.parametrize("name", [name for name in algorithms() if name != "ERM"])
def test_no_method_is_erm_in_a_short_run(name, erm, tmp_path):
    after = trained(QUICK.get(name, name), tmp_path / "run")
    shared = [n for n in erm if n in after and after[n].shape == erm[n].shape]
    assert shared
    assert any(not torch.equal(after[n], erm[n]) for n in shared)
