"""The step of ERM beside DomainBed's and a plain PyTorch loop, and how far it is from what the machine can do.

    python bench/step.py --domainbed DIR                      # DIR: a checkout of DomainBed
    python bench/step.py --networks resnet18 --batch 8 --rounds 5
    python bench/step.py --part peak --image step.png         # arithmetic per second, beside matrix and convolution

Random images of three domains, one thread, CPU time, sides in turn. `ours` is `train_step` and what the loop logs of
it: with the memory layout that the probe of `--layout auto` takes here, and frozen batch norm folded. `ours, as before`
has neither. Each has its own limit, a loop of torch alone with the same layout and folding. DomainBed's ResNets are its
own, without its download of weights; it has no Lite0 and no ViT-S, and gets timm's.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from clock import Timing, alternate
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from dspreg import Batch, Task, parse, train_step
from dspreg.networks import make_backbone
from dspreg.networks.fold_batch_norm import fold_batch_norm
from dspreg.training.fastest import PAYS, probe_layouts
from dspreg.training.state import StepLog, checksum

NETWORKS = ("resnet18", "resnet50", "tf_efficientnet_lite0", "vit_small_patch16_224")
DOMAINBEDS_OWN = ("resnet18", "resnet50")
CLASSES = 7
Step = Callable[[], object]
Data = list[tuple[Tensor, Tensor]]


def random_data(pixels: int, n: int, last: bool) -> Data:
    """Images and labels of three domains."""
    g = torch.Generator().manual_seed(0)
    layout = torch.channels_last if last else torch.contiguous_format
    return [
        (
            torch.randn(n, 3, pixels, pixels, generator=g).contiguous(memory_format=layout),
            torch.randint(CLASSES, (n,), generator=g),
        )
        for _ in range(3)
    ]


def our_step(network: str, data: Data, fold: bool) -> Step:
    """As the loop of a training takes and logs it."""
    backbone = make_backbone(network, weights="none", image_size=data[0][0].shape[-1], frozen_bn=True)
    task = Task(CLASSES, ("a", "b", "c"), 50, backbone.make, ("bench",))
    stack = parse("ERM").setup(task, lambda params: torch.optim.Adam(params, lr=1e-5))
    stack.stack.folds_batch_norm = fold
    batches = [Batch(x, y, d) for d, (x, y) in enumerate(data)]

    def step() -> None:
        log = train_step(stack, batches)
        StepLog.read([StepLog(0, log, checksum(stack))])

    return step


def plain_step(network: str, data: Data, fold: bool) -> Step:
    """What torch does without us: the limit."""
    backbone = make_backbone(network, weights="none", image_size=data[0][0].shape[-1], frozen_bn=True)
    featurizer = backbone.make()
    net = nn.Sequential(featurizer, nn.Linear(featurizer.width, CLASSES))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-5)

    def step() -> float:
        x, y = torch.cat([x for x, _ in data]), torch.cat([y for _, y in data])
        with fold_batch_norm() if fold else nullcontext():
            loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def domainbed_step(folder: Path, network: str, data: Data) -> Step:
    """`ERM.update` of a checkout of DomainBed."""
    sys.path.insert(0, str(folder))
    from domainbed import algorithms, hparams_registry, networks

    class Wrapped(nn.Module):
        """A network of timm as DomainBed has its own: batch norm frozen whenever it is told to train."""

        def __init__(self, *_: Any):
            super().__init__()
            backbone = make_backbone(network, weights="none", image_size=data[0][0].shape[-1], frozen_bn=True)
            self.network = backbone.make()
            self.n_outputs = self.network.width

        def forward(self, x: Tensor) -> Tensor:
            return self.network(x)

    hparams = hparams_registry.default_hparams("ERM", "PACS") | {
        "resnet18": network == "resnet18",
        "resnet50_augmix": False,  # weights that would be downloaded; the network is the same
    }
    models = networks.torchvision.models
    usual = models.resnet18, models.resnet50, networks.Featurizer
    try:
        models.resnet18, models.resnet50 = (partial(_without_weights, each) for each in usual[:2])
        if network not in DOMAINBEDS_OWN:
            networks.Featurizer = Wrapped
        theirs = algorithms.ERM((3, 224, 224), CLASSES, 3, hparams)
    finally:
        models.resnet18, models.resnet50, networks.Featurizer = usual
    theirs.train()
    return lambda: theirs.update(data)


def _without_weights(make: Callable[..., nn.Module], **_: Any) -> nn.Module:
    return make(weights=None)


def sides_of(network: str, pixels: int, n: int, domainbed: Path | None) -> tuple[dict[str, Step], str]:
    """All sides by name, and the layout of ours."""
    share = probe_layouts(network, pixels, True, True, 1)
    last = share < PAYS
    first, fast = random_data(pixels, n, False), random_data(pixels, n, last)
    theirs = {"DomainBed": domainbed_step(domainbed, network, first)} if domainbed else {}
    sides = theirs | {
        "plain loop": plain_step(network, first, False),
        "ours, as before": our_step(network, first, False),
        "plain loop, folded and laid out as ours": plain_step(network, fast, True),
        "ours": our_step(network, fast, True),
    }
    return sides, f"channels-{'last' if last else 'first'}, probe {share:.2f}"


def steps(console: Console, names: list[str], pixels: int, batches: list[int], rounds: int, dir: Path | None) -> None:
    for name in names:
        for n in batches:
            sides, layout = sides_of(name, pixels, n, dir)
            found = alternate(sides, rounds)
            title = f"{name}, {pixels} px, 3×{n} images, one thread ({layout})"
            table = Table("side", "CPU s", f"of {next(iter(sides))}", "95 %", "rounds", title=title)
            for side, timing in found.items():
                table.add_row(side, *timing.cells)
            console.print(table)
            console.print(f"of its plain loop: ours {overhead(found, 'ours')}, as before {overhead(found, 'before')}")
            if dir:
                ratios = [a / b for a, b in zip(found["DomainBed"].seconds, found["ours"].seconds, strict=True)]
                console.print(f"DomainBed's step takes {median(ratios):.2f} times as long as ours")


def overhead(found: dict[str, Timing], which: str) -> str:
    """What our step takes, divided by the plain loop that does the same."""
    mine, limit = (
        ("ours", "plain loop, folded and laid out as ours") if which == "ours" else ("ours, as before", "plain loop")
    )
    return f"{median(a / b for a, b in zip(found[mine].seconds, found[limit].seconds, strict=True)):.3f}×"


def peaks(rounds: int) -> dict[str, float]:
    """Arithmetic per second of one thread, in GFLOP/s: a large product of matrices and a large convolution."""
    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)
    x = torch.randn(32, 128, 56, 56).contiguous(memory_format=torch.channels_last)
    w = torch.randn(128, 128, 3, 3)
    work: dict[str, tuple[Step, float]] = {
        "matrix product": (lambda: a @ b, 2 * 2048**3),
        "convolution": (lambda: F.conv2d(x, w, padding=1), 2 * 32 * 56 * 56 * 128 * 128 * 9),
    }
    found = alternate({name: step for name, (step, _) in work.items()}, rounds)
    return {name: flops / median(found[name].seconds) / 1e9 for name, (_, flops) in work.items()}


def roofline(console: Console, names: list[str], pixels: int, n: int, rounds: int, image: Path | None) -> None:
    limit = peaks(max(rounds, 5))
    rates: dict[str, dict[str, float]] = {}
    for name in names:
        sides, _ = sides_of(name, pixels, n, None)
        with FlopCounterMode(display=False) as counter:
            sides["plain loop"]()
        found = alternate({side: sides[side] for side in ("plain loop", "ours")}, rounds)
        flops = counter.get_total_flops()
        rates[name] = {side: flops / median(timing.seconds) / 1e9 for side, timing in found.items()}
    table = Table("", "GFLOP/s", *(f"of {name}" for name in limit), title=f"{pixels} px, 3×{n} images, one thread")
    for name, rate in limit.items():
        table.add_row(f"a large {name}", f"{rate:.0f}", *("" for _ in limit))
    for name, each in rates.items():
        for side, rate in each.items():
            table.add_row(f"{name}, {side}", f"{rate:.0f}", *(f"{rate / most:.0%}" for most in limit.values()))
    console.print(table)
    if image:
        draw(limit, rates, image)
        console.print(f"see {image}")


def draw(limit: dict[str, float], rates: dict[str, dict[str, float]], image: Path) -> None:
    figure = Figure(figsize=(7.5, 0.7 * len(rates) + 1.6), dpi=110, layout="constrained")
    axes = figure.subplots()
    colors = {"plain loop": "#b8c4d6", "ours": "#0369a1"}
    for place, each in enumerate(rates.values()):
        for k, (side, rate) in enumerate(each.items()):
            label = side if place == 0 else None
            axes.barh(place + 0.36 * (k - 0.5), rate, height=0.32, color=colors[side], label=label)
            axes.annotate(
                f"{rate:.0f}", (rate, place + 0.36 * (k - 0.5)), (4, 0), textcoords="offset points", va="center"
            )
    for (name, rate), style in zip(limit.items(), ("-", "--"), strict=True):
        axes.axvline(rate, color="#c2410c", linestyle=style, linewidth=1.4, label=f"a large {name}: {rate:.0f}")
    axes.set(yticks=range(len(rates)), yticklabels=list(rates), xlabel="GFLOP/s of a step on one thread")
    axes.set_xlim(0, 1.12 * max(limit.values()))
    axes.invert_yaxis()
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0)
    figure.legend(loc="outside upper center", ncols=4, frameon=False, fontsize=8)
    image.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(image)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("steps", "peak"), default="steps")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--pixels", type=int, default=224)
    parser.add_argument("--batch", type=int, nargs="+", default=[8, 32], help="images per domain; for peak the first")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--domainbed", type=Path, help="a checkout of DomainBed to compare with")
    parser.add_argument("--image", type=Path, help="a PNG file to draw, for --part peak")
    options = parser.parse_args()
    if options.domainbed and options.pixels != 224:
        parser.error("DomainBed's ResNets take 224 pixels; leave --pixels out, or --domainbed")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    console = Console(width=130)
    if options.part == "steps":
        steps(console, options.networks, options.pixels, options.batch, options.rounds, options.domainbed)
    else:
        roofline(console, options.networks, options.pixels, options.batch[0], options.rounds, options.image)
    return 0


if __name__ == "__main__":
    sys.exit(main())
