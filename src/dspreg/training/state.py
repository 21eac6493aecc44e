"""The state of a training between two steps: what must survive a crash, and nothing that can be recomputed."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dspreg.algorithms.base import Algorithm
from dspreg.batches import Batch
from dspreg.devices import read_numbers, widest_float
from dspreg.errors import Diverged, IntegrityError, Notice
from dspreg.io.atomic_files import sha256
from dspreg.runs.folder import RunFolder

START_PROFILE = "profiles/start.safetensors"
SELECTED = ("step", "validation", "model", "predicted")
LINES = ("records", "refreshes")  # files that grow, as checkpoints call them


@dataclass
class Selected:
    """The best evaluation so far, by source validation; of equal ones the first, as in DomainBed.

    Attributes:
        step: The last one taken.
        validation: What it was selected by, the larger the better; None without held-out images: then it is the last.
        model: Its tensors.
        predicted: Held-out images of the sources by class, and by the class predicted; empty where it was not counted.
    """

    step: int
    validation: float | None
    model: dict[str, Tensor]
    predicted: list[list[int]] = field(default_factory=list)


class StepLog(Mapping[str, float]):
    """The log of one step. Values are on the device until the first of them is asked for; then all are read at once.

    Args:
        step: Its number.
        scalars: What `train_step` returned.
        checksum: Of the stack after the step, see there.
    """

    def __init__(self, step: int, scalars: Mapping[str, Tensor], checksum: Tensor):
        self.step, self.names = step, list(scalars)
        self._scalars: list[Tensor] | None = [*scalars.values(), checksum]
        self._numbers: list[float] = []

    @staticmethod
    def read(logs: Sequence[StepLog]) -> None:
        """Read several, and wait for the device once."""
        unread = [each for each in logs if each._scalars is not None]
        numbers = iter(read_numbers([t for each in unread for t in each._scalars or ()]))
        for each in unread:
            each._numbers = [next(numbers) for _ in (*each.names, "checksum")]
            each._scalars = None

    @property
    def checksum(self) -> float:
        StepLog.read([self])
        return self._numbers[-1]

    def __getitem__(self, name: str) -> float:
        if name not in self.names:
            raise KeyError(name)
        StepLog.read([self])
        return self._numbers[self.names.index(name)]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


@dataclass
class State:
    """The state of a training. It has no random state, since randomness is a function of the step."""

    algorithm: Algorithm
    folder: RunFolder
    sums: dict[str, list[float]] = field(default_factory=dict)  # the log since the last record: [sum, count]
    seconds: dict[str, list[float]] = field(default_factory=dict)  # the same for measured times
    recorded: int | None = None  # step of the last record
    told: int = 0  # layers that `before_evaluation` was called of, for the evaluation that is next or under way
    selected: Selected | None = None
    lost: dict[str, str] = field(default_factory=dict)  # files to be made again, and the SHA-256 they had
    unread: list[tuple[StepLog, float]] = field(default_factory=list)  # steps whose log is on the device; their seconds

    @property
    def t(self) -> int:
        """Steps taken."""
        return self.algorithm.t

    def read_log(self, batches: Sequence[Batch] = ()) -> None:
        """Read what the steps since the last time have left on the device, and add it to the next record.

        Args:
            batches: Of the last step.

        Raises:
            Diverged: A step left something that is not finite. The first that did is named.
        """
        steps, self.unread = self.unread, []
        StepLog.read([log for log, _ in steps])
        for log, seconds in steps:
            if bad := first_bad(self.algorithm, batches if log is steps[-1][0] else (), log, log.checksum):
                raise Diverged(f"step {log.step}: not finite: {bad}. A smaller lr or penalty weight may help", log.step)
            self.took(log, seconds)

    def took(self, log: Mapping[str, float], seconds: float) -> None:
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
        """The state as saved in a checkpoint, which is never one that diverged: see `read_log`."""
        self.read_log()
        chosen, scaler = self.selected, self.algorithm.stack.scaler
        return {
            "algorithm": dict(self.algorithm.state_dict()),
            "optimizer": self.algorithm.stack.optimizer.state_dict(),
            **({} if scaler is None else {"scaler": scaler.state_dict()}),
            "sums": self.sums,
            "seconds": self.seconds,
            "recorded": self.recorded,
            **({"told": self.told} if self.told else {}),
            "selected": chosen and {name: getattr(chosen, name) for name in SELECTED},
            "records": self.folder.records.mark(),
            "refreshes": self.folder.refreshes.mark(),
            "lines": {name: _as_tensor(getattr(self.folder, name).written) for name in LINES},
            "files": {name: digest for name, digest in self.folder.written.items() if name != "run.json"},
            "where": self.folder.carried,
        }

    def unpack(self, saved: dict[str, Any]) -> None:
        """Restore the state of a checkpoint; lines written since then are removed, and will be written again.

        Raises:
            IntegrityError: A file that was written before is not what it was.
        """
        files = self._files(saved)
        for name in LINES:
            self._rewind(name, saved)
        self.algorithm.load_state_dict(saved["algorithm"])
        self.algorithm.stack.optimizer.load_state_dict(saved["optimizer"])
        scaler = self.algorithm.stack.scaler
        if scaler is not None and "scaler" in saved:  # not of a run that was in another precision before
            scaler.load_state_dict(saved["scaler"])
        self.sums, self.seconds, self.recorded = saved["sums"], saved["seconds"], saved["recorded"]
        self.told = saved.get("told", 0)
        self.selected = Selected(**saved["selected"]) if saved["selected"] else None
        self.folder.written |= files
        if "where" in saved:
            self.folder.carry(saved["where"])

    def _files(self, saved: Mapping[str, Any]) -> dict[str, str]:
        """What a checkpoint vouches for, verified. A file that it does not name is written again, not trusted."""
        if "files" not in saved:
            return self._unverified_files()
        files: dict[str, str] = dict(saved["files"])
        damaged = self.folder.verify(files)
        if START_PROFILE in damaged:  # it can be made again
            warnings.warn(f"{damaged.pop(START_PROFILE)}; it is measured again", Notice, stacklevel=4)
            self.lost[START_PROFILE] = files.pop(START_PROFILE)
        for name in [name for name in damaged if not (self.folder / name).exists()]:
            warnings.warn(f"{damaged.pop(name)}; the run goes on without this model", Notice, stacklevel=4)
            del files[name]
        if damaged:
            way = "put it back from a copy, or remove it to go on without this model"
            raise IntegrityError("; ".join(f"{said}: {way}" for said in damaged.values()))
        return files

    def _unverified_files(self) -> dict[str, str]:
        """Of a checkpoint of an earlier version, which says nothing about them."""
        names = self.folder.unverified()
        if names:
            text = "was saved by an earlier version of dspreg, which kept no SHA-256 of other files: can't verify"
            warnings.warn(f"the checkpoint {text} {', '.join(names)} of {self.folder.path}", Notice, stacklevel=4)
        return {name: self.folder.hash(name) for name in names}

    def _rewind(self, name: str, saved: Mapping[str, Any]) -> None:
        """Forget lines after those of the checkpoint, which has a copy of them should the file be damaged."""
        lines = getattr(self.folder, name)
        try:
            lines.rewind(saved[name])
        except IntegrityError as error:
            copy = _as_bytes(saved["lines"][name]) if "lines" in saved else None
            if copy is None or sha256(copy) != saved[name]["sha256"]:
                raise
            lines.restore(copy)
            warnings.warn(f"{error}; it was written again from there", Notice, stacklevel=4)

    def restart(self) -> None:
        """Start anew: remove lines of an attempt that left no checkpoint."""
        self.folder.records.rewind(None)
        self.folder.refreshes.rewind(None)


def _as_tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def _as_bytes(tensor: Tensor) -> bytes:
    return tensor.numpy().tobytes()


def checksum(algorithm: Algorithm) -> Tensor:
    """The sum of all parameters and buffers: finite only if all are. A scalar on the device, for nobody to wait for."""
    each = [t.detach().sum() for t in (*algorithm.parameters(), *algorithm.buffers())]
    return torch.stack([t.to(widest_float(t.device)) for t in each]).sum()


def first_bad(
    algorithm: Algorithm, batches: Sequence[Batch], log: Mapping[str, float], total: float | None = None
) -> str | None:
    """The first input, logged value, parameter or buffer that is not finite; None if all are.

    Args:
        algorithm: The stack after the step.
        batches: Of the step, where they are still at hand.
        log: Of the step.
        total: Its `checksum`.
    """
    total = float(checksum(algorithm)) if total is None else total
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
