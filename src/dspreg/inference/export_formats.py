"""The three files that a model can be exported to, each with a reader of its own."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from dspreg.errors import ConfigError
from dspreg.inference.weight_layouts import Layout, layouts
from dspreg.randomness import generator
from dspreg.training.model import Model

ENTRY = "dspreg"  # under which every file describes itself
EQUAL = 1e-6  # weights in the same operations: no more than another order of a sum

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class ModelFile:
    """The bytes of a file, and how it is read by a reader of its own."""

    data: bytes
    read: Callable[[Path], Function]
    code: str


def serialize_model(
    module: nn.Module, model: Model, how: dict[str, Any], about_run: dict[str, Any], format: str
) -> ModelFile:
    if format == "safetensors":
        return _weights(model, how, about_run)
    images = random_images(2, how.get("channels", 3), how["image_size"])
    shapes = ({0: torch.export.Dim("batch", min=1)},)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about what torch will change one day
        try:
            if format == "onnx":
                return _onnx(module, images, shapes, about_run)
            return _program(module, images, shapes, about_run)
        except Exception as error:  # a tracer may stumble over anything that a network does
            said = str(error).strip().partition("\n")[0] or type(error).__name__
            raise ConfigError(f"torch can't export {how['model']} as {format}: {said}") from error


def _weights(model: Model, how: dict[str, Any], about_run: dict[str, Any]) -> ModelFile:
    net, images = model.algorithm.net, random_images(3, how.get("channels", 3), how["image_size"])
    try:
        alone = difference(net, model, images) <= EQUAL
    except RuntimeError:  # it takes other inputs than images
        alone = False
    if not alone:
        raise ConfigError(
            f"{how['algorithm']} predicts by more than its network, so that the weights alone are not the model; use "
            f"--format torch.export or onnx"
        )
    for layout in layouts(net, how["model"], how["image_size"], how.get("channels", 3)):
        if difference(_loaded(layout, layout.tensors), model, images) <= EQUAL:
            about = json.dumps(about_run | {"load": layout.code}, ensure_ascii=False, sort_keys=True)
            # one entry, because safetensors writes several in an order that changes from process to process
            data = save(layout.tensors, {ENTRY: about})
            return ModelFile(data, partial(_read_weights, layout), layout.code)
    raise ConfigError(f"{how['model']} can't be loaded by timm alone; use --format torch.export or onnx")


def _read_weights(layout: Layout, path: Path) -> Function:
    return _loaded(layout, load_file(path))


def _loaded(layout: Layout, tensors: dict[str, Tensor]) -> nn.Module:
    fresh = layout.fresh()
    fresh.load_state_dict(tensors)
    return fresh.eval()


def _program(module: nn.Module, images: Tensor, shapes: Any, about_run: dict[str, Any]) -> ModelFile:
    code = 'import torch\n\nmodel = torch.export.load("FILE").module()\nlogits = model(images)\n'
    program = torch.export.export(module, (images,), dynamic_shapes=shapes)
    out = io.BytesIO()
    torch.export.save(program, out, extra_files={f"{ENTRY}.json": json.dumps(about_run | {"load": code})})
    return ModelFile(out.getvalue(), lambda path: torch.export.load(path).module(), code)


def _onnx(module: nn.Module, images: Tensor, shapes: Any, about_run: dict[str, Any]) -> ModelFile:
    code = 'import onnxruntime\n\nmodel = onnxruntime.InferenceSession("FILE")\n'
    code += 'logits = model.run(None, {"images": images})[0]\n'
    program = torch.onnx.export(
        module, (images,), dynamo=True, dynamic_shapes=shapes, input_names=["images"], output_names=["logits"],
        verbose=False,
    )  # fmt: skip
    assert program is not None
    proto = program.model_proto
    entry = proto.metadata_props.add()
    entry.key, entry.value = ENTRY, json.dumps(about_run | {"load": code})
    return ModelFile(proto.SerializeToString(), _session, code)


def _session(path: Path) -> Function:
    import onnxruntime

    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    return lambda x: torch.from_numpy(session.run(None, {"images": x.numpy()})[0])


def difference(a: Function, b: Function, images: Tensor) -> float:
    """The largest difference of two functions' logits, relative to the largest logit."""
    ours, theirs = a(images).double(), b(images).double()
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1e-30))


def random_images(n: int, channels: int, size: int) -> Tensor:
    return torch.rand(n, channels, size, size, generator=generator("export", n))


def require_onnx() -> None:
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
    if missing:
        raise ConfigError(f"--format onnx needs {', '.join(missing)}: pip install 'dspreg[onnx]'")
