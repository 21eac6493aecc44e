"""Records of evaluations, in our layout and in DomainBed's."""

from __future__ import annotations

from typing import Any

import torch

from dspreg.domainbed.records import format_records
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
