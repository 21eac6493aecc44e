"""A model file that may come from anybody: what it says is checked before anything is made of it.

Its description is held to types and bounds, its names are imported from dspreg or from what the user trusts, and its
tensors are compared with the shapes of the network that it describes before that network takes memory.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from dspreg.algorithms import parse
from dspreg.config.reading import READ, Reading
from dspreg.config.train_config import TRAIN_OPTIONS
from dspreg.config.trained_part import TrainedPart
from dspreg.data.transforms import Transform, Unchanged
from dspreg.errors import ConfigError, DspregError, IntegrityError
from dspreg.io.atomic_files import read_regular_file
from dspreg.io.importing import is_trusted
from dspreg.kinds import CLASSES, KINDS
from dspreg.networks.own import is_own_network
from dspreg.specs import LOCATIONS, parse_stack
from dspreg.training.model import (
    BUILT,
    BUILT_LATER,
    MODEL,
    Model,
    build_stack,
    load_stack,
    match_tensors,
    width_in,
)
from dspreg.training.serialization import unpack
from dspreg.vectors import trainable

LARGEST = 10_000_000  # whole number in a spec: layers of a network, or steps
STEPS = 2**62
NAMES = {"classes": 1_000_000, "domains": 10_000}  # at most so many
LONGEST = 4_096  # characters of a name
# What goes wrong when a network is made of numbers that do not fit each other.
UNMADE = (
    DspregError, RuntimeError, ValueError, TypeError, AssertionError, LookupError, ArithmeticError, AttributeError,
    RecursionError, MemoryError,
)  # fmt: skip


def load_model_file(path: Path, device: str = "cpu", trust: Sequence[str] = ()) -> tuple[Model, Transform | Unchanged]:
    """From one model file, without its run; `trust` as in `dspreg.load`.

    Raises:
        IntegrityError: It is damaged, describes no network, holds the tensors of another one, or names code that is
            not trusted. The message names the file and the field.
    """
    how, tensors = read_model_file(path)
    _require_known(how["algorithm"], str(path), trust)
    if is_own_network(how["model"]) and not is_trusted(how["model"], trust):
        module = how["model"].rpartition(".")[0]
        raise IntegrityError(
            f"{path}: built.model is {how['model']!r}: code that is not dspreg's. If you know whose it is and trust "
            f"it, add --trust {module} (in Python: trust=({module!r},))"
        )
    _require_fit(how, tensors, str(path), trust)
    stack = load_stack(how, tensors, str(path), device, trust=trust)
    for name in trainable(stack.net):
        if not tensors[name].isfinite().all():
            raise IntegrityError(f"{path}: the tensor {name} has NaN or infinity in it")
    model, inputs = Model(stack, tuple(how["classes"]), how.get("kind", CLASSES)).eval(), how.get("inputs")
    if inputs is not None:
        return model, Unchanged(tuple(inputs["shape"]), torch.int64 if inputs["whole"] else torch.float32)
    return model, transform_of(how)


def transform_of(how: Mapping[str, Any]) -> Transform:
    """What the images of a model need, by its file's checked description: as those were read that it was trained on."""
    read = {name: how.get(name, TRAIN_OPTIONS[name].before) for name in READ} | {"image_size": how["image_size"]}
    mean, std = tuple(how["mean"]), tuple(how["std"])
    return Transform(how["image_size"], mean, std, resize=read["resize"], reading=Reading.of(read))


