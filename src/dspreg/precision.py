"""Precision of a training: autocast, TF32, and the scale of losses that half precision needs.

    fp32    everything in float32
    tf32    the same, but a CUDA GPU may round what it multiplies to 10 bits
    bf16    the network under autocast, in bfloat16
    fp16    the network under autocast, in float16, its losses scaled so that small gradients are not rounded to 0

Penalties, moments of features and c are in float32 in all of them: `full_precision`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from dspreg.errors import ConfigError

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
LEAST_SCALE = 2.0**-10  # where gradients still overflow at this scale, they are not small numbers that were scaled up


def check_precision(precision: str, device: str) -> None:
    """Refuse what a device can't do; `device` is a resolved one."""
    kind = torch.device(device).type
    if precision == "tf32" and kind != "cuda":
        raise ConfigError(f"precision='tf32' is for CUDA GPUs, and the device is {kind}. Use --precision fp32")


def autocast(precision: str, device: str) -> AbstractContextManager[Any]:
    """For the steps of a training: inside, the network computes in this precision."""
    if precision not in AUTOCAST:
        return nullcontext()
    return torch.autocast(torch.device(device).type, AUTOCAST[precision])


@contextmanager
def full_precision(device: str) -> Iterator[None]:
    """Inside, everything is in float32 on devices of this type: no autocast, and no TF32."""
    off = torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()
    with off, multiplying("fp32", device):  # some, such as meta, have no autocast to turn off
        yield


@contextmanager
def multiplying(precision: str, device: str) -> Iterator[None]:
    """Inside, a CUDA GPU multiplies float32 as `precision` says; afterwards as before. Other devices have no choice."""
    if torch.device(device).type != "cuda":
        yield
        return
    cudnn: Any = torch.backends.cudnn
    places = (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn)
    before = [place.fp32_precision for place in places]
    try:
        for place in places:  # torch's own default is TF32 for convolutions and float32 for matrices
            place.fp32_precision = "tf32" if precision == "tf32" else "ieee"
        yield
    finally:
        for place, value in zip(places, before, strict=True):
            place.fp32_precision = value


# Half precision.

_scale = 1.0


def loss_scale() -> float:
    """What losses are multiplied by before they are differentiated, and gradients divided by after it."""
    return _scale


@contextmanager
def losses_scaled(scale: float) -> Iterator[None]:
    """Inside, `loss_scale` is this: a power of two, so that gradients that neither over- nor underflow are the same."""
    global _scale
    before, _scale = _scale, scale
    try:
        yield
    finally:
        _scale = before


class LossScaler:
    """Finds the scale, as torch's `GradScaler` does: halved when a gradient overflows, doubled when long none did.

    Layers see gradients that are unscaled already, since they square, compare and normalise them.

    Args:
        device: Of the gradients.

    Attributes:
        scale: As it stands, for the next `losses_scaled`.
    """

    def __init__(self, device: str):
        self._scaler = torch.amp.GradScaler(torch.device(device).type)
        self.scale = self._scaler.get_scale()

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        """A step of the optimiser, unless a gradient is not finite; whether it was left out."""
        params = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if not params:
            return False
        # the scaler divides by the scale what it looks at; times a power of two and back changes no bit
        for p, scaled in zip(params, self._scaler.scale([p.grad for p in params]), strict=True):
            p.grad = scaled
        self._scaler.step(optimizer)
        self._scaler.update()
        before, self.scale = self.scale, self._scaler.get_scale()
        return self.scale < before

    def state_dict(self) -> dict[str, Any]:
        return self._scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._scaler.load_state_dict(state)
        self.scale = self._scaler.get_scale()
