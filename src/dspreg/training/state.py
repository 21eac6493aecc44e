"""The state of a training between two steps: what must survive a crash, and nothing that can be recomputed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dspreg.algorithms.base import Algorithm
from dspreg.runs.folder import RunFolder


@dataclass
class Selected:
    """The best evaluation so far, by source validation; of equal ones the first, as in DomainBed."""

    step: int
    validation: float
    model: dict[str, Tensor]


@dataclass
class State:
    """The state of a training. It has no random state, since randomness is a function of the step."""

    algorithm: Algorithm
    folder: RunFolder
    sums: dict[str, list[float]] = field(default_factory=dict)  # the log since the last record: [sum, count]
    seconds: dict[str, list[float]] = field(default_factory=dict)  # the same for measured times
    recorded: int | None = None  # step of the last record
    selected: Selected | None = None

    @property
    def t(self) -> int:
        """Steps taken."""
        return self.algorithm.t

    def took(self, log: dict[str, float], seconds: float) -> None:
        """Add one step to the next record."""
        for name, value in {**log, "step_seconds": seconds}.items():
            total = (self.seconds if name.endswith("seconds") else self.sums).setdefault(name, [0.0, 0])
            total[0] += value
            total[1] += 1

    def means(self) -> tuple[dict[str, float], dict[str, float]]:
        """Means over the steps since the last record, of the log and of the clock; starts the next window."""
        result = tuple({n: total / count for n, (total, count) in each.items()} for each in (self.sums, self.seconds))
        self.sums, self.seconds = {}, {}
        return result[0], result[1]

    def pack(self) -> dict[str, Any]:
        """The state as saved in a checkpoint."""
        chosen = self.selected
        return {
            "algorithm": dict(self.algorithm.state_dict()),
            "optimizer": self.algorithm.stack.optimizer.state_dict(),
            "sums": self.sums,
            "seconds": self.seconds,
            "recorded": self.recorded,
            "selected": chosen and {"step": chosen.step, "validation": chosen.validation, "model": chosen.model},
            "records": self.folder.records.mark(),
            "refreshes": self.folder.refreshes.mark(),
        }

    def unpack(self, saved: dict[str, Any]) -> None:
        """Restore the state of a checkpoint; lines written since then are removed, and will be written again."""
        self.folder.records.rewind(saved["records"])
        self.folder.refreshes.rewind(saved["refreshes"])
        self.algorithm.load_state_dict(saved["algorithm"])
        self.algorithm.stack.optimizer.load_state_dict(saved["optimizer"])
        self.sums, self.seconds, self.recorded = saved["sums"], saved["seconds"], saved["recorded"]
        self.selected = Selected(**saved["selected"]) if saved["selected"] else None

    def restart(self) -> None:
        """Start anew: remove lines of an attempt that left no checkpoint."""
        self.folder.records.rewind(None)
        self.folder.refreshes.rewind(None)


def first_bad(algorithm: Algorithm, batches: list[Any], log: dict[str, float]) -> str | None:
    """The first input, logged value, parameter or buffer that is not finite; None if all are."""
    each = [t.detach().sum() for t in (*algorithm.parameters(), *algorithm.buffers())]
    total = float(torch.stack([t.to(torch.float64) for t in each]).sum())
    if math.isfinite(total) and all(map(math.isfinite, log.values())):
        return None  # fast check; the rest finds out which one
    domains = algorithm.task.domains
    tensors = [(f"the images of {domains[b.domain]!r}", b.x) for b in batches]
    bad = next((name for name, tensor in tensors if not bool(tensor.isfinite().all())), None)
    # a loss that is not finite makes parameters that are not: report the loss
    bad = bad or next((f"the logged {name}" for name, value in log.items() if not math.isfinite(value)), None)
    tensors = [(f"the parameter {name}", p.detach()) for name, p in algorithm.net.named_parameters()]
    tensors += [(f"the buffer {name}", b) for name, b in algorithm.net.named_buffers()]
    tensors += [(f"{name}", t) for name, t in (*algorithm.named_parameters(), *algorithm.named_buffers())]
    return bad or next((name for name, tensor in tensors if not bool(tensor.isfinite().all())), None)
