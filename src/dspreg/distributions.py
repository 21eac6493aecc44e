"""Search distributions of hyper-parameters, with DomainBed's seeds: the same seed gives DomainBed's draw."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from dspreg.domainbed.seeds import seed_hash


class Distribution(ABC):
    """A distribution of one option. `key` is its name in DomainBed, where it has one."""

    key: str | None

    def draw(self, seed: int, name: str) -> Any:
        """The value for one random configuration.

        Each option has its own generator, so that a new option does not change the draws of the others.

        Args:
            seed: Seed of the configuration, `seed_hash(draw, trial)` in DomainBed.
            name: Used where the distribution has no key, `"Class.option"`.
        """
        return self.sample(np.random.RandomState(seed_hash(seed, self.key or name)))

    @abstractmethod
    def __str__(self) -> str: ...

    @abstractmethod
    def sample(self, random: np.random.RandomState) -> Any: ...


@dataclass(frozen=True)
class Uniform(Distribution):
    """U(low, high), truncated to an integer with `integer`."""

    low: float
    high: float
    key: str | None = None
    integer: bool = False

    def __str__(self) -> str:
        return f"U({self.low:g}, {self.high:g})" + (", whole" if self.integer else "")

    def sample(self, random: np.random.RandomState) -> float | int:
        value = float(random.uniform(self.low, self.high))
        return int(value) if self.integer else value


@dataclass(frozen=True)
class LogUniform(Distribution):
    """base^U(low, high): `low` and `high` are exponents, of 10 by default."""

    low: float
    high: float
    key: str | None = None
    integer: bool = False
    base: float = 10.0

    def __str__(self) -> str:
        return f"{self.base:g}^U({self.low:g}, {self.high:g})" + (", whole" if self.integer else "")

    def sample(self, random: np.random.RandomState) -> float | int:
        value = float(self.base ** random.uniform(self.low, self.high))
        return int(value) if self.integer else value


@dataclass(frozen=True, init=False)
class Choice(Distribution):
    """One of the values, with equal probability."""

    values: tuple[Any, ...]
    key: str | None

    def __init__(self, *values: Any, key: str | None = None):
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "key", key)

    def __str__(self) -> str:
        return "one of " + ", ".join(map(repr, self.values))

    def sample(self, random: np.random.RandomState) -> Any:
        return self.values[random.choice(len(self.values))]  # by position: numpy would change the values' types
