"""Classes of single images, from files that may be anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor

from dspreg.data.bands import Picture
from dspreg.data.decode import BadImage, decode_image
from dspreg.data.transforms import Transform
from dspreg.devices import resolve_device, send
from dspreg.errors import DataError
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
    unknown_below: float = 0.0  # probability below which it is better not called anything

    @property
    def label(self) -> str | None:
        """The most probable class; None for an image that could not be read."""
        return self.classes[self.best()] if self.probabilities else None

    @property
    def flag(self) -> str:
        """`"unreadable"`, `"unknown"` where the most probable class is too improbable, or nothing."""
        if self.fault:
            return "unreadable"
        return "unknown" if self.probabilities and max(self.probabilities) < self.unknown_below else ""

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
    unknown_below: float = 0.0,
) -> list[Prediction]:
    """Classify images with a trained model.

        for each in dspreg.predict("runs/all", "inbox"):
            print(each.path, each.label or each.fault)

    Args:
        run: The folder `dspreg train` left; every file of it is verified.
        images: Image files, folders of them, patterns such as `"inbox/*.jpg"`, or CSV files with a column of paths.
        which: The `"selected"` model, the `"last"`, or an evaluated step, as in `dspreg.load`.
        batch: Images at a time.
        device: Where the model runs; `"auto"`: on cuda, mps or the CPU, whichever is there first.
        progress: Called with the number of files done and of all.
        trust: Modules of methods of your own, as in `dspreg.load`.
        unknown_below: Flag images whose most probable class is less probable.

    Returns:
        One prediction per file. A file that is not a usable image has a `fault` instead of probabilities.
    """
    device = resolve_device(device)
    model, loaded = load(run, which, device, trust=trust)
    transform = require_images(model, loaded, run, "predict")
    files = image_files([images] if isinstance(images, str | Path) else images, transform.reading.kinds)
    how: dict[str, Any] = {"batch": batch, "device": device, "progress": progress, "unknown_below": unknown_below}
    return predict_files(model, transform, files, **how)


def predict_files(
    model: Model,
    transform: Transform,
    files: Sequence[Path],
    *,
    batch: int = 64,
    device: str = "cpu",
    progress: Callable[[int, int], None] | None = None,
    unknown_below: float = 0.0,
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
        unknown_below: Flag images whose most probable class is less probable.
    """
    result: list[Prediction] = []
    with evaluation_mode(model), torch.no_grad(), full_precision(torch.device(device).type):
        for start in range(0, len(files), batch):
            found = _batch(model, transform, files[start : start + batch], device)
            result += [replace(each, unknown_below=unknown_below) for each in found] if unknown_below else found
            if progress is not None:
                progress(len(result), len(files))
    return result


@dataclass(frozen=True)
class PredictedBatch:
    """What a model says about images, in their order.

    Attributes:
        labels: The most probable class of each; None for what could not be read.
        probabilities: (N, C); NaN for what could not be read.
        flags: `"unknown"`, `"unreadable: …"` with the reason, or nothing.
        classes: What the columns are.
    """

    labels: tuple[str | None, ...]
    probabilities: np.ndarray
    flags: tuple[str, ...]
    classes: tuple[str, ...]


def predict_batch(
    model: Model,
    transform: Transform,
    images: Any,
    *,
    unknown_below: float = 0.0,
    batch: int = 64,
) -> PredictedBatch:
    """As `LoadedModel.predict`, which has the arguments."""
    if isinstance(images, Tensor) and images.ndim != 4:
        raise DataError(f"a tensor of shape {tuple(images.shape)}; wanted transformed images (B, 3, H, W)")
    items = [images] if isinstance(images, str | Path | Image) else list(images)
    device = next(model.parameters()).device
    rows, reasons = np.full((len(items), len(model.classes)), np.nan), [""] * len(items)
    with evaluation_mode(model), torch.no_grad(), full_precision(device.type):
        for start in range(0, len(items), batch):
            shown: dict[int, Tensor] = {}
            for i, each in enumerate(items[start : start + batch], start):
                try:
                    shown[i] = (
                        each
                        if isinstance(each, Tensor)
                        else transform.normalise(transform.pixels(_opened(each, transform)))
                    )
                except BadImage as bad:
                    reasons[i] = f"unreadable: {bad.reason}"
            if shown:
                logits = model(torch.stack(list(shown.values())).to(device))
                rows[list(shown)] = logits.cpu().double().softmax(1).numpy()
    for i in map(int, np.flatnonzero(np.isnan(rows).any(1))):
        reasons[i] = reasons[i] or "unreadable: the model's outputs for it are not finite"
    labels = [None if reason else model.classes[row.argmax()] for row, reason in zip(rows, reasons, strict=True)]
    flags = [r or ("unknown" if row.max() < unknown_below else "") for row, r in zip(rows, reasons, strict=True)]
    return PredictedBatch(tuple(labels), rows, tuple(flags), model.classes)


def _opened(image: Any, transform: Transform) -> Picture:
    if isinstance(image, str | Path):
        return decode_image(Path(image), transform.reading)
    if not isinstance(image, Image):
        raise DataError(f"a {type(image).__name__}; wanted a PIL image, a path, or transformed images (B, 3, H, W)")
    return image


def _batch(model: Model, transform: Transform, files: Sequence[Path], device: str) -> list[Prediction]:
    pixels, faults = {}, {}
    for path in files:
        try:
            pixels[path] = transform.pixels(decode_image(path, transform.reading))
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
