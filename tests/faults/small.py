"""The training that faults are tried on: as short as it can be, with every kind of state and every phase in it."""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from dspreg.algorithms.dsp_reg import DSPReg
from dspreg.training import loop, train
from dspreg.training.checkpoint import Checkpoints
from helpers import tiny

torch.set_num_threads(1)  # a process with a pool of threads can't be forked safely

# Dropout, Adam, weights of domains, c, a running mean of gradients; three evaluations and two refreshes in seven steps.
SMALL = {
    "algorithm": tiny.SETTINGS["algorithm"].replace("refresh_steps=5", "refresh_steps=3"),
    "model": "small-cnn",
    "image_size": 8,
    "steps": 7,
    "batch_size": 2,
    "evaluate_every": 3,
    "augment": False,
    "augment_validation": False,
}
# Batch norm that moves and augmentation as well, at eight times the price.
FULL: dict[str, Any] = {}

# In the order in which a training comes to them; whatever is in none of them is "starting".
PHASES = (
    "starting", "resuming", "measuring c", "stepping", "evaluating", "checkpointing", "finishing", "clearing",
)  # fmt: skip
FUNCTIONS = (
    (loop, "resume", "resuming"),
    (loop, "profile_stack", "measuring c"),
    (DSPReg, "measure_c_and_mean", "measuring c"),
    (loop, "step", "stepping"),
    (loop, "evaluate", "evaluating"),
    (Checkpoints, "save", "checkpointing"),
    (loop, "finish_run", "finishing"),
    (Checkpoints, "clear", "clearing"),
)


def make_place() -> tempfile.TemporaryDirectory[str]:
    """A scratch folder in memory where there is some: what is killed here never tests the disk itself."""
    return tempfile.TemporaryDirectory(prefix="faults-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)


def make_images(folder: Path) -> Path:
    return tiny.make_images(folder / "woods", per_class=2)


def run(root: Path, out: Path, settings: dict[str, Any] | None = None, **how: Any) -> dict[str, Any]:
    """Train or resume, in silence."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return train(
            tiny.settings(root, **(SMALL if settings is None else settings)),
            tiny.execution(**{"profile": "auto", "keep": "all", **how}),
            out,
        )


def ending(out: Path) -> dict[str, Any]:
    """All that a finished run says, without what a clock measured and how often it was to be saved."""
    described = json.loads((out / "run.json").read_text(encoding="utf-8"))
    for name in ("save_every", "workers"):
        described["where"].pop(name)
    return tiny.ending(out) | {"run": described}


@contextmanager
def watched(entered: Callable[[int], None], left: Callable[[int], None] = lambda phase: None) -> Iterator[None]:
    """Call back with the number of each phase that begins, and of the one that goes on when it is over."""
    within = [0]

    def wrap(function: Callable[..., Any], number: int) -> Callable[..., Any]:
        def watching(*given: Any, **options: Any) -> Any:
            within.append(number)
            entered(number)
            try:
                return function(*given, **options)
            finally:
                within.pop()
                left(within[-1])

        return watching

    with ExitStack() as patches:
        for owner, name, phase in FUNCTIONS:
            function = wrap(getattr(owner, name), PHASES.index(phase))
            patches.enter_context(mock.patch.object(owner, name, function))
        entered(0)
        yield
