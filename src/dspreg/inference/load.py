"""A finished run as a model to use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dspreg.data.transforms import Transform, Unchanged
from dspreg.errors import ConfigError
from dspreg.inference.stored_model import load_model_file
from dspreg.kinds import CLASSES
from dspreg.runs.model_file import model_file
from dspreg.training.model import Model


def load(
    run: str | Path, which: str = "selected", device: str = "cpu", *, trust: Sequence[str] = ()
) -> tuple[Model, Transform | Unchanged]:
    """The model of a finished run and the transform its images need.

        model, transform = dspreg.load("runs/sketch")
        logits = model(transform(image)[None])  # image: PIL, RGB

    Args:
        run: The folder `dspreg train` left; every file of it is verified.
        which: `"selected"`, by source validation, `"last"`, or an evaluated step such as `"120"` (`--keep all`).
        device: Where the model goes.
        trust: Modules or packages of methods and networks of your own, as in `("my_methods",)`. Without them nothing
            is imported that a file names and that is not dspreg's: to import a module is to run it.

    Returns:
        The model in evaluation mode, with `model.classes` and `model.kind`, and a function from a PIL image to a (3, H,
        W) tensor. Of a run on tensors, that function takes tensors or arrays, and checks their shape and type.
    """
    return load_model_file(model_file(run, which), device, trust)


def require_images(model: Model, transform: Transform | Unchanged, run: str | Path, what: str) -> Transform:
    """The transform of a model that classifies images; a ConfigError for any other.

    Args:
        model, transform: As `load` returns them.
        run: Where they are from.
        what: What was to be done, in the words of the message.
    """
    if isinstance(transform, Unchanged):
        raise ConfigError(f"{run} takes tensors of shape {transform.shape}, and {what} is for images; use dspreg.load")
    require_classes(model, run, what)
    return transform


def require_classes(model: Model, run: str | Path, what: str) -> None:
    """Refuse a model of several labels or of numbers, where confidences of classes are looked at."""
    if model.kind != CLASSES:
        raise ConfigError(
            f"{run} is of the kind {model.kind!r}, and {what} is for classes. Its figures on every domain are in "
            "records.jsonl; dspreg.load gives the model"
        )


def step_of(result: Mapping[str, Any], which: str) -> int:
    """Of a model as in `load`, by the result of its run."""
    return int(which) if which.isdecimal() else int(result[which]["step"])
