"""A trained stack as tensors, and back: what predicts is what is saved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from dspreg.algorithms import Task, parse
from dspreg.algorithms.base import Algorithm
from dspreg.algorithms.compatibility import overrides
from dspreg.config.trained_part import TrainedPart
from dspreg.errors import ConfigError, IntegrityError
from dspreg.io.importing import Trust
from dspreg.kinds import CLASSES
from dspreg.networks.pretrained import make_backbone
from dspreg.networks.shapes import shapes_alone
from dspreg.sensitivity.evaluation_mode import evaluation_mode
from dspreg.training.adam import Adam
from dspreg.training.trained_part import freeze
from dspreg.vectors import ParamVector, trainable

MODEL = "dspreg.model/1"  # the format of a model's file
BUILT = ("algorithm", "model", "image_size", "dropout", "frozen_bn")  # settings that make the network
BUILT_LATER = ("features", "train")  # the same, left out where they are what they were before; of train lora alone
BESIDE = "stack."  # prefix of tensors that layers hold in addition to the network
NUMBERS = {bool: torch.bool, int: torch.int64, float: torch.float64}  # saved as tensors without dimensions


def tensors_of(algorithm: Algorithm) -> dict[str, Tensor]:
    """The tensors that prediction needs, on the CPU: those of the network, and as `stack.…` those of the layers.

    The latter are modules and buffers, and the `saved_attributes` of layers that override `predict`: a vector becomes
    one tensor per parameter, a number a tensor without dimensions; None is omitted.

    Raises:
        ConfigError: A layer that overrides `predict` has state of another kind.
    """
    found = _modules_and_buffers(algorithm) | saved_attributes_of(algorithm)
    return {name: t.detach().to("cpu", copy=True).contiguous() for name, t in found.items()}


def saved_attributes_of(algorithm: Algorithm) -> dict[str, Tensor]:
    """The `saved_attributes` of layers that override `predict`; a ConfigError if one can't be saved."""
    found: dict[str, Tensor] = {}
    for start, layer, name in _attributes(algorithm):
        value = getattr(layer, name)
        if isinstance(value, ParamVector):
            found |= {f"{start}.{param}": t for param, t in value.items()}
        elif isinstance(value, Tensor):
            found[start] = value
        elif type(value) in NUMBERS:
            found[start] = torch.tensor(value, dtype=NUMBERS[type(value)])
        elif value is not None:
            raise ConfigError(
                f"{type(layer).__name__} predicts, and its {name} is a {type(value).__name__}, which a model file does "
                "not hold; make it a ParamVector, a tensor, a number or a module"
            )
    return found


def load_tensors(algorithm: Algorithm, tensors: Mapping[str, Tensor], where: str) -> None:
    """Inverse of `tensors_of`, for a model that predicts.

    Checks all names, shapes and dtypes before it loads anything.
    """
    values = match_tensors(algorithm, tensors, where)
    own = _modules_and_buffers(algorithm)
    algorithm.net.load_state_dict({n: tensors[n] for n in own if not n.startswith(BESIDE)})
    beside = {n.removeprefix(BESIDE): tensors[n] for n in own if n.startswith(BESIDE)}
    algorithm.load_state_dict(beside, strict=False)
    for (_, layer, name), value in zip(_attributes(algorithm), values, strict=True):
        setattr(layer, name, value)
    for layer in algorithm.layers():
        layer.on_load()


def match_tensors(algorithm: Algorithm, tensors: Mapping[str, Tensor], where: str) -> list[Any]:
    """Check that tensors have the names, shapes and dtypes of a stack, which may be on the device `meta`.

    Returns:
        The values of the stack's attributes.
    """
    own, attributes = _modules_and_buffers(algorithm), list(_attributes(algorithm))
    params = trainable(algorithm.net)

    def is_attribute(name: str) -> bool:
        return any(name == start or name in {f"{start}.{param}" for param in params} for start, _, _ in attributes)

    rest = {name: t for name, t in tensors.items() if name not in own and is_attribute(name)}
    for name in sorted({*own, *tensors.keys() - rest.keys()}):
        ours, theirs = (str((tuple(d[name].shape), d[name].dtype)) if name in d else None for d in (own, tensors))
        if ours != theirs:
            raise IntegrityError(f"{where}: the tensor {name} is {theirs or 'missing'}; the model has {ours or 'none'}")
    return [_attribute(layer, name, start, rest, where) for start, layer, name in attributes]


def load_stack(
    how: Mapping[str, Any], tensors: Mapping[str, Tensor], where: str, device: str = "cpu", *, trust: Trust = ()
) -> Algorithm:
    """A trained stack, built from the contents of a model file alone.

    Args:
        how: How to build the network, as in `build_stack`.
        tensors: As returned by `tensors_of`.
        where: Their source, for error messages.
        device: Device of the stack.
        trust: Modules of networks of your own that `how` may name; None if it comes from no file.
    """
    algorithm = build_stack(how, device, width_in(tensors), trust=trust)
    load_tensors(algorithm, tensors, where)
    return algorithm


