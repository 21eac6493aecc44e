"""What the penalty costs in a training: steps a second and peak memory, refreshes included, of ERM and every engine.

Variants take turns in one process, block by block, so that what else the machine does falls on all. A block has one
refresh in it. Training images are read outside of the time, as other processes would do it; those of a refresh inside.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import torch

from dspreg.algorithms import DSPReg
from dspreg.batches import Batch
from dspreg.config.train_config import Execution
from dspreg.devices import send
from dspreg.errors import Notice, ResourceError
from dspreg.launch.pool import worker_context
from dspreg.paper.item import Item
from dspreg.paper.render import scale_table
from dspreg.paper.scales import RUNNING, Scale, running_options
from dspreg.reporting.table import Cell, Row, Table
from dspreg.training.execution import threads
from dspreg.training.experiment import Experiment, prepare_experiment
from dspreg.training.step import train_step

BLOCKS = 3  # timed
GB = 1e9
SPEED, MEMORY = (2.9, 2.8), (22.9, 24.3)  # the paper's, ERM and DSP-Reg
COLUMNS = ("steps/s", "time, ×", "refreshes, ×", "of blocks", "peak, GB", "memory, ×", "refreshes", "planned", "steps")
NOTES = (
    "time, ×: of a whole run, in ERM's; refreshes, ×: what of that measures c, reading its images included; of blocks: "
    "the least and the most; refreshes: in the timed steps",
    "peak: of a fresh process, libraries included, two steps with a refresh between them (lazy: acting on the second); "
    "on a GPU what torch allocated there",
    "paper: four A100; it does not say how the second derivative is taken; beside exact, which is its formula",
)


class TimedVariant:
    """One variant: its stack, and where it is."""

    def __init__(self, experiment: Experiment, spec: str):
        self.algorithm = experiment.with_algorithm(spec).algorithm()
        self.steps = experiment.steps()
        self.normalise = experiment.transform(experiment.settings.augment).normalise
        self.device = torch.device(experiment.execution.device)
        self.refreshes: set[int] = set()
        self.without: list[float] = []  # seconds of every step without a refresh
        self.within: list[float] = []  # and with one

    @property
    def layer(self) -> DSPReg | None:
        return next((layer for layer in self.algorithm.layers() if isinstance(layer, DSPReg)), None)

    def block(self, length: int, pause: Callable[[], None] = lambda: None) -> float:
        """Seconds of the next `length` steps."""
        spent = 0.0
        for _ in range(length):
            pause()
            batches = self.batches()
            started = self.now()
            train_step(self.algorithm, batches)
            seconds = self.now() - started
            spent += seconds
            at = self.layer.refreshed_at if self.layer is not None else None
            if at is None or at in self.refreshes:
                self.without.append(seconds)
            else:
                self.within.append(seconds)
                self.refreshes.add(at)
        return spent

    def refresh_seconds(self) -> float:
        """Seconds of all refreshes so far: what their steps took beyond the median step."""
        return sum(self.within) - len(self.within) * median(self.without) if self.within and self.without else 0.0

    def batches(self) -> list[Batch]:
        read, device = enumerate(self.steps[self.algorithm.t]), self.device
        return [Batch(self.normalise(send(x, device)), send(y, device), d) for d, (x, y) in read]

    def now(self) -> float:
        """The process's own time; where something works beside it, threads or a GPU, the clock on the wall."""
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)
        elif torch.get_num_threads() == 1:
            return time.process_time()
        return time.perf_counter()


@dataclass
class Cost:
    """Of one variant."""

    seconds: list[float] = field(default_factory=list)  # of every block
    refreshes: int = 0
    peak: float = 0.0
    refreshing: float = 0.0  # seconds of all refreshes, which are in `seconds`


