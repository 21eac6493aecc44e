"""How cost grows with images, parameters, domains and runs: seconds on log axes, and the exponents of straight lines.

    python bench/scale.py --part images          # of a step, and of measuring c
    python bench/scale.py --part parameters
    python bench/scale.py --part domains
    python bench/scale.py --part runs            # status, report, the start of a sweep, leases
    python bench/scale.py --part runs --runs 1000000 --store build/million    # keeps the store; needs 12 GB

Every part takes minutes on one thread. CPU seconds, medians of rounds in which sizes alternate; for `runs` of whole
processes, one each. What is measured is added to `<part>.jsonl` in `--data`, and the picture in `--out` shows all that
is there, the last of what was measured twice. An exponent is fitted to the largest half of the sizes, where fixed costs
no longer show: 1 is in proportion.

Steps are of a plain network of 3×3 convolutions on random images, so that only one thing grows. Stores are made by
bench/many_runs.py: nobody trained these runs, but every file that is verified is there.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median

import torch
from clock import alternate, measure_process
from leases import measure_rates
from many_runs import ALGORITHMS, DATA, make, runs
from plots.growth import draw, print_table
from stores import measure_command
from torch import Tensor, nn

import dspreg
from dspreg import Batch, Task, parse, train_step
from dspreg.errors import Preempted
from dspreg.launch.queue import RunQueue
from dspreg.networks import Featurizer
from dspreg.protocol.sweep_file import Sweep

METHODS = {
    "ERM": "ERM",
    "CORAL": "CORAL",
    "Fishr": "Fishr",
    "DSP-Reg": "DSPReg(coefficients='ones')",
    "CORAL+DSP-Reg": "CORAL+DSPReg(coefficients='ones')",
}
MEASURE = "measuring c, as many images"
PIXELS, CLASSES, ROUNDS = 16, 7, 5
IMAGES = (2, 4, 8, 16, 32, 64)  # per domain, three domains
WIDTHS = (16, 32, 64, 128, 256)
DOMAINS = (2, 4, 8, 16, 32)
RUNS = (100, 1_000, 10_000)
PLANNED = (100, 1_000, 10_000, 100_000, 1_000_000)  # nothing is written for each
STATUS, REPORT, LEASE = "status, all finished", "report, all finished", "1,000 leases"
STATUS_OF_PLAN, START = "status, none begun", "start of a sweep"
Point = dict[str, str | float]


class Convolutions(Featurizer):
    """Five convolutions of one width: cost and parameters grow alike."""

    def __init__(self, width: int):
        super().__init__()
        channels = (3, *[width] * 5)
        layers = [nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.ReLU()) for a, b in pairwise(channels)]
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.body(x)
        return found


def make_steps(domains: int, images: int, width: int) -> dict[str, Callable[[], object]]:
    """One step of every method, and one measurement."""
    g = torch.Generator().manual_seed(0)
    names = tuple(f"domain {d}" for d in range(domains))
    batches = [
        Batch(torch.randn(images, 3, PIXELS, PIXELS, generator=g), torch.randint(CLASSES, (images,), generator=g), d)
        for d in range(domains)
    ]
    task = Task(CLASSES, names, 50, lambda: Convolutions(width), ("scale",))
    made: dict[str, Callable[[], object]] = {}
    for name, spec in METHODS.items():
        stack = parse(spec).setup(task, lambda params: torch.optim.Adam(params, lr=1e-5))
        made[name] = partial(train_step, stack, batches)
    samples = {name: [(b.x, b.y)] for name, b in zip(names, batches, strict=True)}
    made[MEASURE] = partial(dspreg.measure, stack.net.eval(), samples, null=False)
    return made


def grow(sizes: Sequence[float], cases: Sequence[dict[str, Callable[[], object]]]) -> list[Point]:
    """Seconds of every side at every size."""
    found: list[Point] = []
    for name in cases[0]:
        sides = {str(size): case[name] for size, case in zip(sizes, cases, strict=True)}
        for size, timing in zip(sizes, alternate(sides, ROUNDS).values(), strict=True):
            found.append({"what": name, "size": size, "seconds": median(timing.seconds)})
    return found


def grow_images() -> list[Point]:
    return grow([3.0 * n for n in IMAGES], [make_steps(3, n, 32) for n in IMAGES])


def grow_parameters() -> list[Point]:
    sizes = [float(sum(p.numel() for p in Convolutions(width).parameters())) for width in WIDTHS]
    return grow(sizes, [make_steps(3, 4, width) for width in WIDTHS])


def grow_domains() -> list[Point]:
    return grow([float(d) for d in DOMAINS], [make_steps(d, 4, 32) for d in DOMAINS])


def grow_runs(sizes: Sequence[int], folder: Path) -> list[Point]:
    """Of whole processes: stores with the files of every run, and plans without."""
    found: list[Point] = []

    def add(what: str, size: int, words: Sequence[str | Path] | None = None, store: Path | None = None) -> None:
        cost = measure_process(words) if words else measure_command(what.split(",")[0], store or folder)
        point: Point = {"what": what, "size": size, "seconds": cost.processor, "megabytes": cost.megabytes}
        found.append(point)
        print(f"{what}, {size:,} runs: {cost.processor:.2f} s, {cost.megabytes:,.0f} MB", flush=True)

    for size in sizes:
        store = folder / f"finished-{size}"
        if not store.exists():
            make(store, runs(size), linked=True)
        add(STATUS, size, store=store)
        add(REPORT, size, store=store)
    for size in PLANNED if sizes == RUNS else sizes:
        plan = folder / f"planned-{size}"
        add(START, size, [sys.executable, __file__, "--start", str(size), "--store", plan])
        add(STATUS_OF_PLAN, size, store=plan)
        rate = measure_rates(size)[0]
        found.append({"what": LEASE, "size": size, "seconds": 1_000 / rate})
        print(f"{LEASE}, {size:,} runs: {1_000 / rate:.3f} s", flush=True)
    return found


class NoLauncher:
    """Ends a sweep where the first run would be trained."""

    def setup(self, execution: dspreg.Execution) -> dspreg.Execution:
        return execution

    def launch(self, queue: RunQueue, _: dspreg.Execution, **__: object) -> None:
        assert queue.claim() is not None
        raise Preempted("nothing is trained here")


def start_sweep(size: int, store: Path) -> None:
    """All that `dspreg sweep` does before it trains: enumerate, plan, open the leases, claim the first run."""
    draws = -(-size // (5 * sum(map(len, DATA.values())) * len(ALGORITHMS)))
    plan = Sweep(datasets=list(DATA), algorithms=list(ALGORITHMS), trials=5, draws=draws, only="training")
    try:
        dspreg.sweep(plan if draws > 1 else runs(size), store, launcher=NoLauncher())
    except Preempted:
        return
    raise AssertionError("the sweep was to be stopped")


PARTS: dict[str, tuple[str, Callable[[], list[Point]]]] = {
    "images": ("images per step, from three domains", grow_images),
    "parameters": ("parameters of the network", grow_parameters),
    "domains": ("source domains, four images of each", grow_domains),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=(*PARTS, "runs"), default="images")
    parser.add_argument("--runs", type=int, nargs="+", default=RUNS)
    parser.add_argument("--store", type=Path, help="where stores are made and kept; otherwise they are removed")
    parser.add_argument("--data", type=Path, default=Path("build/scale"), help="where measurements are kept")
    parser.add_argument("--out", type=Path, default=Path("build/scale"), help="where the picture goes")
    parser.add_argument("--start", type=int, help=argparse.SUPPRESS)  # a sweep in a process of its own
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if given.start:
        start_sweep(given.start, given.store)
        return 0
    if given.part == "runs":
        axis = "runs in the store"
        found = with_folder(given.store, lambda folder: grow_runs(tuple(given.runs), folder))
    else:
        axis, measure = PARTS[given.part]
        found = measure()
    given.data.mkdir(parents=True, exist_ok=True)
    file = given.data / f"{given.part}.jsonl"
    with file.open("a") as lines:
        lines.writelines(json.dumps(point) + "\n" for point in found)
    points = [json.loads(line) for line in file.read_text().splitlines()]
    print_table(points, axis)
    given.out.mkdir(parents=True, exist_ok=True)
    draw(points, axis, given.out / f"growth-{given.part}.png")
    return 0


def with_folder(kept: Path | None, work: Callable[[Path], list[Point]]) -> list[Point]:
    """Stores go where the user says, or are gone in the end."""
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        return work(kept)
    with tempfile.TemporaryDirectory() as folder:
        return work(Path(folder))


if __name__ == "__main__":
    sys.exit(main())
