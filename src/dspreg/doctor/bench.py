"""What `dspreg doctor --bench` compares: precisions and layouts with each other, and the device with the CPU."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from dspreg.algorithms import ERM, Algorithm, DSPReg
from dspreg.batches import Batch, Objective
from dspreg.doctor.throughput import make_batches, make_stack, seconds_of
from dspreg.errors import ConfigError, Notice
from dspreg.networks import Backbone, make_backbone
from dspreg.precision import autocast, check_precision
from dspreg.training.step import train_step
from dspreg.vectors import ParamVector

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
LAYOUTS = {"channels-first": torch.contiguous_format, "channels-last": torch.channels_last}
SECONDS = 3.0  # a row


class Row(NamedTuple):
    """One way to run a step of ERM."""

    precision: str
    layout: str
    seconds: float  # per image


def compare_speeds(device: str, model: str, image_size: int, batch: int) -> Iterator[Row]:
    """A step of ERM in every precision that the device has, and on images of either layout."""
    backbone = make_backbone(model, weights="none", image_size=image_size)
    for precision in PRECISIONS:
        try:
            check_precision(precision, device)
        except ConfigError:
            continue
        for layout, order in LAYOUTS.items():
            stack = make_stack(ERM(), backbone, device)
            batches = [
                replace(each, x=each.x.contiguous(memory_format=order))
                for each in make_batches(batch, device, image_size)
            ]
            step = partial(train_in, precision, device, stack, batches)
            yield Row(precision, layout, seconds_of(step, SECONDS, device) / sum(map(len, batches)))


def train_in(precision: str, device: str, stack: Algorithm, batches: Sequence[Batch]) -> None:
    with autocast(precision, device):
        train_step(stack, batches)


def compare_with_cpu(device: str, model: str, image_size: int) -> dict[str, float]:
    """Relative error of the device's gradient, by method: ERM's, and what DSP-Reg's penalty adds to it."""
    backbone = make_backbone(model, weights="none", image_size=image_size)
    found = {}
    for where in ("cpu", device):
        batches = make_batches(2, where, image_size)
        stacks = (Kept(), Kept(DSPReg(coefficients="ones")))
        erm, penalised = (each.first_gradient(backbone, where, batches) for each in stacks)
        found[where] = {"ERM": erm, "DSPReg": penalised - erm}
    right = found["cpu"]
    return {name: float((mine - right[name]).norm() / right[name].norm()) for name, mine in found[device].items()}


class Kept(Algorithm):
    """Keeps the gradient of a step."""

    def gradient(self, objective: Objective, batches: Sequence[Batch]) -> tuple[Tensor, ParamVector]:
        loss, self.kept = self.base.gradient(objective, batches)
        return loss, self.kept

    def first_gradient(self, backbone: Backbone, where: str, batches: Sequence[Batch]) -> Tensor:
        """On the CPU, in double precision."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Notice)  # a network with random weights is no training
            train_step(make_stack(self, backbone, where), batches)
        return self.kept.flat().cpu().double()
