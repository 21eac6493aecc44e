"""Resources of this machine, cores and GPUs, and the share of each process. Devices are resolved ones, never `auto`."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from dspreg.config.train_config import Execution


@dataclass(frozen=True)
class Slot:
    """The share of one process: its cores (None: any) and its GPU (None: none)."""

    cores: tuple[int, ...] | None = None
    gpu: str | None = None


def usable_cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def usable_gpus(execution: Execution) -> list[str]:
    """The GPUs that this process may use, by the names that CUDA_VISIBLE_DEVICES takes."""
    if execution.device != "cuda":
        return []
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [name for name in given.split(",") if name]
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]


def default_jobs(execution: Execution) -> int:
    """Default number of parallel runs: one per GPU or other accelerator, or as many as the cores have room for."""
    if execution.device != "cpu":
        return max(1, len(usable_gpus(execution)))
    return max(1, len(usable_cores()) // (execution.threads or 1))


def fill_execution(execution: Execution, jobs: int) -> Execution:
    """Fill in defaults of the execution: one thread per run, so that results don't depend on `jobs`."""
    # on the CPU the cores are busy training
    readers = min(4, len(usable_cores()) // max(1, jobs)) if execution.device != "cpu" else 0
    workers = execution.workers if execution.workers is not None else readers
    return replace(execution, threads=execution.threads or 1, workers=workers)


def assign_slots(jobs: int, execution: Execution) -> list[Slot]:
    """A share for each process. Cores are pinned only if all are in use: another sweep may use the rest."""
    cores, gpus, each = usable_cores(), usable_gpus(execution), execution.threads or 1
    full = jobs * each == len(cores) and hasattr(os, "sched_setaffinity")
    return [
        Slot(
            tuple(cores[n * each : (n + 1) * each]) if full else None,
            gpus[n % len(gpus)] if gpus else None,
        )
        for n in range(jobs)
    ]
