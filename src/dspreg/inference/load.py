"""A finished run as a model to use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from dspreg.data.transforms import Transform
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
        transform: From a PIL image to a (3, H, W) tensor.
    """

    model: Model
    transform: Transform

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

        return predict_batch(self.model, self.transform, images, unknown_below=unknown_below, batch=batch)


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
        trust: Modules or packages of methods of your own, as in `("my_methods",)`. Without them nothing is imported
            that a file names and that is not dspreg's: to import a module is to run it.

    Returns:
        A pair with methods: the model in evaluation mode, whose logits are calibrated if the run is, and a function
        from a PIL image to a (3, H, W) tensor.
    """
    file = model_file(run, which)
    model, transform = load_model_file(file, device, trust)
    model.temperature = temperature_of(run, file.relative_to(run).as_posix())
    return LoadedModel(model, transform)


def step_of(result: Mapping[str, Any], which: str) -> int:
    """Of a model as in `load`, by the result of its run."""
    return int(which) if which.isdecimal() else int(result[which]["step"])
