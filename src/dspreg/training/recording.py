"""Records: what an evaluation leaves, in our layout, DomainBed's and TensorBoard's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from dspreg.errors import ConfigError
from dspreg.training.experiment import Experiment
from dspreg.training.state import State


def record_of(
    experiment: Experiment,
    state: State,
    t: int,
    accuracy: dict[str, dict[str, float]],
    validation: float,
    evaluating: float,
) -> dict[str, Any]:
    """One line of records.jsonl; `seconds` is all that a clock measured and the only part that two runs differ in."""
    log, seconds = state.means()
    return {
        "step": t,
        "epoch": t / experiment.epoch,
        "log": log,  # means over the steps since the record before
        "accuracy": accuracy,
        "validation": validation,  # mean over the sources of their "out" accuracy
        "weights": experiment.weights,
        "seconds": seconds | {"evaluate_seconds": evaluating},
    }


def domainbed_lines(experiment: Experiment, records: list[dict[str, Any]]) -> str:
    """results.jsonl as DomainBed writes it: environments by number, everything on one level."""
    s, domains = experiment.settings, experiment.data.domains
    sizes = [len(inside) for inside, _ in experiment.splits.values()]
    hparams = {
        "data_augmentation": s.augment,
        "resnet_dropout": s.dropout,
        "freeze_bn": s.frozen_bn,
        "lr": s.lr,
        "weight_decay": s.weight_decay,
        "batch_size": s.batch_size,
    }
    arguments = {
        "algorithm": s.algorithm,
        "dataset": experiment.data.name,
        "task": "domain_generalization",
        "test_envs": [domains.index(name) for name in s.targets],
        "trial_seed": s.trial,
        "hparams_seed": s.draw,
        "holdout_fraction": s.holdout,
        "uda_holdout_fraction": 0,
        "seed": 0,
        "steps": s.steps,
        "checkpoint_freq": s.evaluate_every,
    }
    memory = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0
    lines = []
    for record in records:
        line: dict[str, Any] = {"step": record["step"], "epoch": record["step"] * s.batch_size / min(sizes)}
        line |= {"step_time": record["seconds"]["step_seconds"], "mem_gb": memory, **record["log"]}
        for name, each in record["accuracy"].items():
            line |= {f"env{domains.index(name)}_{which}_acc": value for which, value in each.items()}
        lines.append(json.dumps(line | {"hparams": hparams, "args": arguments}, sort_keys=True, allow_nan=False))
    return "".join(line + "\n" for line in lines)


def require_tensorboard() -> None:
    """Said before a run exists."""
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
        scalars |= {f"{w}/{name}": v for name, each in record["accuracy"].items() for w, v in each.items()}
        for name, value in (scalars | {"validation": record["validation"]}).items():
            self.writer.add_scalar(name, value, record["step"])
        self.writer.flush()
