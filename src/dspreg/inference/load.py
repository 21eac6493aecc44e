"""A finished run as a model to use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dspreg.data.transforms import Transform
from dspreg.training.stored_model import load_model_file
from dspreg.runs.model_file import model_file
from dspreg.training.model import Model


def load(
    run: str | Path, which: str = "selected", device: str = "cpu", *, trust: Sequence[str] = ()
) -> tuple[Model, Transform]:
    """The model of a finished run and the transform its images need.

        model, transform = dspreg.load("runs/sketch")
        logits = model(transform(image)[None])  # image: PIL, RGB

    Args:
        run: The folder `dspreg train` left; every file of it is verified.
        which: `"selected"`, by source validation, `"last"`, or an evaluated step such as `"120"` (`--keep all`).
        device: Where the model goes.
        trust: Modules or packages of methods of your own, as in `("my_methods",)`. Without them nothing is imported
            that a file names and that is not dspreg's: to import a module is to run it.

    Returns:
        The model in evaluation mode, with `model.classes`, and a function from a PIL image to a (3, H, W) tensor.
    """
    return load_model_file(model_file(run, which), device, trust)


def step_of(result: Mapping[str, Any], which: str) -> int:
    """Of a model as in `load`, by the result of its run."""
    return int(which) if which.isdecimal() else int(result[which]["step"])
