"""Each engine's penalty part along a real ERM training: how near is it to `exact`, and which should be the default?

    DSPREG_ROOT=data DSPREG_WEIGHTS=tf_efficientnet_lite0.safetensors python bench/trajectory.py --out build/trajectory

PACS without sketch, a pretrained EfficientNet-Lite0, 3×32 images, Adam; λ = 1e-3, c measured when DSP-Reg measures it.
The network follows the plain gradient; at every step all engines are asked for their penalty part, returned gradient
less g, on the same batch. Parts are compared singly and summed over windows of max(20, 2k) steps, with `exact` on the
same batches and with `exact` on one large batch at the middle of the window. Writes steps.jsonl, windows.jsonl and
the last network, and ends with the table of the windows; `--table` shows it for what is there already.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from plots.trajectory import ENGINES, LAZY, print_table, save_plot
from real import without_sketch
from safetensors.torch import save_file
from torch import Tensor

import dspreg
from dspreg import Batch, DSPReg, ParamVector, train_step, vectors
from dspreg.batches import Objective
from dspreg.data.loader import iterate_batches
from dspreg.penalty import Step, parse_engine
from dspreg.training.experiment import Experiment

BLOCK = 10  # steps summed into one vector; windows are made of these
WINDOWS = {20: 10, 60: 30}  # length: a new one begins every so many steps
LARGE_EVERY, LARGE_AT, LARGE_BATCHES = 30, 10, 32


@dataclass(frozen=True)
class Once(Step):
    """A step that computes g at θ once, whichever engine asks."""

    @cached_property
    def plain(self) -> tuple[Tensor, ParamVector]:
        return Step.gradient(self)

    def gradient(self, v: ParamVector | None = None, h: float = 0.0) -> tuple[Tensor, ParamVector]:
        return self.plain if v is None else Step.gradient(self, v, h)


class Watched(DSPReg):
    """DSP-Reg that asks all engines and follows none: the direction is the plain gradient."""

    parts: dict[str, Tensor]
    share: float

    def gradient(self, objective: Objective, batches: Sequence[Batch]) -> tuple[Tensor, ParamVector]:
        step = Once(self.base.gradient, objective, batches, self.net, self.now, self.weight, self._memory)
        loss, g = step.gradient()
        found = {name: parse_engine(name)(step).gradient - g for name in ENGINES}
        self.parts = {name: part.flat() for name, part in found.items()}
        self.share = float(self.parts["exact"].norm() / g.norm())
        return loss, g

    @property
    def now(self) -> ParamVector:
        """c at this step."""
        return self.c or self.ones()

    def large(self, steps: Sequence[Sequence[Batch]]) -> Tensor:
        """2λ·H(c⊙g), with H and g of all these batches as one."""
        mean = ParamVector()
        for batches in steps:
            _, g = self.base.gradient(lambda b: self.loss(self(b)), batches)
            mean = mean + g / len(steps)
        v = self.now * mean
        total = ParamVector()
        for batches in steps:
            g = vectors.gradient(self.loss(self(batches)), self.net, create_graph=True)
            total = total + vectors.gradient(g.dot(v), self.net)
        return (total * (2 * self.weight / len(steps))).flat()


def likeness(part: Tensor, target: Tensor) -> list[float]:
    """Cosine and ratio of norms; no likeness at all where there is no part, as at momentum's first step."""
    a, b = part.double(), target.double()
    return [float(a @ b / (a.norm() * b.norm())) if a.any() else 0.0, float(a.norm() / b.norm())]


def watch(experiment: Experiment, out: Path) -> None:
    watched = experiment.algorithm()
    assert isinstance(watched, Watched)
    steps, shown = experiment.steps(), experiment.transform(experiment.settings.augment).normalise

    def batches_of(made: list[tuple[Tensor, Tensor]]) -> list[Batch]:
        return [Batch(shown(x), y, d) for d, (x, y) in enumerate(made)]

    blocks: deque[dict[str, Tensor]] = deque(maxlen=max(WINDOWS) // BLOCK)
    larges: dict[int, Tensor] = {}
    total = experiment.settings.steps
    with (out / "steps.jsonl").open("w") as of_steps, (out / "windows.jsonl").open("w") as of_windows:
        for t, made in enumerate(iterate_batches(steps, range(total), experiment.workers)):
            started = time.perf_counter()
            batches = batches_of(made)
            if t % LARGE_EVERY == LARGE_AT:
                fresh = range(10**6 + t * LARGE_BATCHES, 10**6 + (t + 1) * LARGE_BATCHES)  # steps never trained on
                larges[t] = watched.large([batches_of(steps[i]) for i in fresh])
            log = train_step(watched, batches)
            record = {"step": t, "loss": float(log["loss"]), "share": watched.share}
            record |= {"exact": {name: likeness(part, watched.parts["exact"]) for name, part in watched.parts.items()}}
            if t in larges:
                record |= {"large": {name: likeness(part, larges[t]) for name, part in watched.parts.items()}}
            record |= {"seconds": time.perf_counter() - started}
            print(json.dumps(record), file=of_steps, flush=True)
            if t % BLOCK == 0:
                blocks.append({})
            add(blocks[-1], t, watched.parts)
            if (t + 1) % BLOCK == 0:
                for window in ended(blocks, t + 1, larges):
                    print(json.dumps(window), file=of_windows, flush=True)
    save_file({name: p.contiguous() for name, p in watched.net.state_dict().items()}, out / "network.safetensors")


def add(block: dict[str, Tensor], t: int, parts: dict[str, Tensor]) -> None:
    """What every engine, lazy ones included, adds at step t."""
    acting = {name: parts[inner] * k for name, (k, inner) in LAZY.items() if (t + 1) % k == 0}
    for name, part in (parts | acting).items():
        block[name] = block[name] + part if name in block else part.clone()


def ended(blocks: Sequence[dict[str, Tensor]], end: int, larges: dict[int, Tensor]) -> list[dict]:
    """The windows that end here, each with the likeness of all sums to the targets."""
    found = []
    for length, stride in WINDOWS.items():
        start = end - length
        if start < 0 or start % stride:
            continue
        inside = list(blocks)[-length // BLOCK :]
        sums = {n: sum(b[n] for b in inside if n in b) for n in (*ENGINES, *LAZY) if any(n in b for b in inside)}
        window = {"start": start, "length": length}
        window |= {"exact": {name: likeness(part, sums["exact"]) for name, part in sums.items()}}
        near = min((t for t in larges), key=lambda t: abs(t - start - length / 2), default=None)
        if near is not None and abs(near - start - length / 2) <= length / 3:
            mean = larges[near] * length
            window |= {"large": {name: likeness(part, mean) for name, part in sums.items()}, "large_at": near}
        found.append(window)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("build/trajectory"))
    parser.add_argument("--steps", type=int, default=330)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--table", action="store_true", help="show what is in --out, run nothing")
    parser.add_argument("--figures", type=Path, metavar="DIR", help="also draw the picture there")
    options = parser.parse_args()
    if not options.table:
        warnings.simplefilter("ignore", dspreg.Notice)
        torch.set_num_threads(options.threads)
        options.out.mkdir(parents=True, exist_ok=True)
        sys.modules.setdefault("trajectory", sys.modules["__main__"])
        experiment = without_sketch(options.image_size, algorithm="trajectory.Watched", steps=options.steps)
        watch(experiment, options.out)
    print_table(options.out)
    if options.figures:
        save_plot(options.out, options.figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
