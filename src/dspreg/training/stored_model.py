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

from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from dspreg.algorithms import parse
from dspreg.config.train_config import TRAIN_OPTIONS
from dspreg.config.trained_part import TrainedPart
from dspreg.data.transforms import Transform
from dspreg.errors import ConfigError, DspregError, IntegrityError
from dspreg.io.atomic_files import read_regular_file
from dspreg.io.importing import is_trusted
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


def load_model_file(path: Path, device: str = "cpu", trust: Sequence[str] = ()) -> tuple[Model, Transform]:
    """From one model file, without its run; `trust` as in `dspreg.load`.

    Raises:
        IntegrityError: It is damaged, describes no network, holds the tensors of another one, or names code that is
            not trusted. The message names the file and the field.
    """
    how, tensors = read_model_file(path)
    _require_known(how["algorithm"], str(path), trust)
    _require_fit(how, tensors, str(path))
    stack = load_stack(how, tensors, str(path), device)
    for name in trainable(stack.net):
        if not tensors[name].isfinite().all():
            raise IntegrityError(f"{path}: the tensor {name} has NaN or infinity in it")
    return Model(stack, tuple(how["classes"])).eval(), Transform(how["image_size"], how["mean"], how["std"])


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
    for name, wanted in (("mean", "three finite numbers"), ("std", "three finite numbers above 0")):
        _require(_per_channel(how[name], positive=name == "std"), where, name, how[name], wanted)
    for name, most in NAMES.items():
        _require(_names(how[name], most), where, name, how[name], f"1 to {most:,} different names")
    step = how["step"]
    _require(type(step) is int and 0 <= step < STEPS, where, "step", step, "a whole number, 0 or more")


def _require(fits: bool, where: str, name: str, value: Any, wanted: str) -> None:
    if not fits:
        raise IntegrityError(f"{where}: built.{name} is {reprlib.repr(value)}; wanted {wanted}")


def _per_channel(value: Any, *, positive: bool) -> bool:
    if not isinstance(value, list | tuple) or len(value) != 3:
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


def _require_fit(how: Mapping[str, Any], tensors: Mapping[str, Tensor], where: str) -> None:
    """Compare the tensors with the shapes of the network that is described, which takes no memory."""
    try:
        with _parameters(at_most=1_000 + 4 * len(tensors)):
            stack = build_stack(how, "meta", width_in(tensors))
    except UNMADE as error:
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
