"""What measuring sensitivities costs, in plain forward and backward passes over the same images.

    python bench/sensitivity.py                 # times, one thread: minutes
    python bench/sensitivity.py --part memory   # peaks of fresh processes
    python bench/sensitivity.py --part growth   # with images, parameters and domains

A plain pass is a forward and backward pass over all images, 48 at a time, with gradients of all weights. Our sides
compute c of three domains, 32 images at a time, through the function a training refresh calls; `measure` is a whole
profile. Peers: `torch.func` (vmap of grad, 16 or 32 images at a time, squared and added to a sum per domain),
BackPACK's SumGradSquared and one backward pass per sample, on ResNet-18 and, without BackPACK, on a ViT-tiny; they form
the sums of squares of the same images and no c.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median

import timm
import torch
import torch.nn.functional as F
from clock import Timing, alternate, peak, report_peak
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import dspreg
from dspreg.sensitivity.evaluation_mode import evaluation_mode
from dspreg.sensitivity.meter import Meter
from dspreg.sensitivity.refresh import measure_c
from dspreg.sensitivity.samples import Samples

CLASSES = 7
CASES = {  # network: pixels, images, rounds. Batches of at most 32, of three domains
    "resnet18": (64, 48, 30),
    "resnet18 at 3×128": (64, 384, 5),
    "resnet50": (112, 24, 5),
    "tf_efficientnet_lite0": (96, 48, 5),
    "vit_small_patch16_224": (112, 24, 5),
    "vit_tiny_patch16_224": (64, 384, 5),
    "vit_large_patch16_224": (64, 12, 0),  # 303 million parameters, for memory alone
}
OURS = {
    "persample": {"estimator": "persample"},
    "signed": {"estimator": "signed"},
    "signed, of=output": {"estimator": "signed", "of": "output"},
    "signed, of=fisher": {"estimator": "signed", "of": "fisher"},
}
CHUNKS = {"torch.func, by 16": 16, "torch.func, by 32": 32}  # on the ViT, 8 and 64 images at a time were slower
PEERS = (*CHUNKS, "BackPACK", "one sample at a time")
WHOLE = ("resnet18", "resnet18 at 3×128", "tf_efficientnet_lite0", "vit_tiny_patch16_224")  # all of a profile is timed
PEERED = ("resnet18", "vit_tiny_patch16_224")  # networks on which peers are timed
BACKPACK = ("resnet18",)  # torchvision's, converted by it; it does not run on Lite0 and a ViT


def network(kind: str, pixels: int) -> nn.Module:
    torch.manual_seed(0)
    size = {"img_size": pixels} if kind.startswith("vit") else {}
    net = timm.create_model(kind.split()[0], num_classes=CLASSES, **size).eval()
    for name, p in net.named_parameters():
        if p.ndim == 1 and name.endswith("weight") and not p.any():
            nn.init.ones_(p)  # timm starts some scales at 0, which would leave most of a ResNet without gradient
    return net


def images(n: int, pixels: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    return torch.randn(n, 3, pixels, pixels, generator=g), torch.randint(CLASSES, (n,), generator=g)


def plain(net: nn.Module, x: Tensor, y: Tensor, size: int = 48) -> Callable[[], object]:
    def run() -> None:
        for xs, ys in zip(x.split(size), y.split(size), strict=True):
            net.zero_grad()
            F.cross_entropy(net(xs), ys).backward()

    return run


def ours(net: nn.Module, x: Tensor, y: Tensor, domains: int = 3, **options: str) -> Callable[[], object]:
    """c, by the function of a refresh."""
    each = list(zip(x.chunk(domains), y.chunk(domains), strict=True))
    batches = {
        str(d): [Samples(*b) for b in zip(a.split(32), b.split(32), strict=True)] for d, (a, b) in enumerate(each)
    }

    def run() -> None:
        with evaluation_mode(net):
            measure_c(Meter(net, **options), lambda *_: net, batches)

    return run


def whole_measure(net: nn.Module, x: Tensor, y: Tensor, null: bool) -> Callable[[], object]:
    """`dspreg.measure` of three domains with two batches or more each, so that all of a profile is there."""
    size = min(32, len(x) // 6)
    halves = [list(zip(a.split(size), b.split(size), strict=True)) for a, b in zip(x.chunk(3), y.chunk(3), strict=True)]
    return lambda: dspreg.measure(net, {str(d): batches for d, batches in enumerate(halves)}, null=null)


def peer(name: str, net: nn.Module, x: Tensor, y: Tensor) -> Callable[[], object]:
    params = {n: p.detach() for n, p in net.named_parameters()}
    buffers = dict(net.named_buffers())

    def loss(params: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(torch.func.functional_call(net, (params, buffers), (x[None],)), y[None])

    def by_func() -> None:
        each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))
        for xs, ys in zip(x.chunk(3), y.chunk(3), strict=True):
            total = {n: torch.zeros_like(p) for n, p in params.items()}
            for part in zip(xs.split(CHUNKS[name]), ys.split(CHUNKS[name]), strict=True):
                with sdpa_kernel(SDPBackend.MATH):  # it does not vectorise fused attention
                    gradients = each(params, *part)
                for n, g in gradients.items():
                    total[n].add_(g.square_().sum(0))

    def one_at_a_time() -> None:
        total = {n: torch.zeros_like(p) for n, p in params.items()}
        for i in range(len(x)):
            net.zero_grad()
            F.cross_entropy(net(x[i : i + 1]), y[i : i + 1]).backward()
            for n, p in net.named_parameters():
                total[n].addcmul_(p.grad, p.grad)

    def by_backpack() -> Callable[[], object]:
        from backpack import backpack, extend
        from backpack.extensions import SumGradSquared
        from torchvision.models import resnet18

        torch.manual_seed(0)
        extended = extend(resnet18(num_classes=CLASSES).eval(), use_converter=True).eval()
        criterion = extend(nn.CrossEntropyLoss(reduction="sum"))

        def run() -> None:
            with backpack(SumGradSquared()):
                criterion(extended(x), y).backward()
            extended.zero_grad()

        return run

    if name in CHUNKS:
        return by_func
    return one_at_a_time if name == "one sample at a time" else by_backpack()


def sides(name: str, pixels: int, n: int, peers: bool) -> dict[str, Callable[[], object]]:
    net = network(name, pixels)
    x, y = images(n, pixels)
    found = {"plain": plain(net, x, y), "plain, a batch per domain": plain(net, x, y, min(32, n // 3))}
    found |= {k: ours(net, x, y, **options) for k, options in OURS.items()}
    if name in WHOLE:
        found |= {"measure, without null": whole_measure(net, x, y, False), "measure": whole_measure(net, x, y, True)}
    if peers:
        there = importlib.util.find_spec("backpack") is not None and name in BACKPACK
        found |= {k: peer(k, net, x, y) for k in PEERS if k != "BackPACK" or there}
    return found


def times(console: Console, names: list[str]) -> None:
    for name in names:
        pixels, n, rounds = CASES[name]
        table = Table("side", "s", "of plain", "95 % of the median", "rounds", title=f"{name}, {pixels} px, {n} images")
        few = dict.fromkeys((*PEERS, "measure", "measure, without null"), 5)
        found = alternate(sides(name, pixels, n, peers=name in PEERED), rounds, few)
        for side, timing in found.items():
            table.add_row(side, *timing.cells)
        console.print(table)
        for ours in ("persample", "measure"):
            faster = [f"{compare(found[k], found[ours])} times that of {k}" for k in PEERS if k in found]
            if faster:
                console.print(f"The speed of {ours} is {', '.join(faster)}")


def compare(peer: Timing, ours: Timing) -> str:
    return f"{median(peer.seconds) / median(ours.seconds):.2f}"


def memory(console: Console, names: list[str]) -> None:
    script = Path(__file__)
    for name in names:
        pixels, n, _ = CASES[name]
        table = Table("side", "peak, GB", "of plain", "above the start, GB", title=f"{name}, {pixels} px, {n} images")
        base = 0.0
        more = ("measure, without null", "measure", *CHUNKS, "BackPACK") if name in BACKPACK else ()
        for side in ("plain", *OURS, *more):
            if side == "BackPACK" and importlib.util.find_spec("backpack") is None:
                continue
            high, before = peak(script, "--one", side, "--networks", name)
            base = base or high
            table.add_row(side, f"{high:.2f}", f"{high / base:.2f}×", f"{high - before:.2f}")
        console.print(table)


def growth(console: Console) -> None:
    """Is it linear in images, linear in parameters and flat in domains?"""
    table = Table("ResNet-18, 64 px", "s", "of the first", "per image or parameter")
    net = network("resnet18", 64)

    def add(what: str, found: dict[str, Callable[[], object]], amounts: list[float]) -> None:
        timings = alternate(found, 5)
        for (key, timing), amount in zip(timings.items(), amounts, strict=True):
            seconds, ratio, *_ = timing.cells
            table.add_row(f"{key} {what}", seconds, ratio, f"{float(ratio[:-1]) / amount * amounts[0]:.2f}×")

    counts = [24, 48, 96, 192]
    add("images", {str(n): ours(net, *images(n, 64)) for n in counts}, counts)
    add("domains, 48 images", {str(d): ours(net, *images(48, 64), domains=d) for d in (2, 3, 6, 12)}, [1] * 4)
    widths = {str(w): wide(w) for w in (64, 128, 256, 512)}
    sizes = [sum(p.numel() for p in net.parameters()) for net in widths.values()]
    found = {f"{size:,}": ours(net, *images(48, 32)) for size, net in zip(sizes, widths.values(), strict=True)}
    add("parameters, 3×3 convolutions", found, [float(size) for size in sizes])
    console.print(table)


def wide(width: int) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, width, 3, 2, 1), nn.ReLU()]
    for _ in range(4):
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES)).eval()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("times", "memory", "growth"), default="times")
    timed = [name for name, (*_, rounds) in CASES.items() if rounds]
    parser.add_argument("--networks", nargs="+", choices=CASES, default=timed)
    parser.add_argument("--one", help=argparse.SUPPRESS)  # a side in a process of its own
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if options.one:
        pixels, n, _ = CASES[options.networks[0]]
        name = options.networks[0]
        report_peak(sides(name, pixels, n, peers=name in PEERED)[options.one])
        return 0
    console = Console(width=110)
    if options.part == "times":
        times(console, options.networks)
    elif options.part == "memory":
        memory(console, options.networks)
    else:
        growth(console)
    return 0


if __name__ == "__main__":
    sys.exit(main())
