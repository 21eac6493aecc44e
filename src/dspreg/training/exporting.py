"""A trained run as a file for other programs, compared with the run before it appears."""

from __future__ import annotations

import io
import json
import os
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from dspreg import __version__
from dspreg.errors import ConfigError, IntegrityError
from dspreg.files import refusals, write
from dspreg.randomness import generator
from dspreg.store import RunFolder
from dspreg.training.layouts import Layout, layouts
from dspreg.training.model import Model
from dspreg.training.saved import built, contents, model_file

FORMAT = "dspreg.export/1"
ENDINGS = {"safetensors": ".safetensors", "torch.export": ".pt2", "onnx": ".onnx"}
TOLERANCE = {"safetensors": 1e-6, "torch.export": 1e-6, "onnx": 1e-4}  # onnxruntime has kernels of its own
SIZES = (1, 2, 5)  # of batches that are compared; traced is 2
ENTRY = "dspreg"  # under which every file describes itself

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Exported:
    """A file that was read back and gave the logits of the run.

    Attributes:
        path: Of the file.
        difference: The largest difference of a logit, relative to the largest logit.
        code: Python that loads it, FILE standing for the file.
    """

    path: Path
    difference: float
    code: str


class Normalised(nn.Module):
    """RGB images (B, 3, H, W) of values 0 … 1 to logits: the model with its normalisation before it."""

    def __init__(self, model: nn.Module, mean: tuple[float, ...], std: tuple[float, ...]):
        super().__init__()
        self.model = model
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(mean).view(3, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.model((x - self.mean) / self.std))


def export(
    run: str | Path, format: str, out: str | Path | None = None, *, which: str = "selected", normalise: bool = False
) -> Exported:
    """Write the model of a finished run for other programs, read the file back and compare.

    The file appears under its name when its logits have been found equal to the run's, for batches of 1, 2 and 5
    random images; before that, nothing is there, or what was there before.

    Args:
        run: The folder `dspreg train` left.
        format: `"safetensors"`, weights by timm's own names; `"torch.export"`, a program that needs torch alone;
            `"onnx"`, for onnxruntime and others.
        out: The file; `RUN/exported/selected.onnx` and the like if it is left out.
        which: The `"selected"` model, or that of the `"last"` step.
        normalise: Take images of values 0 … 1 and normalise them inside. Not for safetensors, which holds no program.

    Raises:
        IntegrityError: What was written does not give the same logits; the file is gone.
        ConfigError: The model can't be written in this format, or a package is missing.
    """
    if format not in ENDINGS:
        raise ConfigError(f"format {format!r}; wanted {', '.join(ENDINGS)}")
    if normalise and format == "safetensors":
        raise ConfigError("safetensors holds weights and no program that could normalise; use torch.export or onnx")
    if format == "onnx":
        _require_onnx()
    source = model_file(run, which)
    name = f"{which}-normalising" if normalise else which
    path = Path(out) if out else Path(run) / "exported" / f"{name}{ENDINGS[format]}"
    if path.suffix != ENDINGS[format]:
        raise ConfigError(f"--out {str(path)!r}; a {format} file ends in {ENDINGS[format]}")
    model, transform = built(source)
    how, _ = contents(source)
    module: nn.Module = Normalised(model, transform.mean, transform.std).eval() if normalise else model
    told = _told(RunFolder(run), how, which, normalise)
    with torch.no_grad():
        made = _written(module, model, how, told, format)
        return Exported(path, _kept(made, module, path, how["image_size"], TOLERANCE[format]), made.code)


@dataclass(frozen=True)
class Made:
    """The bytes of a file, and how it is read by a reader of its own."""

    data: bytes
    read: Callable[[Path], Function]
    code: str


def _written(module: nn.Module, model: Model, how: dict[str, Any], told: dict[str, Any], format: str) -> Made:
    if format == "safetensors":
        return _weights(model, how, told)
    images = _images(2, how["image_size"])
    shapes = ({0: torch.export.Dim("batch", min=1)},)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about what torch will change one day
        try:
            if format == "onnx":
                return _onnx(module, images, shapes, told)
            return _program(module, images, shapes, told)
        except Exception as error:  # a tracer may stumble over anything that a network does
            said = str(error).strip().partition("\n")[0] or type(error).__name__
            raise ConfigError(f"torch can't export {how['model']} as {format}: {said}") from error


