"""What the penalty costs, in ERM steps.

    python bench/penalty.py                  # a step with each engine, one thread
    python bench/penalty.py --networks resnet18 --pixels 224 --batch 8 --rounds 5 --sides ERM finite_difference
    python bench/penalty.py --part layout    # a step on images that lie channels first and channels last
    python bench/penalty.py --part memory    # peaks of fresh processes, ResNet-50 at 224 px
    DSPREG_ROOT=data DSPREG_WEIGHTS=tf_efficientnet_lite0.safetensors python bench/penalty.py --part run

A step is `train_step`: forward, backward, engine and Adam. `lazy(k)` is k − 1 steps without the penalty and one with
it, timed apart. The run is PACS without sketch in blocks of T·E = 2·50 steps, ERM and DSP-Reg in turn, the refresh of
each block and the reading of its images included, an arm for every engine and number of images to measure on; training
images are read outside of the time, as workers would do it.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch
from clock import alternate, interval, peak, report_peak
from real import without_sketch
from rich.console import Console
from rich.table import Table

from dspreg import Algorithm, Batch, Task, parse, train_step
from dspreg.networks import make_backbone
from dspreg.paper.overhead import TimedVariant

CASES = {  # network: pixels, images per domain, rounds
    "resnet18": (64, 16, 30),
    "resnet50": (112, 8, 30),
    "tf_efficientnet_lite0": (96, 16, 30),
    "vit_small_patch16_224": (112, 8, 30),
    "efficientnet_b0": (96, 8, 30),  # SiLU
}
ENGINES = {
    "ERM": "ERM",
    "momentum": "DSPReg(coefficients='ones', engine='momentum')",
    "lazy, between": "DSPReg(coefficients='ones', engine='lazy(1000000)')",
    "lazy, acting": "DSPReg(coefficients='ones', engine='lazy(1)')",
    "lookahead": "DSPReg(coefficients='ones', engine='lookahead')",
    "finite_difference": "DSPReg(coefficients='ones', engine='finite_difference')",
    "finite_difference(part=0.5)": "DSPReg(coefficients='ones', engine='finite_difference(part=0.5)')",
    "finite_difference(part=0.25)": "DSPReg(coefficients='ones', engine='finite_difference(part=0.25)')",
    "gauss_newton": "DSPReg(coefficients='ones', engine='gauss_newton')",
    "gauss_newton(part=0.5)": "DSPReg(coefficients='ones', engine='gauss_newton(part=0.5)')",
    "gauss_newton(part=0.25)": "DSPReg(coefficients='ones', engine='gauss_newton(part=0.25)')",
    "exact(part=0.5)": "DSPReg(coefficients='ones', engine='exact(part=0.5)')",
    "exact(part=0.25)": "DSPReg(coefficients='ones', engine='exact(part=0.25)')",
    "exact": "DSPReg(coefficients='ones', engine='exact')",
}
LAZY = {"lookahead": (30,), "gauss_newton": (2, 3, 4), "exact": (2, 3, 4, 30)}  # inner: every so many steps
IMAGES = (32, 64, 128, 256, 512)  # per domain, to measure c on
RUNS = {  # arms of the run: engine, images per domain, memory of earlier refreshes
    **{f"momentum, {n}": ("momentum", n, 0.0) for n in IMAGES},
    "gauss_newton(part=0.5), 512": ("gauss_newton(part=0.5)", 512, 0.0),
    "gauss_newton, 512": ("gauss_newton", 512, 0.0),
    "finite_difference, 512": ("finite_difference", 512, 0.0),
    "finite_difference, 128 and a memory of 0.75": ("finite_difference", 128, 0.75),
    "finite_difference(part=0.5), 512": ("finite_difference(part=0.5)", 512, 0.0),
    "finite_difference(part=0.5), 128 and a memory of 0.75": ("finite_difference(part=0.5)", 128, 0.75),
}
MEMORY = {  # engine: images per domain, and c measured before the second step
    "ERM": (32, "ERM"),
    "momentum": (32, "DSPReg(engine='momentum', refresh_steps=1, measure_batches=1)"),
    "lookahead": (32, "DSPReg(engine='lookahead', refresh_steps=1, measure_batches=1)"),
    "finite_difference": (32, "DSPReg(engine='finite_difference', refresh_steps=1, measure_batches=1)"),
    "finite_difference(part=0.5)": (
        32,
        "DSPReg(engine='finite_difference(part=0.5)', refresh_steps=1, measure_batches=1)",
    ),
    "gauss_newton": (32, "DSPReg(engine='gauss_newton', refresh_steps=1, measure_batches=1)"),
    "gauss_newton(part=0.5)": (32, "DSPReg(engine='gauss_newton(part=0.5)', refresh_steps=1, measure_batches=1)"),
    "lazy(2)": (32, "DSPReg(engine='lazy(2)', refresh_steps=1, measure_batches=1)"),
    "ERM, 3×8": (8, "ERM"),
    "finite_difference, 3×8": (8, "DSPReg(engine='finite_difference', refresh_steps=1, measure_batches=1)"),
    "gauss_newton, 3×8": (8, "DSPReg(engine='gauss_newton', refresh_steps=1, measure_batches=1)"),
    "exact(part=0.5), 3×8": (8, "DSPReg(engine='exact(part=0.5)', refresh_steps=1, measure_batches=1)"),
    "exact, 3×8": (8, "DSPReg(engine='exact', refresh_steps=1, measure_batches=1)"),
}
SMALLEST_DOMAINNET_EPOCH = int(0.8 * (586_575 - 172_947)) // (5 * 32)  # without real, the largest domain


def stack(spec: str, network: str, pixels: int, n: int) -> tuple[Algorithm, list[Batch]]:
    """A stack on random images of three domains."""
    g = torch.Generator().manual_seed(0)
    batches = [
        Batch(torch.randn(n, 3, pixels, pixels, generator=g), torch.randint(7, (n,), generator=g), d) for d in range(3)
    ]
    backbone = make_backbone(network, weights="none", image_size=pixels, dropout=0.0, frozen_bn=True)
    samples = {name: [batch] for name, batch in zip("abc", batches, strict=True)}
    task = Task(7, ("a", "b", "c"), 50, backbone.make, ("bench",), lambda *_: samples)
    return parse(spec).setup(task, lambda params: torch.optim.Adam(params, lr=1e-5)), batches


def steps(
    console: Console, names: list[str], fewer: int | None, size: int | None, batch: int | None, engines: list[str]
) -> None:
    for name in names:
        pixels, n, rounds = CASES[name]
        pixels, n, rounds = size or pixels, batch or n, fewer or rounds
        ready = {k: stack(ENGINES[k], name, pixels, n) for k in dict.fromkeys(["ERM", *engines])}
        sides: dict[str, Callable[[], object]] = {k: lambda r=r: train_step(*r) for k, r in ready.items()}
        found = alternate(sides, rounds, {name: max(5, rounds // 3) for name in sides if name.startswith("exact")})
        table = Table(
            "engine", "s", "of ERM", "95 % of the median", "rounds", title=f"{name}, {pixels} px, 3×{n} images"
        )
        for engine, timing in found.items():
            table.add_row(engine, *timing.cells)
        acting = {inner: "lazy, acting" if inner == "lookahead" else inner for inner in LAZY}
        for inner, lengths in LAZY.items() if "lazy, between" in found else ():
            if acting[inner] not in found:
                continue
            between, once = (median(found[each].ratios) for each in ("lazy, between", acting[inner]))
            for k in lengths:
                mean = f"{((k - 1) * between + once) / k:.3f}×"
                table.add_row(f"lazy({k}, {inner})", "", mean, f"{k - 1} between, 1 acting", "")
        console.print(table)


def layouts(console: Console, names: list[str]) -> None:
    """The same step, in turn, on the same images as they lie in memory one way and the other."""
    for name in names:
        pixels, n, rounds = CASES[name]
        sides: dict[str, Callable[[], object]] = {}
        for engine in ("ERM", "lookahead"):
            for layout, how in (("first", torch.contiguous_format), ("last", torch.channels_last)):
                algorithm, batches = stack(ENGINES[engine], name, pixels, n)
                laid = [replace(b, x=b.x.contiguous(memory_format=how)) for b in batches]
                sides[f"{engine}, channels {layout}"] = lambda a=algorithm, b=laid: train_step(a, b)
        found = alternate(sides, rounds // 3)
        table = Table("", "s", "of ERM", "95 % of the median", "rounds", title=f"{name}, {pixels} px, 3×{n} images")
        for side, timing in found.items():
            table.add_row(side, *timing.cells)
        console.print(table)


def memory(console: Console, names: list[str]) -> None:
    table = Table("two steps, c measured between them", "peak, GB", "of ERM", title="ResNet-50, 224 px")
    base = {}
    for name in names:
        n, _ = MEMORY[name]
        high, _ = peak(Path(__file__), "--one", name)
        base.setdefault(n, high)
        table.add_row(name, f"{high:.2f}", f"{high / base[n]:.3f}×")
    console.print(table)
    console.print("The paper's figure, on a GPU: 22.9 → 24.3 GB, 1.061×")


def one(name: str) -> None:
    n, spec = MEMORY[name]
    algorithm, batches = stack(spec, "resnet50", 224, n)

    def work() -> None:
        for _ in range(2):
            train_step(algorithm, batches)

    report_peak(work)


class Run(TimedVariant):
    """One arm of the run, and what a refresh of it costs."""

    def refreshing(self) -> float:
        """Seconds to measure c, the reading of images included."""
        layer, seconds = self.layer, []
        assert layer is not None
        for _ in range(3):
            started = time.process_time()
            layer.remember_c_and_mean() if layer.refresh_memory else layer.measure_c()
            seconds.append(time.process_time() - started)
        return median(seconds)


def run(console: Console, pixels: int, blocks: int, names: list[str]) -> None:
    """ERM and every arm, block by block in turn."""
    experiment = without_sketch(pixels)
    erm = Run(experiment, "ERM")
    arms = {}
    for name in names:
        engine, n, memory = RUNS[name]
        spec = f"DSPReg(engine={engine!r}, measure_batches={n // 32}, refresh_memory={memory})"
        arms[name] = Run(experiment, spec)
    length = 2 * experiment.epoch
    plain: list[float] = []
    ratios: dict[str, list[float]] = {name: [] for name in arms}
    for r in range(blocks):
        plain.append(erm.block(length))
        for name, arm in arms.items():
            ratios[name].append(arm.block(length) / plain[-1])
        each = ", ".join(f"{found[-1]:.3f}×" for found in ratios.values())
        console.print(f"block {r + 1} of {blocks}: {plain[-1]:.1f} s, {each}")
    step = median(plain) / length
    prices = {name: arm.refreshing() / step for name, arm in arms.items()}
    without: dict[str, list[float]] = {}  # by engine, of every block: a step without refreshes
    for name, found in ratios.items():
        without.setdefault(RUNS[name][0], []).extend(x - prices[name] / length for x in found)
    title = f"Lite0, PACS without sketch, {pixels} px, {blocks} blocks of {length} steps a side"
    table = Table("engine, images per domain", "the run, measured", "95 % of the median", "a refresh, ERM steps",
                  "step ratio + refresh/(T·E)", f"at DomainNet's E ≥ {SMALLEST_DOMAINNET_EPOCH}",
                  title=title)  # fmt: skip
    for name, found in ratios.items():
        low, high = interval(found)
        between = median(without[RUNS[name][0]])
        at_domainnet = between + prices[name] / (2 * SMALLEST_DOMAINNET_EPOCH)
        table.add_row(name, f"{median(found):.3f}×", f"{low:.3f}–{high:.3f}", f"{prices[name]:.2f}",
                      f"{between:.3f} + {prices[name] / length:.3f}", f"{at_domainnet:.3f}×")  # fmt: skip
    console.print(table)
    console.print("The paper's figure: 2.9 → 2.8 steps a second, 1.036×")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("steps", "layout", "memory", "run"), default="steps")
    parser.add_argument("--networks", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--engines", nargs="+", choices=MEMORY, default=list(MEMORY), help="for --part memory")
    parser.add_argument("--arms", nargs="+", choices=RUNS, default=list(RUNS), help="for --part run")
    parser.add_argument("--rounds", type=int, help="for --part steps; 30 unless given")
    parser.add_argument("--pixels", type=int, help="for --part steps; each network's own unless given")
    parser.add_argument("--batch", type=int, help="for --part steps: images per domain")
    parser.add_argument("--sides", nargs="+", choices=ENGINES, default=list(ENGINES), help="for --part steps")
    parser.add_argument("--image-size", type=int, default=48, help="for --part run")
    parser.add_argument("--blocks", type=int, default=5, help="for --part run")
    parser.add_argument("--one", help=argparse.SUPPRESS)  # an engine in a process of its own
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    console = Console(width=130)
    if options.one:
        one(options.one)
    elif options.part == "steps":
        steps(console, options.networks, options.rounds, options.pixels, options.batch, options.sides)
    elif options.part == "layout":
        layouts(console, options.networks)
    elif options.part == "memory":
        memory(console, options.engines)
    else:
        run(console, options.image_size, options.blocks, options.arms)
    return 0


if __name__ == "__main__":
    sys.exit(main())
