"""What `dspreg sweep --dry-run` prints: runs, hours and gigabytes, measured or absent."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import cast

from dspreg.config.defaults import DatasetFacts
from dspreg.config.train_config import Execution, TrainConfig, resolve_config
from dspreg.io.text import align_columns, escape_terminal
from dspreg.protocol.estimate import bytes_of, seconds_of
from dspreg.runs.run import Run
from dspreg.runs.status import RunStatus
from dspreg.runs.store import RunStore

GB = 1e9


@dataclass
class Part:
    """All runs of one data set and algorithm."""

    runs: list[Run] = field(default_factory=list)
    statuses: Counter[RunStatus] = field(default_factory=Counter)
    step_seconds: list[float] = field(default_factory=list)  # per step, evaluations included, of each finished run
    steps: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)  # bytes each finished run left

    @property
    def left(self) -> int:
        return len(self.runs) - self.statuses[RunStatus.FINISHED]

    def hours(self) -> float | None:
        """Estimate for the remaining runs, from the finished ones."""
        if not self.step_seconds:
            return None if self.left else 0.0
        steps: int = self.runs[0].options.get("steps", round(mean(self.steps)))
        return self.left * steps * mean(self.step_seconds) / 3600

    def gigabytes(self) -> float | None:
        if not self.sizes:
            return None if self.left else 0.0
        return self.left * mean(self.sizes) / GB


def parts_of(runs: Sequence[Run], store: RunStore | None) -> dict[tuple[str, str], Part]:
    parts: dict[tuple[str, str], Part] = defaultdict(Part)
    for run in runs:
        part = parts[run.data_name, run.algorithm]
        part.runs.append(run)
        status = store.status(run, weights=False).status if store else RunStatus.NOT_STARTED
        part.statuses[status] += 1
        if store and status is RunStatus.FINISHED:
            folder = store.folder(run)
            steps = folder.description()["settings"]["steps"]
            part.step_seconds.append(seconds_of(folder.records) / steps)
            part.steps.append(steps)
            part.sizes.append(bytes_of(folder))
    return parts


def plan_text(runs: Sequence[Run], store: RunStore | None, execution: Execution) -> str:
    """A row per data set and algorithm, and all together."""
    parts = parts_of(runs, store)
    rows: list[Sequence[str]] = [("data set", "algorithm", "runs", "finished", "failed", "hours left", "GB left")]
    for (data, algorithm), part in parts.items():
        rows.append((escape_terminal(data), escape_terminal(algorithm), *_cells([part])))
    if len(parts) > 1:
        rows.append(("all", "", *_cells(list(parts.values()))))
    measured = sum(len(part.sizes) for part in parts.values())
    if measured and store:
        notes = [f"hours one after the other, and gigabytes, as the {measured:,} finished took and left"]
    else:
        notes = ["hours: unknown until a run of the same data set and algorithm is finished"]
        notes += kept_models(runs, execution)
    return "\n".join([*align_columns(rows, 2), *notes])


def kept_models(runs: Sequence[Run], execution: Execution) -> list[str]:
    """Gigabytes by the size of the networks alone, in words."""
    from dspreg.data.registry import dataset_class
    from dspreg.networks.pretrained import size_of

    total, largest = 0, 0
    sizes: dict[tuple[str, int, int], int] = {}
    for run in runs:
        data = dataset_class(run.dataset)
        if data is None:
            return [f"gigabytes: unknown until {escape_terminal(run.data_name)} is read"]
        s = resolve_config(TrainConfig.of(run.settings()), cast(DatasetFacts, data))
        network = (s.model, s.image_size, len(data.classes))
        if network not in sizes:
            sizes[network] = size_of(*network)
        evaluations = len({*range(0, s.steps, s.evaluate_every), s.steps - 1})
        total += {"none": 0, "best": 2, "all": 2 + evaluations}[execution.keep] * sizes[network]
        largest = max(largest, sizes[network])
    checkpoints = 2 * 4 * largest  # two, each with the network, Adam's two moments and the selected model
    return [
        f"gigabytes by the networks' sizes: {total / GB:,.2f} of models at the end (--keep {execution.keep}), and "
        f"{checkpoints / GB:.2f} of checkpoints during a run; methods with additional networks need more"
    ]


def _cells(parts: Sequence[Part]) -> list[str]:
    runs = sum(len(part.runs) for part in parts)
    finished = sum(part.statuses[RunStatus.FINISHED] for part in parts)
    failed = sum(part.statuses[RunStatus.FAILED] + part.statuses[RunStatus.DAMAGED] for part in parts)
    costs = [part.hours() for part in parts], [part.gigabytes() for part in parts]
    return [f"{runs:,}", f"{finished:,}", f"{failed:,}", *(_number(_total(each)) for each in costs)]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 100 or value == 0 else f"{value:.2g}"


def _total(values: Sequence[float | None]) -> float | None:
    return None if any(value is None for value in values) else sum(value for value in values if value is not None)
