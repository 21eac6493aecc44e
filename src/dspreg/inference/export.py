"""A trained run as a file for other programs, compared with the run before it appears."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from dspreg import __version__
from dspreg.config.reading import READ
from dspreg.data.transforms import Transform
from dspreg.errors import ConfigError, IntegrityError
from dspreg.inference.export_formats import EQUAL, ModelFile, difference, random_images, require_onnx, serialize_model
from dspreg.inference.load import require_images
from dspreg.io.atomic_files import make_folder, os_errors_as_cant_write, require_folder, write, write_output
from dspreg.runs.calibration_file import temperature_of
from dspreg.runs.folder import RunFolder
from dspreg.runs.model_file import model_file
from dspreg.training.model import Model
from dspreg.training.stored_model import load_model_file, read_model_file
from dspreg.training.trained_part import merge_adapters

FORMAT = "dspreg.export/1"
ENDINGS = {"safetensors": ".safetensors", "torch.export": ".pt2", "onnx": ".onnx"}
TOLERANCE = {"safetensors": EQUAL, "torch.export": EQUAL, "onnx": 1e-4}  # onnxruntime has kernels of its own
SIZES = (1, 2, 5)  # of batches that are compared; traced is 2


@dataclass(frozen=True)
class ExportedFile:
    """A file that was read back and gave the logits of the run.

    Attributes:
        path: Of the file.
        difference: The largest difference of a logit, relative to the largest logit.
        code: Python that loads it, FILE standing for the file.
    """

    path: Path
    difference: float
    code: str


class NormalizedModel(nn.Module):
    """Images (B, channels, H, W) of values 0 … 1 to logits: the model with its normalisation before it."""

    def __init__(self, model: nn.Module, mean: tuple[float, ...], std: tuple[float, ...]):
        super().__init__()
        self.model = model
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.model((x - self.mean) / self.std))


def export(
    run: str | Path,
    format: str,
    out: str | Path | None = None,
    *,
    which: str = "selected",
    normalise: bool = False,
    trust: Sequence[str] = (),
) -> ExportedFile:
    """Write the model of a finished run for other programs, read the file back and compare.

    The file appears under its name when its logits have been found equal to the run's, for batches of 1, 2 and 5
    random images; before that, nothing is there, or what was there before. Adapters are merged into their layers.

    Args:
        run: The folder `dspreg train` left.
        format: `"safetensors"`, weights by timm's own names; `"torch.export"`, a program that needs torch alone;
            `"onnx"`, for onnxruntime and others.
        out: The file; `RUN/exported/selected.onnx` and the like if it is left out.
        which: The `"selected"` model, that of the `"last"` step, or an evaluated step, as in `load`.
        normalise: Take images of values 0 … 1 and normalise them inside. Not for safetensors, which holds no program.
        trust: Modules of methods of your own, as in `load`.

    Raises:
        IntegrityError: What was written does not give the same logits; the file is gone.
        ConfigError: The model can't be written in this format, or a package is missing.
    """
    if format not in ENDINGS:
        raise ConfigError(f"format {format!r}; wanted {', '.join(ENDINGS)}")
    if normalise and format == "safetensors":
        raise ConfigError("safetensors holds weights and no program that could normalise; use torch.export or onnx")
    if format == "onnx":
        require_onnx()
    source = model_file(run, which)
    name = f"{which}-normalising" if normalise else which
    path = Path(out) if out else Path(run) / "exported" / f"{name}{ENDINGS[format]}"
    if not out:
        require_folder(path.parent)  # a run may come from a stranger
    if path.suffix != ENDINGS[format]:
        raise ConfigError(f"--out {str(path)!r}; a {format} file ends in {ENDINGS[format]}")
    model, loaded = load_model_file(source, trust=trust)
    transform = require_images(model, loaded, run, "export")
    merge_adapters(model)
    calibrated = model.temperature = temperature_of(run, source.relative_to(run).as_posix())
    if format == "safetensors":
        model = with_temperature_inside(model)
    how, _ = read_model_file(source)
    module: nn.Module = NormalizedModel(model, transform.mean, transform.std).eval() if normalise else model
    about_run = _description(RunFolder(run), how, transform, which, normalise) | {"temperature": calibrated}
    with torch.no_grad():
        made = serialize_model(module, model, how, about_run, format)
        largest = _compare_logits(made, module, path, (transform.channels, transform.size), TOLERANCE[format])
    if out:
        write_output(path, made.data)
    else:
        write(path, made.data)
    return ExportedFile(path, largest, made.code)


def with_temperature_inside(model: Model) -> Model:
    """A model whose classifier divides by the temperature itself: a file of weights holds no division.

    Raises:
        ConfigError: Its classifier is not linear.
    """
    if model.temperature == 1.0:
        return model
    model = deepcopy(model)
    head = model.algorithm.net.classifier
    if not isinstance(head, nn.Linear):
        raise ConfigError(
            "the run is calibrated, and its classifier is not linear, so that a file of weights can't divide by the "
            "temperature; use --format torch.export or onnx"
        )
    with torch.no_grad():
        for each in (head.weight, head.bias):
            each.div_(model.temperature)
    model.temperature = 1.0
    return model


def _compare_logits(made: ModelFile, module: nn.Module, path: Path, shape: tuple[int, int], tolerance: float) -> float:
    """Write the file under another name, and compare. Returns the largest difference."""
    make_folder(path.parent)
    with (
        os_errors_as_cant_write(path, len(made.data)),
        tempfile.TemporaryDirectory(dir=path.parent, prefix=".export-") as folder,
    ):
        unfinished = Path(folder) / path.name
        write(unfinished, made.data)
        found = _compared(made, unfinished, module, shape)
        if not all(each <= tolerance for each in found):  # not the largest alone: what is not a number has none
            raise IntegrityError(
                f"the exported model does not give the logits of the run: for batches of "
                f"{', '.join(map(str, SIZES))} images they differ by {', '.join(f'{d:.2g}' for d in found)} of the "
                f"largest, more than {tolerance:g}. Nothing was kept; please report it with the network's name"
            )
    return max(found)


def _compared(made: ModelFile, path: Path, module: nn.Module, shape: tuple[int, int]) -> list[float]:
    """The difference for every size of batch."""
    try:
        read = made.read(path)
        return [difference(read, module, random_images(n, *shape)) for n in SIZES]
    except OSError:
        raise
    except Exception as error:  # readers of other people raise errors of their own
        said = str(error).strip().partition("\n")[0] or type(error).__name__
        raise IntegrityError(f"the exported model can't be read back and run: {said}. Nothing was kept") from error


def _description(
    folder: RunFolder, how: dict[str, Any], transform: Transform, which: str, normalise: bool
) -> dict[str, Any]:
    """What a user of the file must know."""
    size, reading = transform.size, transform.reading
    channels = {1: "grey", 3: "RGB"}.get(reading.channels, f"{reading.channels} channels")
    square = {"squash": "resized to", "crop": "the middle square resized to", "pad": "padded with black, resized to"}
    before = ", turned as EXIF says" * reading.exif
    before += f", transparent ones on {reading.alpha}" * (reading.alpha != "drop" and reading.channels in (1, 3))
    before += f", shrunk by whole factors to {reading.shrink} pixels or more" * bool(reading.shrink)
    values = "values 0 … 1" if normalise else "values 0 … 1, then (x − mean) / std per channel"
    return {
        "format": FORMAT,
        "dspreg": __version__,
        "run": folder.description()["id"],
        "which": which,
        "input": f"images (B, {reading.channels}, {size}, {size}), float32: {channels}{before}, "
        f"{square[transform.resize]} {size} × {size} (bilinear), {values}",
        "output": "logits (B, C), one column per class; softmax makes them probabilities",
        **{key: how[key] for key in ("model", "algorithm", "step", "classes", "image_size", "mean", "std")},
        **{key: how[key] for key in READ if key in how},
    }
