"""Where a network runs: which devices there are, what `auto` is, and how batches get there."""

from __future__ import annotations

from collections.abc import Callable

import torch

from dspreg.errors import ConfigError

AUTO = "auto"
THERE: dict[str, Callable[[], bool]] = {  # in the order in which `auto` takes them
    "cuda": lambda: torch.cuda.is_available(),
    "mps": lambda: torch.backends.mps.is_available(),
    "cpu": lambda: True,
}


def resolve_device(device: str) -> str:
    """The device itself, or for `auto` the first of cuda, mps and cpu that torch finds here.

    `auto` is cuda and not cuda:0: which GPU a run of a sweep gets is for its launcher to say.

    Raises:
        ConfigError: There is no such device.
    """
    if device == AUTO:
        return next(kind for kind, there in THERE.items() if there())
    try:
        kind, number = torch.device(device).type, torch.device(device).index
    except RuntimeError:
        raise ConfigError(f"device={device!r}; wanted auto, cpu, cuda, cuda:1 or mps") from None
    if kind not in THERE or not THERE[kind]():
        raise ConfigError(
            f"device={device!r} is not there: torch {torch.__version__} finds none. Use --device cpu, or auto"
        )
    if kind == "cuda" and number is not None and number >= torch.cuda.device_count():
        raise ConfigError(f"device={device!r} is not there: torch finds {torch.cuda.device_count()}, counted from 0")
    return device


def describe_device(device: str) -> str:
    """For people: a GPU with its name."""
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.startswith("cuda") else device
