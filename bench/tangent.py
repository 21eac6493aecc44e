"""How far a difference of outputs is from J g, the displacement's length being given: the radius of `gauss_newton`.

    DSPREG_ROOT=data DSPREG_WEIGHTS=tf_efficientnet_lite0.safetensors python bench/tangent.py

(f(θ + hg) − f(θ))/h against forward-mode differentiation, 24 images of PACS, 64 px: relative error for every ‖hg‖. Too
long, and the network bends or passes kinks; too short, and float32 rounds it away.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings

import timm
import torch
import torch.nn.functional as F
from real import without_sketch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from dspreg.vectors import displaced, gradient

RADII = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8)


def errors(net: nn.Module, x: Tensor, y: Tensor) -> list[str]:
    """Of every radius, and how many forward passes forward-mode differentiation takes."""
    params, buffers = {n: p.detach() for n, p in net.named_parameters()}, dict(net.named_buffers())
    out = net(x)
    g = gradient(F.cross_entropy(out, y), net)

    def outputs(params: dict[str, Tensor]) -> Tensor:
        found: Tensor = torch.func.functional_call(net, {**params, **buffers}, (x,))
        return found

    seconds = []
    for _ in range(3):
        started = time.process_time()
        with sdpa_kernel(SDPBackend.MATH):  # fused attention has no forward mode
            _, exact = torch.func.jvp(outputs, (params,), (dict(g),))
        between = time.process_time()
        with torch.no_grad():
            net(x)
        seconds.append((between - started) / (time.process_time() - between))
    cells = []
    for radius in RADII:
        h = radius / float(g.norm())
        with torch.no_grad(), displaced(net, g * h):
            quotient = (net(x) - out.detach()) / h
        cells.append(f"{float((quotient - exact).norm() / exact.norm()):.1e}")
    return [*cells, f"{sorted(seconds)[1]:.1f}"]


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    experiment = without_sketch(64)
    shown = experiment.transform("domainbed").normalise
    made = experiment.steps()[0]
    x, y = torch.cat([shown(x)[:8] for x, _ in made]), torch.cat([y[:8] for _, y in made])
    lite0 = experiment.algorithm().net.eval()
    torch.manual_seed(0)
    table = Table("relative error of J g", *(f"‖hg‖ = {r:g}" for r in RADII), "forward mode, forward passes")
    table.add_row("Lite0, pretrained, float32", *errors(lite0, x, y))
    table.add_row("Lite0, pretrained, float64", *errors(lite0.double(), x.double(), y))
    vit = timm.create_model("vit_tiny_patch16_224", num_classes=7, img_size=64).eval()
    table.add_row("ViT-tiny, random, float32", *errors(vit, x, y))
    resnet = timm.create_model("resnet18", num_classes=7).eval()
    table.add_row("ResNet-18, random, float32", *errors(resnet, x, y))
    Console(width=150).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
