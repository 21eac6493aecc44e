"""Records of evaluations, in our layout, DomainBed's and TensorBoard's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from dspreg.domainbed.records import format_records
from dspreg.errors import ConfigError
from dspreg.kinds import figures_of
from dspreg.training.experiment import Experiment
from dspreg.training.state import State


def make_record(
    experiment: Experiment,
    state: State,
    t: int,
    figures: dict[str, Any],
    evaluating: float,
) -> dict[str, Any]:
    """One line of records.jsonl; only `seconds` differs between two identical runs."""
    log, seconds = state.means()
    return {
        "step": t,
        "epoch": t / experiment.epoch,
        "log": log,  # means over the steps since the previous record
        # accuracy, or figures of another kind of task: domain → "in", "out"; validation: mean over the sources of their
        # "out", None without one; metrics: source → other figures of its "out", where they select
        **figures,
        "weights": experiment.weights,
        "seconds": seconds | {"evaluate_seconds": evaluating},
    }


def domainbed_lines(experiment: Experiment, records: list[dict[str, Any]]) -> str:
    """results.jsonl as DomainBed writes it."""
    settings = experiment.settings.to_record() | {"dataset": experiment.data.name}
    smallest = min(len(inside) for inside, _ in experiment.splits.values())
    memory = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0
    return format_records(settings, experiment.data.domains, smallest, records, memory=memory)


def require_tensorboard() -> None:
    """Refuse `--tensorboard` without TensorBoard, before the run exists."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError as missing:
        raise ConfigError("--tensorboard needs TensorBoard: pip install 'dspreg[tensorboard]'") from missing


class TensorBoard:
    """The scalars of every record as TensorBoard events."""

    def __init__(self, folder: Path, t: int):
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(folder), purge_step=t)

    def add(self, record: dict[str, Any]) -> None:
        scalars = {f"log/{name}": value for name, value in record["log"].items()}
        scalars |= {f"{w}/{name}": v for name, each in figures_of(record).items() for w, v in each.items()}
        scalars |= {"validation": record["validation"]} if record["validation"] is not None else {}
        for name, value in scalars.items():
            self.writer.add_scalar(name, value, record["step"])
        self.writer.flush()
