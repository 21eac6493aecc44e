"""Domains held in memory as tensors: what a step trains on, and what c is measured on."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from dspreg.batches import Batch
from dspreg.data.sampling import draw_measure_batches, draw_training_batch
from dspreg.errors import DataError
from dspreg.randomness import Key


class TensorDomains:
    """Source domains as (x, y) tensors. Which samples a step sees depends on the key and the step alone.

    Args:
        domains: Name → images (N, …) and labels (N,).
        key: Of the experiment, as in `Task.key`.
    """

    def __init__(self, domains: Mapping[str, tuple[Tensor, Tensor]], *key: Key):
        for name, (x, y) in domains.items():
            if len(x) == 0 or len(x) != len(y):
                raise DataError(
                    f"the domain {name!r} has {len(x)} images and {len(y)} labels; wanted as many, not none"
                )
        self.domains, self.key = dict(domains), key

    @property
    def sizes(self) -> list[int]:
        return [len(y) for _, y in self.domains.values()]

    def batches(self, t: int, size: int = 32) -> list[Batch]:
        """One training batch per domain for step t, drawn with replacement."""
        result = []
        for d, (name, (x, y)) in enumerate(self.domains.items()):
            chosen = draw_training_batch(len(y), size, *self.key, t, name)
            result.append(Batch(x[chosen], y[chosen], d))
        return result

    def samples(self, t: int, batches: int) -> dict[str, list[Batch]]:
        """Batches of 32 per domain to measure on at step t."""
        result = {}
        for d, (name, (x, y)) in enumerate(self.domains.items()):
            chosen = draw_measure_batches(len(y), batches, *self.key, t, name)
            result[name] = [Batch(x[part], y[part], d) for part in chosen]
        return result