def _weights(model: Model, how: dict[str, Any], told: dict[str, Any]) -> Made:
    net, images = model.algorithm.net, _images(3, how["image_size"])
    if _difference(net, model, images) > TOLERANCE["safetensors"]:
        raise ConfigError(
            f"{how['algorithm']} predicts by more than its network, so that the weights alone are not the model; use "
            f"--format torch.export or onnx"
        )
    for layout in layouts(net, how["model"], how["image_size"]):
        if _difference(_loaded(layout, layout.tensors), model, images) <= TOLERANCE["safetensors"]:
            about = json.dumps(told | {"load": layout.code}, ensure_ascii=False, sort_keys=True)
            # one entry, because safetensors writes several in an order that changes from process to process
            data = save(layout.tensors, {ENTRY: about})
            return Made(data, partial(_read_weights, layout), layout.code)
    raise ConfigError(f"{how['model']} can't be loaded by timm alone; use --format torch.export or onnx")


def _read_weights(layout: Layout, path: Path) -> Function:
    return _loaded(layout, load_file(path))


def _loaded(layout: Layout, tensors: dict[str, Tensor]) -> nn.Module:
    fresh = layout.fresh()
    fresh.load_state_dict(tensors)
    return fresh.eval()


def _program(module: nn.Module, images: Tensor, shapes: Any, told: dict[str, Any]) -> Made:
    code = 'import torch\n\nmodel = torch.export.load("FILE").module()\nlogits = model(images)\n'
    program = torch.export.export(module, (images,), dynamic_shapes=shapes)
    out = io.BytesIO()
    torch.export.save(program, out, extra_files={f"{ENTRY}.json": json.dumps(told | {"load": code})})
    return Made(out.getvalue(), lambda path: torch.export.load(path).module(), code)


def _onnx(module: nn.Module, images: Tensor, shapes: Any, told: dict[str, Any]) -> Made:
    code = (
        'import onnxruntime\n\nmodel = onnxruntime.InferenceSession("FILE")\n# model.run(None, {"images": images})[0]\n'
    )
    program = torch.onnx.export(
        module, (images,), dynamo=True, dynamic_shapes=shapes, input_names=["images"], output_names=["logits"],
        verbose=False,
    )  # fmt: skip
    assert program is not None
    proto = program.model_proto
    entry = proto.metadata_props.add()
    entry.key, entry.value = ENTRY, json.dumps(told | {"load": code})
    return Made(proto.SerializeToString(), _session, code)


def _session(path: Path) -> Function:
    import onnxruntime

    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    return lambda x: torch.from_numpy(session.run(None, {"images": x.numpy()})[0])


def _kept(made: Made, module: nn.Module, path: Path, image_size: int, tolerance: float) -> float:
    """Write under another name, compare, and only then give the file its name. Returns the largest difference."""
    with refusals(path, len(made.data)):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".export-") as folder:
            unfinished = Path(folder) / path.name
            write(unfinished, made.data)
            found = _compared(made, unfinished, module, image_size)
            if not all(each <= tolerance for each in found):  # not the largest alone: what is not a number has none
                raise IntegrityError(
                    f"the exported model does not give the logits of the run: for batches of "
                    f"{', '.join(map(str, SIZES))} images they differ by {', '.join(f'{d:.2g}' for d in found)} of the "
                    f"largest, more than {tolerance:g}. Nothing was kept; please report it with the network's name"
                )
            os.replace(unfinished, path)
    return max(found)


def _compared(made: Made, path: Path, module: nn.Module, image_size: int) -> list[float]:
    """The difference for every size of batch."""
    try:
        read = made.read(path)
        return [_difference(read, module, _images(n, image_size)) for n in SIZES]
    except OSError:
        raise
    except Exception as error:  # readers of other people raise errors of their own
        said = str(error).strip().partition("\n")[0] or type(error).__name__
        raise IntegrityError(f"the exported model can't be read back and run: {said}. Nothing was kept") from error


def _difference(a: Function, b: Function, images: Tensor) -> float:
    """The largest difference of two functions' logits, relative to the largest logit."""
    ours, theirs = a(images).double(), b(images).double()
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1e-30))


def _images(n: int, size: int) -> Tensor:
    return torch.rand(n, 3, size, size, generator=generator("export", n))


def _told(folder: RunFolder, how: dict[str, Any], which: str, normalise: bool) -> dict[str, Any]:
    """What a user of the file must know."""
    size = how["image_size"]
    values = "values 0 … 1" if normalise else "values 0 … 1, then (x − mean) / std per channel"
    return {
        "format": FORMAT,
        "dspreg": __version__,
        "run": folder.description()["id"],
        "which": which,
        "input": f"images (B, 3, {size}, {size}), float32: RGB, resized to {size} × {size} (bilinear), {values}",
        "output": "logits (B, C), one column per class; softmax makes them probabilities",
        **{key: how[key] for key in ("model", "algorithm", "step", "classes", "image_size", "mean", "std")},
    }


def _require_onnx() -> None:
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
    if missing:
        raise ConfigError(f"--format onnx needs {', '.join(missing)}: pip install 'dspreg[onnx]'")
