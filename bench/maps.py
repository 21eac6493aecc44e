"""c of 2,500 parameters of one layer before training, after ERM and after DSP-Reg, beside null: the paper's heat map.

    DSPREG_ROOT=data DSPREG_WEIGHTS=tf_efficientnet_lite0.safetensors python bench/maps.py --out build/maps

PACS without sketch at 64 pixels: a pretrained EfficientNet-Lite0, 100 steps, and a ResNet-50 from random weights, 60
steps; the paper trains a pretrained ResNet-50 for 5,001. The layer is the 13th convolution in forward order, as in the
paper, the parameters are keyed positions of it, and c is on 512 images per domain, before and after. Start it again to
resume. Draws maps-NETWORK.png.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path

import torch
from matplotlib.figure import Figure
from real import LITE0, places
from rich.console import Console
from rich.table import Table
from torch import nn

import dspreg
from dspreg.protocol.settings import Execution
from dspreg.sensitivity import Profile
from dspreg.sensitivity.figures import draw_panels, largest_tensor, panels_of

STEPS = {LITE0: 100, "resnet50": 60}
ALGORITHMS = ("ERM", "DSPReg")
LAYER = 13  # convolution in forward order


def convolutions(net: nn.Module, x: torch.Tensor) -> list[str]:
    """The names of all convolutions, in the order in which they are called."""
    names, seen = {module: name for name, module in net.named_modules()}, []
    handles = [
        module.register_forward_hook(lambda module, *_: seen.append(names[module]))
        for module in net.modules()
        if isinstance(module, nn.Conv2d)
    ]
    with torch.no_grad():
        net(x)
    for handle in handles:
        handle.remove()
    return seen


def trained(network: str, algorithm: str, out: Path) -> Path:
    root, weights = places()
    settings = {"dataset": "PACS", "targets": ("sketch",), "algorithm": algorithm, "image_size": 64, "model": network}
    settings |= {"weights": weights if network == LITE0 else "none", "steps": STEPS[network]}
    folder = out / f"{network}-{algorithm}"
    how = Execution(root=root, profile="always", threads=1, workers=0)
    dspreg.train(settings | {"evaluate_every": STEPS[network]}, how, folder)
    return folder


def picture(profiles: dict[str, Profile], layer: str) -> Figure:
    """Columns are times, rows c and null; one scale for all."""
    first = next(iter(profiles.values()))
    name = largest_tensor(first, layer)
    figure = Figure(figsize=(1.0 + 3.0 * len(profiles), 6.6), layout="constrained")
    grid = figure.subplots(2, len(profiles))
    for column, (when, profile) in zip(grid.T, profiles.items(), strict=True):
        image = draw_panels(list(column), panels_of(profile, name, f", {when}"), name, first.bound)
    figure.suptitle(f"{name}: 2,500 of {first.c[name].numel():,} parameters", fontsize=10)
    figure.colorbar(image, ax=figure.axes, shrink=0.8).set_label("0 all domains alike, √2 one alone", fontsize=8)
    return figure


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("build/maps"))
    parser.add_argument("--networks", nargs="+", choices=STEPS, default=list(STEPS))
    options = parser.parse_args()
    warnings.simplefilter("ignore", dspreg.Notice)
    console = Console(width=120)
    for network in options.networks:
        runs = {algorithm: trained(network, algorithm, options.out) for algorithm in ALGORITHMS}
        profiles = {"before": Profile.load(runs["ERM"] / "profiles/start.safetensors")}
        profiles |= {f"after {a}": Profile.load(run / "profiles/end.safetensors") for a, run in runs.items()}
        model, _ = dspreg.load(runs["ERM"])
        layer = convolutions(model.algorithm.net, torch.zeros(1, 3, 64, 64))[LAYER - 1]
        table = Table("", "layer: mean c", "null", "c − null", "all: mean c", "null", "c − null", "reliability",
                      title=f"{network}, {layer}")  # fmt: skip
        for when, profile in profiles.items():
            name = largest_tensor(profile, layer)
            alive = profile.alive()[name]
            pairs = [(profile.c[name][alive], profile.null[name][alive])]
            pairs.append((profile.over_alive(profile.c), profile.over_alive(profile.null)))
            cells = []
            for c, null in pairs:
                if not c.numel():  # no domain is sensitive: a branch that starts at 0, as in timm's ResNets
                    cells += ["–"] * 3
                    continue
                c, null = float(c.double().mean()), float(null.double().mean())
                cells += [f"{c:.3f}", f"{null:.3f}", f"{c - null:+.3f}"]
            table.add_row(when, *cells, f"{profile.reliability:.2f}")
        console.print(table)
        picture(profiles, layer).savefig(options.out / f"maps-{network}.png", dpi=110)
    return 0


if __name__ == "__main__":
    sys.exit(main())
