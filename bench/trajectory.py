"""Each engine's penalty part along a real ERM training: how near is it to `exact`, and which should be the default?

    DSPREG_ROOT=data DSPREG_WEIGHTS=tf_efficientnet_lite0.safetensors python bench/trajectory.py --out build/trajectory
    … --network silu --out build/trajectory-silu      # Lite0 with SiLU, its weights trained on after the change
    … --network vit --before 300 --no-large --out build/trajectory-vit     # a ViT-tiny, from random weights

PACS without sketch, a pretrained EfficientNet-Lite0, 3×32 images, Adam; λ = 1e-3, c measured when DSP-Reg measures it.
The network follows the plain gradient; at every step all engines are asked for their penalty part, returned gradient
less g, on the same batch. Parts are compared singly and summed over windows of max(20, 2k) steps, with `exact` on the
same batches and with `exact` on one large batch at the middle of the window. `gradients` is the CPU time of an engine
over that of g. Writes steps.jsonl, windows.jsonl and the last network, and ends with the table of the windows;
`--table` shows it for what is there already. Started again it goes on from the last 20 steps; a longer window that was
cut in two is left out.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path

import torch
from plots.trajectory import ENGINES, LAZY, TAKES_PLAIN, print_table, save_plot
from real import without_sketch
from safetensors.torch import save_file
from torch import Tensor, nn

import dspreg
from dspreg import Batch, DSPReg, ParamVector, train_step, vectors
from dspreg.batches import Objective
from dspreg.data.readers import iterate_batches
from dspreg.penalty import Step, parse_engine
from dspreg.training.experiment import Experiment
from dspreg.training.serialization import pack, unpack

BLOCK = 10  # steps summed into one vector; windows are made of these
WINDOWS = {20: 10, 60: 30}  # length: a new one begins every so many steps
LARGE_EVERY, LARGE_AT, LARGE_BATCHES = 30, 10, 32
SAVE_EVERY = 20  # a whole number of windows of 20
NETWORKS = {  # name: the options of an experiment
    "lite0": {},
    "silu": {},  # Lite0's weights under another activation: train it on with --before
    "vit": {"model": "vit_tiny_patch16_224", "weights": "none"},
    "convnext": {"model": "convnext_atto", "weights": "none"},  # GELU
    "resnet18": {"model": "resnet18", "weights": "none"},
}


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

    asked: Sequence[str] = ENGINES
    parts: dict[str, Tensor]
    cpu: dict[str, float]  # seconds of each engine, without g where it starts from a g that is there
    share: float
    watching = True

    def gradient(self, objective: Objective, batches: Sequence[Batch]) -> tuple[Tensor, ParamVector]:
        if not self.watching:
            return self.base.gradient(objective, batches)
        self.stage("_asked_at", self.t)  # so that momentum's mean goes on
        step = self.pose(objective, batches)
        once = Once(**{f.name: getattr(step, f.name) for f in fields(step)})
        started = time.process_time()
        loss, g = once.gradient()
        self.cpu, self.parts = {"plain": time.process_time() - started}, {}
        for name in self.asked:
            started = time.process_time()
            total = parse_engine(name)(once if name in TAKES_PLAIN else step).gradient
            self.cpu[name] = time.process_time() - started
            self.parts[name] = (total - g).flat()
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


def watch(
    experiment: Experiment, out: Path, engines: Sequence[str], before: int, gap: int, large: bool, silu: bool
) -> None:
    watched = experiment.algorithm()
    assert isinstance(watched, Watched)
    watched.asked = engines
    if silu:
        use_silu(watched.net)
    steps, shown = experiment.steps(), experiment.transform(experiment.settings.augment).normalise

    def batches_of(made: list[tuple[Tensor, Tensor]]) -> list[Batch]:
        return [Batch(shown(x), y, d) for d, (x, y) in enumerate(made)]

    start = resume(watched, out)
    if not start and before:
        watched.watching = False
        for i in range(before):
            train_step(watched, batches_of(steps[2 * 10**6 + i]))
        watched.stack.steps, watched.watching = 0, True
        watched.c, watched.refreshed_at = ParamVector(), None
    blocks: deque[dict[str, Tensor]] = deque(maxlen=max(WINDOWS) // BLOCK if longest(engines) > 10 else 2)
    larges: dict[int, Tensor] = {}
    total = experiment.settings.steps
    with (out / "steps.jsonl").open("a") as of_steps, (out / "windows.jsonl").open("a") as of_windows:
        for t, made in zip(
            range(start, total), iterate_batches(steps, range(start, total), experiment.workers), strict=True
        ):
            started = time.perf_counter()
            batches = batches_of(made)
            watched.watching = t % (20 + gap) < 20
            if not watched.watching:
                blocks.clear()
                train_step(watched, batches)
                continue
            if large and t % LARGE_EVERY == LARGE_AT:
                fresh = range(10**6 + t * LARGE_BATCHES, 10**6 + (t + 1) * LARGE_BATCHES)  # steps never trained on
                larges[t] = watched.large([batches_of(steps[i]) for i in fresh])
            log = train_step(watched, batches)
            record = {"step": t, "loss": float(log["loss"]), "share": watched.share, "cpu": watched.cpu}
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
            if (t + 1) % SAVE_EVERY == 0:
                optimizer = watched.stack.optimizer.state_dict()
                (out / "state.new").write_bytes(pack((dict(watched.state_dict()), optimizer)))
                (out / "state.new").replace(out / "state.safetensors")
    save_file({name: p.contiguous() for name, p in watched.net.state_dict().items()}, out / "network.safetensors")


def resume(watched: Watched, out: Path) -> int:
    """Go back to the last saved step, and drop the lines behind it."""
    state, start = out / "state.safetensors", 0
    if state.exists():
        (weights, optimizer), _ = unpack(state.read_bytes(), str(state))
        watched.load_state_dict(weights)
        watched.stack.optimizer.load_state_dict(optimizer)
        start = watched.t
    for name in ("steps.jsonl", "windows.jsonl"):
        lines = (out / name).read_text().splitlines() if (out / name).exists() else []
        found = [json.loads(line) for line in lines]
        kept = [r for r in found if r.get("step", r.get("start", 0) + r.get("length", 1) - 1) < start]
        (out / name).write_text("".join(json.dumps(r) + "\n" for r in kept))
    return start


def use_silu(net: nn.Module) -> None:
    """SiLU in place of every ReLU6."""
    for module in net.modules():
        for name, child in module.named_children():
            if isinstance(child, nn.ReLU6):
                setattr(module, name, nn.SiLU())


def longest(engines: Sequence[str]) -> int:
    return max((k for k, inner in LAZY.values() if inner in engines), default=1)


def add(block: dict[str, Tensor], t: int, parts: dict[str, Tensor]) -> None:
    """What every engine, lazy ones included, adds at step t."""
    acting = {name: parts[inner] * k for name, (k, inner) in LAZY.items() if inner in parts and (t + 1) % k == 0}
    for name, part in (parts | acting).items():
        block[name] = block[name] + part if name in block else part.clone()


def ended(blocks: Sequence[dict[str, Tensor]], end: int, larges: dict[int, Tensor]) -> list[dict]:
    """The windows that end here, each with the likeness of all sums to the targets."""
    found = []
    for length, stride in WINDOWS.items():
        start = end - length
        if start < 0 or start % stride or len(blocks) * BLOCK < length:
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
    parser.add_argument("--batch", type=int, default=32, help="images per domain")
    parser.add_argument(
        "--network", choices=NETWORKS, default="lite0", help="vit, convnext and resnet18 have random weights"
    )
    parser.add_argument("--before", type=int, default=0, help="ERM steps before the first that is looked at")
    parser.add_argument("--gap", type=int, default=0, help="plain ERM steps after every window of 20; a multiple of 20")
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=ENGINES, help="exact is always there")
    parser.add_argument("--no-large", action="store_true", help="leave the large batch out")
    parser.add_argument("--table", action="store_true", help="show what is in --out, run nothing")
    parser.add_argument("--figures", type=Path, metavar="DIR", help="also draw the picture there")
    options = parser.parse_args()
    if not options.table:
        warnings.simplefilter("ignore", dspreg.Notice)
        torch.set_num_threads(options.threads)
        options.out.mkdir(parents=True, exist_ok=True)
        sys.modules.setdefault("trajectory", sys.modules["__main__"])
        settings = {"algorithm": "trajectory.Watched", "steps": options.steps, "batch_size": options.batch}
        experiment = without_sketch(options.image_size, **settings, **NETWORKS[options.network])
        engines = list(dict.fromkeys(["exact", *options.engines]))
        silu = options.network == "silu"
        watch(experiment, options.out, engines, options.before, options.gap, not options.no_large, silu)
    print_table(options.out)
    if options.figures:
        save_plot(options.out, options.figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
