"""Classes of single images, from files that may be anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from dspreg.data.decode import BadImage, decode_image
from dspreg.data.transforms import Transform
from dspreg.devices import resolve_device, send
from dspreg.inference.image_files import image_files
from dspreg.inference.load import load, require_images
from dspreg.precision import full_precision
from dspreg.sensitivity.evaluation_mode import evaluation_mode
from dspreg.training.model import Model


@dataclass(frozen=True)
class Prediction:
    """What a model says about one image: a probability for each class, or why there is none."""

    path: Path
    probabilities: tuple[float, ...] = ()
    fault: str = ""
    classes: tuple[str, ...] = ()  # what the probabilities are of

    @property
    def label(self) -> str | None:
        """The most probable class; None for an image that could not be read."""
        return self.classes[self.best()] if self.probabilities else None

    def best(self, rank: int = 0) -> int:
        """Position of the most probable class, or of the next ones; of equal ones the first."""
        return sorted(range(len(self.probabilities)), key=lambda c: -self.probabilities[c])[rank]


def predict_images(
    run: str | Path,
    images: str | Path | Sequence[str | Path],
    *,
    which: str = "selected",
    batch: int = 64,
    device: str = "auto",
    progress: Callable[[int, int], None] | None = None,
    trust: Sequence[str] = (),
) -> list[Prediction]:
    """Classify images with a trained model.

        for each in dspreg.predict("runs/all", "inbox"):
            print(each.path, each.label or each.fault)

    Args:
        run: The folder `dspreg train` left; every file of it is verified.
        images: Image files, or folders of them.
        which: The `"selected"` model, the `"last"`, or an evaluated step, as in `dspreg.load`.
        batch: Images at a time.
        device: Where the model runs; `"auto"`: on cuda, mps or the CPU, whichever is there first.
        progress: Called with the number of files done and of all.
        trust: Modules of methods of your own, as in `dspreg.load`.

    Returns:
        One prediction per file. A file that is not a usable image has a `fault` instead of probabilities.
    """
    device = resolve_device(device)
    model, loaded = load(run, which, device, trust=trust)
    transform = require_images(model, loaded, run, "predict")
    files = image_files([images] if isinstance(images, str | Path) else images)
    return predict_files(model, transform, files, batch=batch, device=device, progress=progress)


def predict_files(
    model: Model,
    transform: Transform,
    files: Sequence[Path],
    *,
    batch: int = 64,
    device: str = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> list[Prediction]:
    """One per file, in their order. A file that is no usable image has its fault instead of probabilities.

    In evaluation mode, where how images are batched changes no more than the rounding. The exceptions are ARM and MTL:
    they adapt to the images of a batch, in the order of the files.

    Args:
        model: As `dspreg.load` returns it.
        transform: The other half of that.
        files: Image files.
        batch: Images at a time.
        device: Where the model is.
        progress: Called with the number of files done and of all.
    """
    result: list[Prediction] = []
    with evaluation_mode(model), torch.no_grad(), full_precision(torch.device(device).type):
        for start in range(0, len(files), batch):
            result += _batch(model, transform, files[start : start + batch], device)
            if progress is not None:
                progress(len(result), len(files))
    return result


def _batch(model: Model, transform: Transform, files: Sequence[Path], device: str) -> list[Prediction]:
    pixels, faults = {}, {}
    for path in files:
        try:
            pixels[path] = transform.pixels(decode_image(path))
        except BadImage as bad:
            faults[path] = bad.reason
    probabilities: dict[Path, tuple[float, ...]] = {}
    if pixels:
        x = transform.normalise(send(torch.stack(list(pixels.values())), device))
        rows = model(x).cpu().double().softmax(1)
        for path, row in zip(pixels, rows, strict=True):
            if row.isfinite().all():
                probabilities[path] = tuple(row.tolist())
            else:
                faults[path] = "the model's outputs for it are not finite"
    return [Prediction(path, probabilities.get(path, ()), faults.get(path, ""), model.classes) for path in files]
