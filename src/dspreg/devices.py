"""Where a network runs: which devices there are, what `auto` is, and how batches get there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dspreg.errors import ConfigError

AUTO = "auto"
THERE: dict[str, Callable[[], bool]] = {  # in the order in which `auto` takes them
    "cuda": lambda: torch.cuda.is_available(),
    "mps": lambda: torch.backends.mps.is_available(),
    "cpu": lambda: True,
}
WITHOUT_FLOAT64 = ("mps",)


def resolve_device(device: str, *, float64: bool = False) -> str:
    """The device itself, or for `auto` the first of cuda, mps and cpu that torch finds here.

    `auto` is cuda and not cuda:0: which GPU a run of a sweep gets is for its launcher to say.

    Args:
        device: `auto`, or a name that torch knows.
        float64: Whether double precision is needed, as for measuring c; `auto` then leaves out devices without it.

    Raises:
        ConfigError: There is no such device, or it can't do what is needed.
    """
    if device == AUTO:
        able = [kind for kind in THERE if not (float64 and kind in WITHOUT_FLOAT64)]
        return next(kind for kind in able if THERE[kind]())
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
    if float64 and kind in WITHOUT_FLOAT64:
        raise ConfigError(f"device={device!r}: c is measured in double precision, which it lacks. Use --device cpu")
    return device


def lacks_float64(device: str) -> bool:
    """Whether the device, or what `auto` is here, has no double precision."""
    kind = (resolve_device(AUTO) if device == AUTO else device).partition(":")[0]
    return kind in WITHOUT_FLOAT64


def describe_device(device: str) -> str:
    """For people: a GPU with its name."""
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.startswith("cuda") else device


def widest_float(device: torch.device) -> torch.dtype:
    """Double precision, where there is any."""
    return torch.float32 if device.type in WITHOUT_FLOAT64 else torch.float64


def send(tensor: Tensor, device: str | torch.device) -> Tensor:
    """A tensor of the CPU on `device`. A GPU is not waited for: it copies when it gets there, from pinned memory."""
    if torch.device(device).type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def read_numbers(scalars: Sequence[Tensor]) -> list[float]:
    """Scalars as numbers. Each device is waited for once, however many are on it."""
    found = [0.0] * len(scalars)
    for device in dict.fromkeys(t.device for t in scalars):
        places = [place for place, t in enumerate(scalars) if t.device == device]
        # together they are as wide as the device has it, so that none is rounded
        numbers = torch.stack([scalars[place].detach().to(widest_float(device)) for place in places]).tolist()
        for place, number in zip(places, numbers, strict=True):
            found[place] = number
    return found
