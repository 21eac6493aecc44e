"""Trainings in processes of their own that are killed with SIGKILL, and started again until they end."""

import multiprocessing
import os
import signal
import time
import warnings
from pathlib import Path

from dspreg.errors import Notice
from dspreg.training import train

LONGEST = 600.0  # seconds that one attempt may take


def train_and_kill(settings, execution, out: Path, kills: int) -> int:
    """Train with `kills` deaths on the way, each after the run has got further; returns how many there were.

    A process is killed as soon as a checkpoint has been written that was not there when it began: within a step, an
    evaluation or a write, as it happens. The last one is left alone.
    """
    died = 0
    while not (out / "result.json").exists():
        before = checkpoints(out)
        process = multiprocessing.get_context("fork").Process(target=_train, args=(settings, execution, out))
        process.start()
        deadline = time.monotonic() + LONGEST
        while process.is_alive() and (died == kills or checkpoints(out) <= before):
            if time.monotonic() > deadline:
                process.kill()
                raise AssertionError(f"{out} got no further in {LONGEST} seconds")
            process.join(0.01)
        if process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
        process.join()
        if process.exitcode == -signal.SIGKILL:
            died += 1
        elif process.exitcode:
            raise AssertionError(f"{out}: the training ended with {process.exitcode}")
    return died


def checkpoints(out: Path) -> set[str]:
    return {path.name for path in (out / "checkpoints").glob("step-*.safetensors")}


def _train(settings, execution, out):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        train(settings, execution, out)
