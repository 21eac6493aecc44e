"""A finished run as a model to use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dspreg.data.transforms import Transform
from dspreg.errors import ConfigError, IntegrityError
from dspreg.inference.stored_model import load_model_file
from dspreg.runs.folder import RunFolder
from dspreg.runs.schema import check_run
from dspreg.runs.status import FAILURE, read_failure
from dspreg.training.finalize import model_path_at
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


def model_file(run: str | Path, which: str = "selected") -> Path:
    """Where a finished run keeps a model; every file of the run is verified."""
    folder = RunFolder(run)
    check_run(folder.path, folder.contents())
    result = folder.result()
    if result is None:
        failure = read_failure(folder / FAILURE)
        if failure is not None:
            raise ConfigError(f"{folder.path} failed and has no model: {failure.reason}")
        raise ConfigError(f"{folder.path} is not finished; the command that began it, given again, finishes it")
    name = model_path_at(int(which)) if which.isdecimal() else f"{which}.safetensors"
    path = folder / name
    if path.exists() and name not in result["files"]:
        raise IntegrityError(f"{path} does not belong to the run: result.json does not name it")
    if not path.exists():
        steps = ", ".join(str(int(each.stem.removeprefix("step-"))) for each in sorted((folder / "models").glob("*")))
        there = [name for name in ("selected", "last") if (folder / f"{name}.safetensors").exists()]
        kept = ", ".join(there + ([f"the steps {steps}"] if steps else [])) or "none: it was trained with --keep none"
        raise ConfigError(f"{folder.path} kept no model {which!r}. It has {kept}")
    return path


def step_of(result: Mapping[str, Any], which: str) -> int:
    """Of a model as in `load`, by the result of its run."""
    return int(which) if which.isdecimal() else int(result[which]["step"])
