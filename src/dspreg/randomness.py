"""Keyed randomness: the same key gives the same numbers, whatever was drawn before."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

Key = str | int | float | bool | None | tuple["Key", ...]


def seed_for(*key: Key) -> int:
    """A 63-bit seed from names and numbers, e.g. `seed_for("PACS", "sketch", trial, t, "measure")`."""
    text = json.dumps(key, ensure_ascii=False, separators=(",", ":"))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 1


def generator(*key: Key) -> torch.Generator:
    """A new CPU generator, independent of torch's global one."""
    return torch.Generator().manual_seed(seed_for(*key))


@contextmanager
def seeded(*key: Key) -> Iterator[None]:
    """Inside, torch's global generators start from `key`; afterwards they are as before."""
    if not (torch.cuda.is_available() or torch.backends.mps.is_available()):  # fast path: called for every image
        state = torch.default_generator.get_state()
        torch.default_generator.manual_seed(seed_for(*key))
        try:
            yield
        finally:
            torch.default_generator.set_state(state)
        return
    with torch.random.fork_rng(_cuda_devices()):
        torch.manual_seed(seed_for(*key))
        yield


class Generators:
    """A snapshot of the global generators of torch, numpy and Python."""

    def __init__(self) -> None:
        self.python, self.legacy = random.getstate(), np.random.get_state()
        self.cpu = torch.default_generator.get_state()
        self.cuda = {d: torch.cuda.get_rng_state(d) for d in _cuda_devices()}
        self.mps = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None

    def restore(self) -> None:
        random.setstate(self.python)
        np.random.set_state(self.legacy)
        torch.default_generator.set_state(self.cpu)
        for device, state in self.cuda.items():
            torch.cuda.set_rng_state(state, device)
        if self.mps is not None:
            torch.mps.set_rng_state(self.mps)


@contextmanager
def untouched() -> Iterator[None]:
    """Afterwards the global generators of torch, numpy and Python are as before, whatever was drawn inside."""
    before = Generators()
    try:
        yield
    finally:
        before.restore()


class Noise:
    """The random numbers of one training step: every `replayed()` block draws the same ones.

    Dropout, Mixup and style mixing are thus part of a fixed function of θ for the length of a step. Otherwise a second
    evaluation, at a displaced θ, would differ by the noise as well as by the displacement.
    """

    def __init__(self, *key: Key):
        self.key = key

    @contextmanager
    def replayed(self) -> Iterator[None]:
        with seeded(*self.key):
            yield


def _cuda_devices() -> list[int]:
    # all of them: torch.manual_seed seeds all of them
    return list(range(torch.cuda.device_count())) if torch.cuda.is_available() and torch.cuda.is_initialized() else []
