"""s of every domain as a running mean over measurements, so that each can be on fewer images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from dspreg.batches import at_least_float32
from dspreg.errors import ConfigError
from dspreg.sensitivity.statistics import coefficient_of_variation
from dspreg.vectors import ParamVector


class RunningSensitivity:
    """The exponential mean of s of every domain.

        s̃ ← m·s̃ + (1 − m)·s/‖s‖₁        c = std_d(s̃) / mean_d(s̃)

    ‖s‖₁ sums over domains and parameters. s falls with the loss, by orders of magnitude in a training; undivided, the
    first measurements would outweigh all later ones. c does not depend on a common factor.

    Args:
        memory: m, the share of the past at each measurement, from 0 to below 1.
    """

    def __init__(self, memory: float):
        if isinstance(memory, bool) or not isinstance(memory, (int, float)) or not 0 <= memory < 1:
            raise ConfigError(f"refresh_memory={memory!r}; wanted a number from 0 (no memory) to below 1, such as 0.75")
        self.memory = float(memory)
        self.s: dict[str, ParamVector] = {}  # by domain; biased towards its start at 0, which cancels in c
        self.mass = 0.0  # sum of the weights in it
        self.size = 1.0  # ‖s‖₁ of the last measurement

    def add(self, s: Mapping[str, ParamVector]) -> None:
        """One more measurement, by domain."""
        if self.s and (list(self.s) != list(s) or any(_shapes(self.s[d]) != _shapes(s[d]) for d in s)):
            raise ConfigError(
                f"c has a memory of domains {', '.join(self.s)} and now {', '.join(s)} were measured, or other "
                "parameters. A running mean needs the same ones at every refresh; use refresh_memory=0"
            )
        self.size = sum(float(t.double().sum()) for vector in s.values() for t in vector.values()) or 1.0
        share = (1 - self.memory) / self.size
        for domain, vector in s.items():
            new = vector.map(lambda t: (t.double() * share).to(at_least_float32(t).dtype))
            self.s[domain] = self.s[domain] * self.memory + new if domain in self.s else new
        self.mass = self.memory * self.mass + 1 - self.memory

    def c(self, eps: float = 0.0) -> ParamVector:
        """Of all measurements; ε is in units of the last one's s."""
        found = coefficient_of_variation(list(self.s.values()), eps * self.mass / self.size)
        return found.map(lambda c, s: c.to(s.dtype), next(iter(self.s.values())))

    def map(self, fn: Callable[[Tensor], Tensor]) -> None:
        self.s = {domain: vector.map(fn) for domain, vector in self.s.items()}

    def state_dict(self) -> dict[str, Any]:
        s = {domain: dict(vector) for domain, vector in self.s.items()}
        return {"s": s, "mass": self.mass, "size": self.size}

    def load_state_dict(self, state: Mapping[str, Any], place: Callable[[Mapping[str, Tensor]], ParamVector]) -> None:
        """`place` copies a loaded vector to where the parameters are."""
        self.s = {domain: place(vector) for domain, vector in state["s"].items()}
        self.mass, self.size = state["mass"], state["size"]


def _shapes(vector: ParamVector) -> dict[str, torch.Size]:
    return {name: t.shape for name, t in vector.items()}
