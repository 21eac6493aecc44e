"""c of 2,500 parameters of one layer before training, after ERM and after DSP-Reg, beside null: the paper's heat map.

    DSPREG_ROOT=data DSPREG_WEIGHTS=tf_efficientnet_lite0.safetensors python bench/maps.py --out build/maps

PACS without sketch at 64 pixels: a pretrained EfficientNet-Lite0, 100 steps, and a ResNet-50 from random weights, 60
steps; the paper trains a pretrained ResNet-50 for 5,001. The layer is the 13th convolution in forward order, as in the
paper, the parameters are keyed positions of it, and c is on 512 images per domain, before and after. Start it again to
resume. Draws maps-NETWORK.png. `dspreg paper maps` does the same in a sweep, at the paper's scale too.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path

from real import LITE0, places
from rich.console import Console
from rich.table import Table

import dspreg
from dspreg import Execution, Profile
from dspreg.paper.figures import draw_heat_maps
from dspreg.paper.heat_maps import layer_of, mean_c_and_null

STEPS = {LITE0: 100, "resnet50": 60}
ALGORITHMS = ("ERM", "DSPReg")


def trained(network: str, algorithm: str, out: Path) -> Path:
    root, weights = places()
    settings = {"dataset": "PACS", "targets": ("sketch",), "algorithm": algorithm, "image_size": 64, "model": network}
    settings |= {"weights": weights if network == LITE0 else "none", "steps": STEPS[network]}
    folder = out / f"{network}-{algorithm}"
    how = Execution(root=root, profile="always", threads=1, workers=0)
    dspreg.train(settings | {"evaluate_every": STEPS[network]}, how, folder)
    return folder


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
        layer, _ = layer_of(network, 64)
        table = Table("", "layer: mean c", "null", "c − null", "all: mean c", "null", "c − null", "reliability",
                      title=f"{network}, {layer}")  # fmt: skip
        for when, profile in profiles.items():
            cells = []
            for found in mean_c_and_null(profile, layer):
                if found is None:  # no domain is sensitive: a branch that starts at 0, as in timm's ResNets
                    cells += ["–"] * 3
                    continue
                c, null = found
                cells += [f"{c:.3f}", f"{null:.3f}", f"{c - null:+.3f}"]
            table.add_row(when, *cells, f"{profile.reliability:.2f}")
        console.print(table)
        draw_heat_maps(profiles, layer).savefig(options.out / f"maps-{network}.png", dpi=110)
    return 0


if __name__ == "__main__":
    sys.exit(main())