def measure_costs(
    item: Item,
    execution: Execution,
    report: Callable[[str], None] = lambda _: None,
    pause: Callable[[], None] = lambda: None,
) -> tuple[dict[str, Cost], int]:
    """Time every variant's blocks in turn, then measure its memory.

    Args:
        item: The overhead.
        execution: How it is run.
        report: Receives a line after each part.
        pause: Raises to end it early.

    Returns:
        The costs by label, and how many steps a block has.
    """
    settings = settings_of(item)
    execution = replace(execution, workers=0)  # else a refresh reads its images in processes whose time is not ours
    torch.set_num_threads(threads(replace(execution, threads=execution.threads or 1)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        experiment = prepare_experiment(settings, execution)
        if find_spec("resource") is None and torch.device(experiment.execution.device).type != "cuda":
            raise ResourceError(
                "this system does not tell the peak memory of a process; run this item on Linux, macOS or a GPU"
            )
        variants = {variant.label: TimedVariant(experiment, variant.spec) for variant in item.variants}
        costs = {label: Cost() for label in variants}
        length = block_of(item.scale, experiment.epoch)
        for variant in variants.values():
            variant.block(1, pause)  # warms up, and leaves the refresh of every block inside of it
        for n in range(BLOCKS):
            for label, variant in variants.items():
                costs[label].seconds.append(variant.block(length, pause))
            report(f"block {n + 1} of {BLOCKS}, {length} steps of each variant")
        for label, variant in variants.items():
            costs[label].refreshes, costs[label].refreshing = len(variant.refreshes), variant.refresh_seconds()
        variants.clear()
    for label, cost in costs.items():
        pause()
        cost.peak = peak_of(settings | {"algorithm": two_step_spec(item.scale, label)}, execution)
        report(f"memory of {label}")
    return costs, length


def settings_of(item: Item) -> dict[str, Any]:
    """Of the training that is timed: without sketch, or what the scale holds out first."""
    (dataset,) = item.domains()
    target = item.scale.targets[0] if item.scale.targets else "sketch"
    return {"dataset": dataset, "targets": (target,), "algorithm": "ERM", **item.scale.settings, **item.settings}


def block_of(scale: Scale, epoch: int) -> int:
    """Steps from one refresh to the next, at T = 2."""
    return 2 * (scale.epoch or epoch)


def two_step_spec(scale: Scale, label: str) -> str:
    """A variant whose second step has a refresh before it and the penalty in it."""
    if label == "ERM":
        return "ERM"
    engine, *running = label.split(RUNNING)
    engine = "lazy(2)" if engine.startswith("lazy") else engine
    options = {**scale.penalty, **(running_options(scale) if running else {})}
    more = "".join(f", {name}={value!r}" for name, value in options.items())
    return f"DSPReg(engine={engine!r}, refresh_steps=1{more})"


def peak_of(settings: Mapping[str, Any], execution: Execution) -> float:
    """Gigabytes at the peak of two steps, in a process of its own."""
    context = worker_context()
    mine, theirs = context.Pipe()
    process = context.Process(target=_two_steps, args=(theirs, dict(settings), execution), daemon=True)
    process.start()
    theirs.close()
    try:
        found = float(mine.recv())
    except EOFError:
        process.join()
        raise ResourceError(f"the process that measures memory ended with code {process.exitcode}") from None
    process.join()
    return found


def _two_steps(pipe: Connection, settings: dict[str, Any], execution: Execution) -> None:
    torch.set_num_threads(execution.threads or 1)
    warnings.simplefilter("ignore")
    experiment = prepare_experiment(settings, replace(execution, check_images="never"))
    variant = TimedVariant(experiment, settings["algorithm"])
    variant.block(2)
    if variant.device.type == "cuda":
        pipe.send(torch.cuda.max_memory_allocated(variant.device) / GB)
    else:
        pipe.send(peak_memory() / GB)


def peak_memory() -> float:
    """Bytes at the peak of this process."""
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)


def render_tables(item: Item, costs: Mapping[str, Cost], length: int) -> list[Table]:
    """Every variant, the paper's figures beside ERM and `exact`; the sentence last.

    Args:
        item: The overhead.
        costs: By label of variant.
        length: Steps of a block.
    """
    base, rows = costs["ERM"], []
    for variant in item.variants:
        each = costs[variant.label]
        ratios = [a / b for a, b in zip(each.seconds, base.seconds, strict=True)]
        ratio, number = sum(each.seconds) / sum(base.seconds), length * len(each.seconds)
        wanted = 0 if variant.label == "ERM" else len(each.seconds)
        ours = [
            Cell(value=number / sum(each.seconds), decimals=2),
            Cell(value=ratio, decimals=3),
            Cell() if variant.label == "ERM" else Cell(value=each.refreshing / sum(base.seconds), decimals=3),
            Cell(text=f"{min(ratios):.3f}–{max(ratios):.3f}"),
            Cell(value=each.peak, decimals=3),
            Cell(value=each.peak / base.peak, decimals=3),
        ]
        counted = (Cell(text=str(each.refreshes)), Cell(text=str(wanted)), Cell(text=str(number)))
        rows.append(Row(variant.label, "ours", (*ours, *counted)))
        if variant.label in ("ERM", "exact"):
            rows += _published_rows(
                variant.label, ours, 0 if variant.label == "ERM" else 1, apart=item.scale.data is None
            )
    title = f"{item.what}: {BLOCKS} blocks of {length} steps of each variant, in turn"
    made = Table(
        item.name, title, "training", COLUMNS, tuple(rows), (*NOTES, run_sentence(costs), cost_sentence(costs))
    )
    return [*scale_table(item), made]


def run_sentence(costs: Mapping[str, Cost]) -> str:
    """A whole run of every variant as its steps and its refreshes, beside the paper's."""
    total = sum(costs["ERM"].seconds)
    parts = [
        f"{label} {(sum(each.seconds) - each.refreshing) / total:.3f} + {each.refreshing / total:.3f}"
        for label, each in costs.items()
        if label != "ERM"
    ]
    return (
        f"A whole run, steps + refreshes in ERM's: {', '.join(parts)}; the paper has {SPEED[0] / SPEED[1]:.3f} in all."
    )


def cost_sentence(costs: Mapping[str, Cost]) -> str:
    """One sentence."""
    base = costs["ERM"]
    parts = [
        f"{label} {sum(each.seconds) / sum(base.seconds):.2f}× and {each.peak / base.peak:.2f}×"
        for label, each in costs.items()
        if label != "ERM"
    ]
    theirs = f"{SPEED[0] / SPEED[1]:.2f}× and {MEMORY[1] / MEMORY[0]:.2f}×"
    return f"Time and memory in ERM's, refreshes included: {', '.join(parts)}; the paper has {theirs}."


def _published_rows(label: str, ours: list[Cell], which: int, *, apart: bool) -> list[Row]:
    time_ratio, memory_ratio = SPEED[0] / SPEED[which], MEMORY[which] / MEMORY[0]
    theirs = [
        Cell(value=SPEED[which], decimals=1), Cell(value=time_ratio, decimals=3), Cell(), Cell(),
        Cell(value=MEMORY[which], decimals=1), Cell(value=memory_ratio, decimals=3), Cell(), Cell(), Cell(),
    ]  # fmt: skip
    rows = [Row(label, "paper", tuple(theirs))]
    if which and apart:  # of ratios alone: another machine has another clock
        differences = [Cell()] * len(COLUMNS)
        for at in (COLUMNS.index("time, ×"), COLUMNS.index("memory, ×")):
            differences[at] = Cell(value=(ours[at].value or 0.0) - (theirs[at].value or 0.0), decimals=3, signed=True)
        rows.append(Row(label, "difference", tuple(differences)))
    return rows
