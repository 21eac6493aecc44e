"""A finished run as a model to use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from dspreg.data.transforms import Transform, Unchanged
from dspreg.errors import ConfigError
from dspreg.kinds import CLASSES
from dspreg.runs.calibration_file import temperature_of
from dspreg.runs.model_file import model_file
from dspreg.training.model import Model
from dspreg.training.stored_model import load_model_file

if TYPE_CHECKING:
    from PIL.Image import Image

    from dspreg.inference.predict import PredictedBatch


class LoadedModel(NamedTuple):
    """What `dspreg.load` returns: use it as it is, or take it apart, `model, transform = dspreg.load(…)`.

    Attributes:
        model: From transformed images (B, 3, H, W) to logits (B, C), in evaluation mode.
        transform: From a PIL image to a (3, H, W) tensor; of a run on tensors, a check of their shape and type.
    """

    model: Model
    transform: Transform | Unchanged

    @property
    def classes(self) -> tuple[str, ...]:
        """What the columns of logits and probabilities mean."""
        return self.model.classes

    def __call__(self, x: Tensor) -> Tensor:
        """Logits (B, C) of transformed images (B, 3, H, W)."""
        logits: Tensor = self.model(x)
        return logits

    def predict(
        self,
        images: Image | str | Path | Tensor | Sequence[Image | str | Path],
        *,
        unknown_below: float = 0.0,
        batch: int = 64,
    ) -> PredictedBatch:
        """Labels, probabilities and flags.

            found = dspreg.load("runs/all").predict(["inbox/a.jpg", "inbox/b.jpg"], unknown_below=0.5)
            for label, flag in zip(found.labels, found.flags): …

        Args:
            images: A PIL image, the path of one, several of either, or transformed images (B, 3, H, W).
            unknown_below: Flag images whose most probable class is less probable.
            batch: Images at a time.
        """
        from dspreg.inference.predict import predict_batch

        transform = require_images(self.model, self.transform, "the run", "predict")
        return predict_batch(self.model, transform, images, unknown_below=unknown_below, batch=batch)


def load(run: str | Path, which: str = "selected", device: str = "cpu", *, trust: Sequence[str] = ()) -> LoadedModel:
    """The model of a finished run, with the transform its images need.

        model = dspreg.load("runs/sketch")
        found = model.predict("inbox/photo.jpg")  # labels, probabilities, flags
        model, transform = dspreg.load("runs/sketch")
        logits = model(transform(image)[None])  # image: PIL, RGB

    Args:
        run: The folder `dspreg train` left; every file of it is verified.
        which: `"selected"`, by source validation, `"last"`, or an evaluated step such as `"120"` (`--keep all`).
        device: Where the model goes.
        trust: Modules or packages of methods and networks of your own, as in `("my_methods",)`. Without them nothing
            is imported that a file names and that is not dspreg's: to import a module is to run it.

    Returns:
        A pair with methods: the model in evaluation mode, whose logits are calibrated if the run is, and a function
        from a PIL image to a (3, H, W) tensor. Of a run on tensors, that function takes tensors or arrays, and checks
        their shape and type.
    """
    file = model_file(run, which)
    model, transform = load_model_file(file, device, trust)
    model.temperature = temperature_of(run, file.relative_to(run).as_posix())
    return LoadedModel(model, transform)


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
