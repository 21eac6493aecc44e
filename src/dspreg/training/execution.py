"""How a training is run, resolved: device, threads, and the environment that results depend on."""

from __future__ import annotations

import os
import platform
import warnings
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import torch

from dspreg import __version__
from dspreg.algorithms import Algorithm
from dspreg.algorithms.registry import StackSpec
from dspreg.config.options import MOST
from dspreg.config.train_config import Execution
from dspreg.devices import lacks_float64, resolve_device
from dspreg.errors import Notice
from dspreg.precision import check_precision
from dspreg.training.compiling import require_compilable, require_compiler
from dspreg.training.fastest import describe_computation

PACKAGES = ("torch", "torchvision", "timm", "numpy", "pillow")  # their versions may change results in the last bits


def resolve_execution(execution: Execution, *algorithms: str) -> Execution:
    """With the device that `auto` is here, one for trainings of all these methods.

    Raises:
        ConfigError: There is no such device, or it can't do what is asked for.
    """
    lacks = lacks_float64(execution.device)  # looked at first: where nothing is lacking, no spec needs to be read
    needs = lacks and any(measures_c(StackSpec.parse(spec), execution) for spec in dict.fromkeys(algorithms))
    device = resolve_device(execution.device, float64=needs)
    check_precision(execution.precision, device)
    if execution.compile:
        for spec in dict.fromkeys(algorithms):
            require_compilable(layers_of(StackSpec.parse(spec)), execution.precision)
        require_compiler(device)
    return execution if device == execution.device else replace(execution, device=device)


def measures_c(stack: StackSpec, execution: Execution) -> bool:
    """Whether c is measured in the training, by the method or for profiles: in double precision."""
    layers = layers_of(stack)
    return execution.profile == "always" or any(getattr(layer, "uses_c", False) for layer in layers)


def layers_of(stack: StackSpec) -> list[Algorithm]:
    """The layers of a method, to look at: without a network, and without the notices given when it is trained."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        return list(stack.build().layers())


def environment(execution: Execution) -> dict[str, Any]:
    """What else results depend on, to the last bit."""
    return {
        **{name: version(name) for name in PACKAGES},
        **describe_computation(execution),
        "dspreg": __version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": threads(execution),
        "device": torch.device(execution.device).type,
        "gpu": torch.cuda.get_device_name(execution.device) if execution.device.startswith("cuda") else None,
        "precision": execution.recorded_precision,
    }


def threads(execution: Execution) -> int:
    """As requested, or as OMP_NUM_THREADS says, or all cores that this process may use."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return execution.threads or threads_of_environment() or usable or 1


def threads_of_environment() -> int | None:
    """OMP_NUM_THREADS, which schedulers set to a job's share of the machine; of a list, "4,2", the first counts."""
    given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    number = int(given) if given.isdecimal() and len(given) < 10 else 0
    return number if 0 < number <= MOST["threads"][0] else None
