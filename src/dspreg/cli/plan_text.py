"""What `dspreg sweep --dry-run` prints: runs, hours and gigabytes, measured or absent."""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from statistics import mean
from typing import TYPE_CHECKING, cast

from dspreg.config.defaults import DatasetFacts
from dspreg.config.train_config import Execution, TrainConfig, resolve_config
from dspreg.errors import IntegrityError, Notice
from dspreg.io.text import align_columns, escape_terminal
from dspreg.protocol.estimate import bytes_of, seconds_of
from dspreg.runs.run import Run
from dspreg.runs.schema import check_run
from dspreg.runs.status import RunStatus
from dspreg.runs.store import RunStore

if TYPE_CHECKING:
    from dspreg.launch.probe import Prober

GB = 1e9
PROBED = "hours one after the other; without a finished run by a few steps on this machine, one run at a time:"
LOOKED_AT = 1_000  # runs of a large plan whose status is looked at: a second or so


@dataclass
class Part:
    """All runs of one data set and algorithm."""

    count: int = 0
    steps_planned: int | None = None  # of its runs, where they say it
    statuses: Counter[RunStatus] = field(default_factory=Counter)
    step_seconds: list[float] = field(default_factory=list)  # per step, evaluations included, of each finished run
    steps: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)  # bytes each finished run left
    unfinished: list[Run] = field(default_factory=list)  # those that were looked at
    probed: float | None = None  # seconds of all that are left, by a few steps

    @property
    def left(self) -> int:
        return self.count - self.statuses[RunStatus.FINISHED]

    def hours(self) -> float | None:
        """Estimate for the remaining runs, from the finished ones, or from a few steps of one."""
        if not self.step_seconds and self.probed is not None:
            return self.probed / 3600
        if not self.step_seconds:
            return None if self.left else 0.0
        steps = self.steps_planned or round(mean(self.steps))
        return self.left * steps * mean(self.step_seconds) / 3600

    def gigabytes(self) -> float | None:
        if not self.sizes:
            return None if self.left else 0.0
        return self.left * mean(self.sizes) / GB

    def look_at(self, run: Run, store: RunStore | None) -> None:
        """Take in what a run of it came to so far."""
        self.steps_planned = self.steps_planned or run.options.get("steps")
        status = store.status(run, weights=False).status if store else RunStatus.NOT_STARTED
        if store and status is RunStatus.FINISHED:
            folder = store.folder(run)
            contents = folder.contents()
            try:
                check_run(folder.path, contents)
            except IntegrityError as error:
                warnings.warn(f"left out: {error}", Notice, stacklevel=2)
                status = RunStatus.DAMAGED
            else:
                steps = contents.description["settings"]["steps"]
                self.step_seconds.append(seconds_of(contents.records) / steps)
                self.steps.append(steps)
                self.sizes.append(bytes_of(folder))
        self.statuses[status] += 1
        if status is not RunStatus.FINISHED:
            self.unfinished.append(run)

    def probe(self, prober: Prober) -> None:
        """Try a few steps, where there is something left and nothing finished. A large plan has all runs like the first
        ones."""
        if self.left and not self.step_seconds and self.unfinished:
            seconds = prober.seconds(self.unfinished)
            self.probed = None if seconds is None else seconds * self.left / len(self.unfinished)


Parts = dict[tuple[str, str], Part]


def plan_text(runs: Sequence[Run], store: RunStore | None, execution: Execution, prober: Prober | None = None) -> str:
    """A row per data set and algorithm, and all together; with a `prober`, hours also where nothing is finished."""
    parts: Parts = defaultdict(Part)
    for run in runs:
        part = parts[run.data_name, run.algorithm]
        part.count += 1
        part.look_at(run, store)
    if prober is not None:
        for part in parts.values():
            part.probe(prober)
    return "\n".join([table_text(parts), *cost_notes(parts, [(run, 1) for run in runs], execution, prober)])


