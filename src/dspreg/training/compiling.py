"""`--compile`: the forward pass of the featurizer in training, and the way back through it, compiled by torch.

Everything else stays as it is. In evaluation mode the network runs uncompiled, so that predictions, per-sample
measurements of c and saved models do not depend on it, and each odd batch of an evaluation is not compiled anew.
Modules and their names stay the same, for the compiled function is not part of the module's state.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from functools import cache
from typing import Any

import torch
from torch import nn

from dspreg.algorithms.base import Algorithm
from dspreg.errors import ConfigError, ResourceError
from dspreg.networks.network import Network

COMPILERS = ("c++", "g++", "clang++")
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
HALF = ("bf16", "fp16")
WITHOUT = "Leave --compile out"


def require_compilable(layers: Iterable[Algorithm], precision: str = "fp32") -> None:
    """Refuse a method that looks into the network where torch.compile hides it.

    Args:
        layers: Of the method.
        precision: As in `Execution`. Under autocast torch traces the way back in half precision, too, which moves
            the penalty's part of a gradient by more than rounding (`dspreg.penalty.autocast`).

    Raises:
        ConfigError: Says which layer, why, and what to do.
    """
    for layer in layers:
        if why := layer.compatibility.not_compiled:
            raise ConfigError(f"--compile: {type(layer).__name__} {why}. {WITHOUT}, or that layer")
        if precision in HALF and hasattr(layer, "engine"):
            raise ConfigError(
                f"--compile with --precision {precision} would round the penalty of {type(layer).__name__} to half "
                f"precision. {WITHOUT}, or use --precision fp32"
            )


@cache
def require_compiler(device: str) -> None:
    """See that torch can compile here, by compiling one addition.

    Raises:
        ResourceError: There is no C++ compiler, or it does not work.
    """
    if device == "cpu" and not any(map(shutil.which, filter(None, (os.environ.get("CXX"), *COMPILERS)))):
        raise ResourceError(
            f"--compile needs a C++ compiler, and there is none: install g++ or clang++, or name one in CXX. {WITHOUT}"
        )
    try:
        torch.compile(_add_one, dynamic=False)(torch.zeros(8, device=device))
    except Exception as error:  # torch wraps whatever a compiler may say
        said = str(error).strip().partition("\n")[0]
        raise ResourceError(f"--compile does not work here: {type(error).__name__}: {said}. {WITHOUT}") from error


def _add_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def compile_network(net: Network, backend: str = "inductor") -> None:
    """Compile what the featurizer does in training, in place; it happens at its first step.

    Args:
        net: The network of a stack, with all hooks that it will have.
        backend: As torch calls it.

    Raises:
        ConfigError: A module has hooks, which may see or change what passes there.
    """
    featurizer: Any = net.featurizer
    if place := first_hook(featurizer):
        raise ConfigError(
            f"--compile: a method has hooked onto the module {place!r} of the featurizer, which would see nothing once "
            f"it is compiled. {WITHOUT}, or that method"
        )
    # a method may go back several times through one graph, so nothing of it may be reused
    torch._functorch.config.donated_buffer = False
    # one function for each size: with sizes left open, which function runs would depend on what ran before a resume
    options: Any = {"fallback_random": True} if backend == "inductor" else None  # dropout as without compiling
    compiled = torch.compile(featurizer._call_impl, backend=backend, dynamic=False, options=options)

    def call(*args: Any, **kwargs: Any) -> Any:
        return (compiled if featurizer.training else featurizer._call_impl)(*args, **kwargs)

    featurizer._compiled_call_impl = call  # where `nn.Module.compile` puts it: copies and files leave it out


def first_hook(net: nn.Module) -> str | None:
    """The first module with a hook; None if there is none."""
    hooked = (name for name, module in net.named_modules() if any(getattr(module, kind) for kind in HOOKS))
    return next(hooked, None)
