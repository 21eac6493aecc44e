"""A finished run as a model to use."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from dspreg.data.transforms import Transform
from dspreg.errors import ConfigError, IntegrityError
from dspreg.runs.folder import RunFolder
from dspreg.runs.status import FAILURE, read_failure
from dspreg.training.finalize import MODEL, model_path_at
from dspreg.training.model import Model, load_stack
from dspreg.training.serialization import unpack


def load(run: str | Path, which: str = "selected", device: str = "cpu") -> tuple[Model, Transform]:
    """The model of a finished run and the transform its images need.

        model, transform = dspreg.load("runs/sketch")
        logits = model(transform(image)[None])  # image: PIL, RGB

    Args:
        run: The folder `dspreg train` left; every file of it is verified.
        which: `"selected"`, by source validation, `"last"`, or an evaluated step such as `"120"` (`--keep all`).
        device: Where the model goes.

    Returns:
        The model in evaluation mode, with `model.classes`, and a function from a PIL image to a (3, H, W) tensor.
    """
    return load_model_file(model_file(run, which), device)


def model_file(run: str | Path, which: str = "selected") -> Path:
    """Where a finished run keeps a model; every file of the run is verified."""
    folder = RunFolder(run)
    folder.description()
    if folder.result() is None:
        failure = read_failure(folder / FAILURE)
        if failure is not None:
            raise ConfigError(f"{folder.path} failed and has no model: {failure.reason}")
        raise ConfigError(f"{folder.path} is not finished; run its train command again to finish it")
    path = folder / (model_path_at(int(which)) if which.isdecimal() else f"{which}.safetensors")
    if not path.exists():
        steps = ", ".join(str(int(each.stem.removeprefix("step-"))) for each in sorted((folder / "models").glob("*")))
        there = [name for name in ("selected", "last") if (folder / f"{name}.safetensors").exists()]
        kept = ", ".join(there + ([f"the steps {steps}"] if steps else [])) or "none: it was trained with --keep none"
        raise ConfigError(f"{folder.path} kept no model {which!r}. It has {kept}")
    return path


def step_of(result: Mapping[str, Any], which: str) -> int:
    """Of a model as in `load`, by the result of its run."""
    return int(which) if which.isdecimal() else int(result[which]["step"])


def load_model_file(path: Path, device: str = "cpu") -> tuple[Model, Transform]:
    """From one model file, without its run."""
    how, tensors = read_model_file(path)
    model = Model(load_stack(how, tensors, str(path), device), tuple(how["classes"])).eval()
    return model, Transform(how["image_size"], how["mean"], how["std"])


def read_model_file(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """How the network of a model file is made and what its outputs mean, and its tensors."""
    saved, about = unpack(path.read_bytes(), str(path))
    if about.get("format") != MODEL:
        raise IntegrityError(f"{path} is of the format {about.get('format')!r}; wanted {MODEL!r}")
    if not isinstance(saved, dict) or not {"built", "tensors"} <= saved.keys():
        raise IntegrityError(f"{path} is damaged: it says not how the network is made, or has no tensors")
    return saved["built"], saved["tensors"]