def read_model_file(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """How the network of a model file is made and what its outputs mean, checked; and its tensors."""
    saved, about = unpack(read_regular_file(path), str(path))
    if not isinstance(about, dict) or about.get("format") != MODEL:
        found = about.get("format") if isinstance(about, dict) else about
        raise IntegrityError(f"{path} is of the format {reprlib.repr(found)}; wanted {MODEL!r}")
    if not isinstance(saved, dict) or not {"built", "tensors"} <= saved.keys():
        raise IntegrityError(f"{path} is damaged: it says not how the network is made, or has no tensors")
    how, tensors = saved["built"], saved["tensors"]
    check_description(how, str(path))
    if not isinstance(tensors, dict) or not all(isinstance(n, str) for n in tensors):
        raise IntegrityError(f"{path}: tensors is {reprlib.repr(tensors)}; wanted tensors by name")
    for name, value in tensors.items():
        if not isinstance(value, Tensor):
            raise IntegrityError(f"{path}: tensors[{name!r}] is {reprlib.repr(value)}; wanted a tensor")
    return how, tensors


def check_description(how: Any, where: str) -> None:
    """Require of what a file says about its network that every field is there, of its type and within its bounds."""
    if not isinstance(how, dict):
        raise IntegrityError(f"{where}: built is {reprlib.repr(how)}; wanted how the network is made")
    for name in (*BUILT, "mean", "std", *NAMES, "step"):
        if name not in how:
            raise IntegrityError(f"{where}: built.{name} is missing")
    for name in (*BUILT, *(name for name in BUILT_LATER if name in how)):
        if how[name] is None:
            raise IntegrityError(f"{where}: built.{name} is None; wanted {TRAIN_OPTIONS[name].range}")
        try:
            TRAIN_OPTIONS[name].check(how[name])
            if name == "train":
                _require(TrainedPart.parse(how[name]).kind in ("all", "lora"), where, name, how[name], "all or lora")
        except (ConfigError, OverflowError) as error:
            raise IntegrityError(f"{where}: built.{name}: {error}") from None
    for name in READ:
        try:
            TRAIN_OPTIONS[name].check(how.get(name, TRAIN_OPTIONS[name].before))
        except (ConfigError, OverflowError) as error:
            raise IntegrityError(f"{where}: built.{name}: {error}") from None
    channels = how.get("channels", 3)
    count = "three" if channels == 3 else str(channels)
    for name, wanted in (("mean", f"{count} finite numbers"), ("std", f"{count} finite numbers above 0")):
        _require(_per_channel(how[name], channels, positive=name == "std"), where, name, how[name], wanted)
    for name, most in NAMES.items():
        _require(_names(how[name], most), where, name, how[name], f"1 to {most:,} different names")
    if how.get("kind", CLASSES) not in KINDS:
        _require(False, where, "kind", how["kind"], f"one of {', '.join(KINDS)}")
    if "inputs" in how:
        _require(
            _is_shape(how["inputs"]), where, "inputs", how["inputs"], "shape, whole numbers, and whether they are whole"
        )
    step = how["step"]
    _require(type(step) is int and 0 <= step < STEPS, where, "step", step, "a whole number, 0 or more")


def _require(fits: bool, where: str, name: str, value: Any, wanted: str) -> None:
    if not fits:
        raise IntegrityError(f"{where}: built.{name} is {reprlib.repr(value)}; wanted {wanted}")


def _is_shape(value: Any) -> bool:
    if not isinstance(value, dict) or value.keys() != {"shape", "whole"} or type(value["whole"]) is not bool:
        return False
    shape = value["shape"]
    return isinstance(shape, list | tuple) and len(shape) < 16 and all(type(n) is int and 0 <= n < 2**31 for n in shape)


def _per_channel(value: Any, channels: int, *, positive: bool) -> bool:
    if not isinstance(value, list | tuple) or len(value) != channels:
        return False
    typed = all(type(x) is float or (type(x) is int and abs(x) < 2**53) for x in value)
    return typed and all(math.isfinite(x) and (x > 0 or not positive) for x in value)


def _names(value: Any, most: int) -> bool:
    texts = isinstance(value, list | tuple) and all(isinstance(x, str) and len(x) <= LONGEST for x in value)
    return texts and 1 <= len(set(value)) == len(value) <= most


def _require_known(spec: str, where: str, trust: Sequence[str]) -> None:
    """Require that the methods exist and take these options, and import none that is not trusted."""
    try:
        for term in parse_stack(spec):
            for option, value in term.options.items():
                if isinstance(value, int) and abs(value) > LARGEST:
                    raise ConfigError(f"{term.name}: {option} is larger than {LARGEST:,}")
        parse(spec, trust, of_file=True)
    except IntegrityError as error:
        raise IntegrityError(f"{where}: built.algorithm: {error}") from None
    except UNMADE as error:
        raise IntegrityError(f"{where}: built.algorithm is {reprlib.repr(spec)}: {_brief(error)}") from error


def _require_fit(how: Mapping[str, Any], tensors: Mapping[str, Tensor], where: str, trust: Sequence[str]) -> None:
    """Compare the tensors with the shapes of the network that is described, which takes no memory."""
    try:
        with _parameters(at_most=1_000 + 4 * len(tensors)):
            stack = build_stack(how, "meta", width_in(tensors), trust=trust)
    except UNMADE as error:
        if is_own_network(how["model"]):
            return  # as below
        terms = parse_stack(how["algorithm"])
        if any(t.name in LOCATIONS or ("." in t.name and not is_trusted(t.name, ())) for t in terms):
            return  # code that the user trusts, and that needs numbers: it is made for good, and then compared
        raise IntegrityError(f"{where}: no network is made as built describes it: {_brief(error)}") from error
    match_tensors(stack, tensors, where)


@contextmanager
def _parameters(at_most: int) -> Iterator[None]:
    """Inside, modules that have more parameters than that are not made."""
    count = 0

    def register(_module: nn.Module, _name: str, _parameter: nn.Parameter) -> None:
        nonlocal count
        count += 1
        if count > at_most:
            raise IntegrityError("it would have many more parameters than the file has tensors")

    handle = register_module_parameter_registration_hook(register)
    try:
        yield
    finally:
        handle.remove()


def _brief(error: BaseException) -> str:
    said = str(error).strip().partition("\n")[0][:300]
    return said if isinstance(error, DspregError) and said else f"{type(error).__name__}: {said}"