def build_stack(
    how: Mapping[str, Any], device: str = "cpu", width: int | None = None, *, trust: Trust = ()
) -> Algorithm:
    """A stack with newly initialised weights.

    Args:
        how: How to build the network: "algorithm", "model", "image_size", "dropout", "frozen_bn", "classes", "domains",
            "step", and what of `BUILT_LATER` and "channels" there is.
        device: Device of the stack. On `meta` it has shapes only and takes no memory.
        width: The number of features that its tensors are for, if that is known: see `make_backbone`.
        trust: As in `load_stack`.
    """
    with shapes_alone():  # its width comes from a forward pass, which takes memory if images are large
        backbone = make_backbone(
            how["model"],
            weights="none",
            image_size=how["image_size"],
            dropout=how["dropout"],
            frozen_bn=how["frozen_bn"],
            channels=how.get("channels", 3),
            features=how.get("features", "default"),
            width=width,
            trust=trust,
        )
    part = TrainedPart.parse(how.get("train", "all"))
    task = Task(
        len(how["classes"]), tuple(how["domains"]), 1, backbone.make, samples=_no_images,
        kind=how.get("kind", CLASSES),
        adapt=lambda net: freeze(net, part, how["model"]),
    )  # fmt: skip
    with shapes_alone() if device == "meta" else nullcontext():
        algorithm = parse(how["algorithm"], of_file=True).setup(task, Adam, device)
    algorithm.stack.steps = how["step"] + 1  # a prediction may depend on it
    return algorithm


def width_in(tensors: Mapping[str, Tensor]) -> int | None:
    """The number of features that a classifier among the tensors takes, if it is a linear one."""
    weight = tensors.get("classifier.weight")
    return weight.shape[1] if weight is not None and weight.ndim == 2 else None


def _no_images(t: int, batches: int) -> Any:
    raise RuntimeError(f"a loaded model has no images to measure on (step {t}, {batches} batches); use dspreg.measure")


def _modules_and_buffers(algorithm: Algorithm) -> dict[str, Tensor]:
    net = dict(algorithm.net.state_dict())
    inside = {id(t) for t in algorithm.net.state_dict(keep_vars=True).values()}
    others = {
        BESIDE + name: t
        for name, t in algorithm.state_dict(keep_vars=True).items()
        if isinstance(t, Tensor) and id(t) not in inside
    }
    return net | others


def _attributes(algorithm: Algorithm) -> Iterator[tuple[str, Algorithm, str]]:
    """Name in the file, layer, and name in the layer of every attribute that a prediction may need."""
    path = BESIDE
    for layer in algorithm.layers():
        if overrides(type(layer), "predict"):
            known = {*layer._buffers, *layer._parameters, *layer._modules}
            for name in layer.saved_attributes:
                if name not in known:
                    yield path + name, layer, name
        path += "base."


def _attribute(layer: Algorithm, name: str, start: str, tensors: Mapping[str, Tensor], where: str) -> Any:
    """The value of one attribute, of the same kind as in a new layer."""
    now, params = getattr(layer, name), trainable(layer.net)
    prefix = f"{start}."
    parts = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
    if parts or (isinstance(now, ParamVector) and start not in tensors):
        for param, t in parts.items():
            if t.shape != params[param].shape:
                shapes = f"{tuple(t.shape)}; the parameter has {tuple(params[param].shape)}"
                raise IntegrityError(f"{where}: the tensor {prefix}{param} is {shapes}")
            if not t.is_floating_point():
                raise IntegrityError(f"{where}: the tensor {prefix}{param} is {t.dtype}; wanted floating point")
        return ParamVector((param, t.to(params[param].device, copy=True)) for param, t in parts.items())
    if start not in tensors:
        if now is None:
            return None
        raise IntegrityError(f"{where}: the tensor {start} is missing; {type(layer).__name__} needs it to predict")
    value = tensors[start]
    wanted = now.dtype if isinstance(now, Tensor) else NUMBERS.get(type(now))
    if wanted not in (None, value.dtype):
        raise IntegrityError(f"{where}: the tensor {start} is {value.dtype}; wanted {wanted}")
    if value.ndim == 0 and not isinstance(now, Tensor):
        return value.item()
    return value.to(next(layer.net.parameters()).device, copy=True)


def require_same_predictions(algorithm: Algorithm, loaded: Algorithm, x: Tensor) -> None:
    """Require that the loaded model predicts the same as the trained one; otherwise the run can't finish.

    Args:
        algorithm: The trained stack.
        loaded: The stack that `load_stack` built from the file.
        x: Images, transformed.
    """
    with evaluation_mode(algorithm), evaluation_mode(loaded), torch.no_grad():
        ours, theirs = algorithm.predict(x), loaded.predict(x)
    if float((ours - theirs).abs().max()) > 1e-4 * float(ours.abs().max()):
        names = [type(layer).__name__ for layer in algorithm.layers() if overrides(type(layer), "predict")]
        raise ConfigError(
            f"the saved model does not predict what the trained one does: {' or '.join(names[:-1])} predicts with "
            "something that is not saved. Make it a module or a buffer of the layer, or name it in saved_attributes; "
            "check_algorithm finds it before training"
        )


class Model(nn.Module):
    """Images (B, channels, H, W), transformed, to logits (B, C): what a trained stack predicts.

    Of another `kind` of task, outputs are what it says: logits of several labels, or numbers.
    """

    def __init__(self, algorithm: Algorithm, classes: tuple[str, ...], kind: str = CLASSES):
        super().__init__()
        self.algorithm = algorithm
        self.classes = classes
        self.kind = kind
        self.temperature = 1.0  # what logits are divided by, where the run was calibrated

    def forward(self, x: Tensor) -> Tensor:
        logits = self.algorithm.predict(x)
        return logits if self.temperature == 1.0 else logits / self.temperature
