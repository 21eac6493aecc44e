"""A checkpoint of a run as it was in training: its data, its step, and DSP-Reg around it to measure with."""

from __future__ import annotations

from dspreg import Batch, DSPReg, Execution, RunResult
from dspreg.inference.load import model_file, read_model_file
from dspreg.training.experiment import Experiment, prepare_experiment
from dspreg.training.model import load_tensors

SPEC = "DSPReg(weight=0.001)"
NEW = 10**6  # steps from here on are never trained


def load_checkpoint(run: RunResult, step: int, root: str, weights: str) -> tuple[Experiment, DSPReg]:
    """The experiment, and the network as it was after `step`."""
    given = {**run.settings, "targets": run.targets, "weights": weights, "algorithm": SPEC}
    how = Execution(root=root, layout="channels-last", cache="disk", check_images="never", threads=1, workers=0)
    experiment = prepare_experiment(given, how)
    algorithm = experiment.algorithm()
    assert isinstance(algorithm, DSPReg)
    load_tensors(algorithm, read_model_file(model_file(run.folder, str(step)))[1], run.folder)
    algorithm.stack.steps = step + 1
    return experiment, algorithm


def new_batches(experiment: Experiment, number: int) -> list[list[Batch]]:
    """So many steps' training batches, by step and domain: new draws and augmentations of the training images."""
    shown, steps = experiment.transform(experiment.settings.augment).normalise, experiment.steps()
    return [[Batch(shown(x), y, d) for d, (x, y) in enumerate(steps[i])] for i in range(NEW, NEW + number)]
