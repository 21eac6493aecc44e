"""c on many images at once, or of a running mean over refreshes on few: which is nearer to c on all images?

    DSPREG_ROOT=data DSPREG_WEIGHTS=tf_efficientnet_lite0.safetensors python bench/running.py --out build/running

PACS without sketch, a pretrained Lite0 that follows plain ERM. At every refresh s is measured on 128 images per domain,
at the last ones also on 512, as DSP-Reg draws them: the 128 are among the 512. There c of either, and c of running
means of the s on 128 images, are compared with c on all images to train on, at most 2,048 per domain: Spearman's
correlation over the parameters that both sides are sensitive to. `undivided` is the running mean of s as it is, in
which the first refreshes weigh more. Started again it shows what is there.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import torch
from noise import agreement
from real import without_sketch
from rich.console import Console
from rich.table import Table

import dspreg
from dspreg import Batch, ParamVector, train_step, vectors
from dspreg.algorithms import Algorithm
from dspreg.algorithms.measure import measuring, metering
from dspreg.sensitivity.refresh import measure_s
from dspreg.sensitivity.running import RunningSensitivity
from dspreg.sensitivity.samples import Samples
from dspreg.sensitivity.statistics import coefficient_of_variation

MANY, FEW, ALL = 16, 4, 64  # batches of 32 images per domain
MEMORIES = (0.5, 0.75, 0.9)
SHARED = 512  # images per domain of the training's own steps


def measure(algorithm: Algorithm, batches: int) -> tuple[dict[str, ParamVector], float]:
    """s of every domain, and the CPU seconds that it took."""
    started = time.process_time()
    with measuring(algorithm, batches) as (meter, f, domains):
        found = measure_s(meter, f, domains)
    return found, time.process_time() - started


class SharedPasses:
    """s of every domain, summed over the batches of training steps, and the CPU seconds beyond their gradients."""

    def __init__(self) -> None:
        self.s: dict[str, ParamVector] = {}
        self.seconds = 0.0

    def add(self, algorithm: Algorithm, batches: Sequence[Batch]) -> None:
        started = time.process_time()
        vectors.gradient(algorithm.loss(algorithm(batches)), algorithm.net)
        plain = time.process_time()
        samples = {algorithm.task.domains[b.domain]: [Samples(b.x, b.y)] for b in batches}
        with metering(algorithm, (*algorithm.task.key, algorithm.t)) as (meter, f):
            found = measure_s(meter, f, samples)
        self.seconds += time.process_time() - plain - (plain - started)
        self.s = {d: self.s[d] + s if self.s else s for d, s in found.items()}

    def c(self) -> ParamVector:
        return coefficient_of_variation(list(self.s.values()))


def flat(c: ParamVector) -> torch.Tensor:
    """NaN where no domain is sensitive."""
    values = c.flat().float()
    return torch.where(values > 0, values, torch.nan)


def follow(options: argparse.Namespace, console: Console) -> None:
    experiment = without_sketch(options.image_size, batch_size=options.batch)
    algorithm = experiment.algorithm()
    steps, shown = experiment.steps(), experiment.transform(experiment.settings.augment).normalise
    running = {f"128, memory {m}": RunningSensitivity(m) for m in MEMORIES}
    undivided: dict[str, ParamVector] = {}
    last = options.every * options.refreshes
    shared, sharing = SharedPasses(), min(options.every, -(-SHARED // options.batch))  # steps before a refresh
    with (options.out / "running.jsonl").open("w") as file:
        for t in range(last + 1):
            if t and t % options.every == 0:
                few, cheap = measure(algorithm, FEW)
                for each in running.values():
                    each.add(few)
                undivided = {d: undivided[d] * 0.75 + s * 0.25 if undivided else s * 0.25 for d, s in few.items()}
                if t > last - options.every * options.compared:
                    many, dear = measure(algorithm, MANY)
                    whole, _ = measure(algorithm, ALL)
                    truth = flat(coefficient_of_variation(list(whole.values())))
                    c = {
                        "512": coefficient_of_variation(list(many.values())),
                        "128": coefficient_of_variation(list(few.values())),
                        **{name: each.c() for name, each in running.items()},
                        "128, memory 0.75, undivided": coefficient_of_variation(list(undivided.values())),
                        f"shared, {sharing * options.batch}": shared.c(),
                    }
                    seconds = dict.fromkeys(c, cheap) | {"512": dear, list(c)[-1]: shared.seconds}
                    found = {name: agreement(flat(each), truth) for name, each in c.items()}
                    record = {"step": t, "agreement": found, "seconds": seconds}
                    print(json.dumps(record), file=file, flush=True)
                    console.print(f"step {t}: {found}")
            batches = [Batch(shown(x), y, d) for d, (x, y) in enumerate(steps[t])]
            left = options.every - t % options.every  # steps to the next refresh, this one included
            if left == sharing:
                shared = SharedPasses()
            if left <= sharing and t >= last - options.every * options.compared:
                shared.add(algorithm, batches)
            train_step(algorithm, batches)


def print_table(records: Sequence[dict], console: Console) -> None:
    table = Table("images per domain and refresh", *(f"step {r['step']}" for r in records), "CPU s of a refresh")
    for name in records[0]["agreement"]:
        each = [f"{r['agreement'][name]:.2f}" for r in records]
        table.add_row(name, *each, f"{median(r['seconds'][name] for r in records):.1f}")
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("build/running"))
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--batch", type=int, default=32, help="images per domain and step")
    parser.add_argument("--every", type=int, default=100, help="steps from refresh to refresh; DSP-Reg on PACS: 100")
    parser.add_argument("--refreshes", type=int, default=8)
    parser.add_argument("--compared", type=int, default=4, help="the last refreshes, whose c are compared")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", dspreg.Notice)
    console = Console(width=130)
    options.out.mkdir(parents=True, exist_ok=True)
    if not (options.out / "running.jsonl").exists():
        follow(options, console)
    print_table([json.loads(line) for line in (options.out / "running.jsonl").open()], console)
    return 0


if __name__ == "__main__":
    sys.exit(main())