def large_plan_text(
    counts: Mapping[tuple[str, str], int],
    first_runs: Callable[[str, str], Iterable[Run]],
    store: RunStore | None,
    execution: Execution,
    prober: Prober | None = None,
) -> Iterator[str]:
    """The same of more runs than there is time to look at one by one: the table, and then what takes seconds.

    Args:
        counts: (data set, algorithm) → runs.
        first_runs: The runs of a data set and an algorithm, which are not taken to their end.
        store: Where they go.
        execution: How they are run.
        prober: Tries a few steps where nothing is finished.
    """
    parts: Parts = {}
    looked_at = max(1, LOOKED_AT // len(counts))
    samples = []
    for (data, algorithm), count in counts.items():
        found = list(islice(first_runs(data, algorithm), looked_at if store else 1))
        part = parts[found[0].data_name, algorithm] = Part(count)
        samples.append((found[0], count))
        for run in found:
            part.look_at(run, store)
        if prober is not None:
            part.probe(prober)
    yield table_text(parts)
    yield (
        f"finished and failed: of the first {looked_at:,} of each row" if store else f"in all {sum(counts.values()):,}"
    )
    yield from cost_notes(parts, samples, execution, prober)


def table_text(parts: Parts) -> str:
    rows: list[Sequence[str]] = [("data set", "algorithm", "runs", "finished", "failed", "hours left", "GB left")]
    for (data, algorithm), part in parts.items():
        rows.append((escape_terminal(data), escape_terminal(algorithm), *_cells([part])))
    if len(parts) > 1:
        rows.append(("all", "", *_cells(list(parts.values()))))
    return "\n".join(align_columns(rows, 2))


def cost_notes(
    parts: Parts, runs: Iterable[tuple[Run, int]], execution: Execution, prober: Prober | None = None
) -> list[str]:
    """Where hours and gigabytes come from; `runs` with how many there are of each."""
    measured = sum(len(part.sizes) for part in parts.values())
    probed = [PROBED, *map(escape_terminal, prober.lines)] if prober is not None and prober.lines else []
    if measured:
        return [f"hours one after the other, and gigabytes, as the {measured:,} finished took and left", *probed]
    unknown = ["hours: unknown until a run of the same data set and algorithm is finished; --probe tries a few steps"]
    return [*(probed or unknown), *kept_models(runs, execution)]


def kept_models(runs: Iterable[tuple[Run, int]], execution: Execution) -> list[str]:
    """Gigabytes by the size of the networks alone, in words."""
    from dspreg.data.registry import dataset_class
    from dspreg.networks.pretrained import size_of

    total, largest = 0, 0
    sizes: dict[tuple[str, int, int], int] = {}
    for run, count in runs:
        data = dataset_class(run.dataset)
        if data is None:
            return [f"gigabytes: unknown until {escape_terminal(run.data_name)} is read"]
        s = resolve_config(TrainConfig.of(run.settings()), cast(DatasetFacts, data))
        network = (s.model, s.image_size, len(data.classes))
        if network not in sizes:
            sizes[network] = size_of(*network)
        evaluations = len({*range(0, s.steps, s.evaluate_every), s.steps - 1})
        total += {"none": 0, "best": 2, "all": 2 + evaluations}[execution.keep] * sizes[network] * count
        largest = max(largest, sizes[network])
    checkpoints = 2 * 4 * largest  # two, each with the network, Adam's two moments and the selected model
    return [
        f"gigabytes by the networks' sizes: {total / GB:,.2f} of models at the end (--keep {execution.keep}), and "
        f"{checkpoints / GB:.2f} of checkpoints during a run; methods with additional networks need more"
    ]


def _cells(parts: Sequence[Part]) -> list[str]:
    runs = sum(part.count for part in parts)
    finished = sum(part.statuses[RunStatus.FINISHED] for part in parts)
    failed = sum(part.statuses[RunStatus.FAILED] + part.statuses[RunStatus.DAMAGED] for part in parts)
    costs = [part.hours() for part in parts], [part.gigabytes() for part in parts]
    return [f"{runs:,}", f"{finished:,}", f"{failed:,}", *(_number(_total(each)) for each in costs)]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 100 or value == 0 else f"{value:.2g}"


def _total(values: Sequence[float | None]) -> float | None:
    return None if any(value is None for value in values) else sum(value for value in values if value is not None)
