"""Trackers: the curves of a training in TensorBoard, MLflow, Weights & Biases or Trackio.

Each is a `Callback` like those of a user, made of what `--track` names. They read records and change nothing.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import cast

from dspreg.config.train_config import Execution
from dspreg.errors import ConfigError
from dspreg.io.importing import import_object
from dspreg.io.text import join_few
from dspreg.runs.folder import RunFolder
from dspreg.training.trackers.tracker import Tracker

__all__ = ["Tracker", "make_trackers"]

CLASSES = {"tensorboard": "TensorBoard", "mlflow": "MLflow", "wandb": "WandB", "trackio": "Trackio"}


def make_trackers(execution: Execution, folder: RunFolder) -> list[Tracker]:
    """Those that the execution names, for the run in a folder.

    Raises:
        ConfigError: One is not installed; nothing was written.
    """
    named = execution.track.split(",") if execution.track else []
    named += ["tensorboard"] if execution.tensorboard and "tensorboard" not in named else []
    missing = [name for name in named if not is_installed(name)]
    if missing:
        extras = ",".join(missing)
        raise ConfigError(f"--track {extras} needs {join_few(missing)}: pip install 'dspreg[{extras}]'")
    return [make_tracker(name, folder) for name in named]


def is_installed(name: str) -> bool:
    """Whether there is the package of a tracker, which is imported with its first record: that takes seconds."""
    return find_spec(name) is not None


def make_tracker(name: str, folder: RunFolder) -> Tracker:
    """One of `TRACKERS`."""
    return cast(Tracker, import_object(f"{__name__}.{name}.{CLASSES[name]}")(folder))
