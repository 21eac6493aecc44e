"""What is said of images besides their labels: which belong together, which part they are for, how much they count."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

TRAIN, VALIDATION, TEST = "train", "val", "test"
PARTS = {
    "train": TRAIN, "training": TRAIN,
    "val": VALIDATION, "valid": VALIDATION, "validation": VALIDATION, "dev": VALIDATION,
    "test": TEST, "testing": TEST,
}  # fmt: skip


@dataclass(frozen=True)
class Annotations:
    """Columns beside path, label and domain, one value for each image of a domain; None where there is no column.

    Attributes:
        groups: The patient, part or video of an image. No group is on both sides of a split; an image of the group
            `""` stands by itself.
        parts: `"train"`, `"val"` or `"test"`, or `""` where that is left to dspreg.
        weights: How much an image counts in the loss.
        metadata: Further columns, by which evaluations are broken down. No training uses them.
    """

    groups: tuple[str, ...] | None = None
    parts: tuple[str, ...] | None = None
    weights: tuple[float, ...] | None = None
    metadata: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def splits(self) -> bool:
        """Whether it decides who is split how."""
        return self.groups is not None or self.parts is not None

    def select(self, positions: Iterable[int]) -> Annotations:
        """Those of some of the images."""
        at = list(positions)

        def some(values: Any) -> Any:
            return None if values is None else tuple(values[i] for i in at)

        further = {name: some(values) for name, values in self.metadata.items()}
        return Annotations(some(self.groups), some(self.parts), some(self.weights), further)

    def digest(self, *, splits: bool, weights: bool) -> str:
        """SHA-256 of the columns that a training uses; nothing if it uses none."""
        used = [self.groups, self.parts] if splits else [None, None]
        used = [*used, self.weights if weights else None]
        return hashlib.sha256(json.dumps(used).encode()).hexdigest() if any(c is not None for c in used) else ""


NONE = Annotations()


def annotations_of(domain: Sequence[Any]) -> Annotations:
    """What a domain says of its images, if anything. A data set of one's own says it as `annotations`."""
    found = getattr(domain, "annotations", None)
    return found if isinstance(found, Annotations) else NONE
