"""Why a finite difference is not the Hessian of a network with ReLUs.

    DSPREG_ROOT=data DSPREG_WEIGHTS=tf_efficientnet_lite0.safetensors python bench/kinks.py

The gradient of a network with ReLUs jumps wherever a unit passes its kink. A displacement, however small, carries some
units of some images over; `exact`, which differentiates twice at a point, never sees these jumps. Here `lookahead` is
compared with `exact` on one batch of PACS at the pretrained EfficientNet-Lite0, c = 1, λ = 1e-3: in float32 and in
float64, which tells jumps from rounding, and with every ReLU6 replaced by SiLU, which has no kink.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial

import torch
import torch.nn.functional as F
from real import without_sketch
from rich.console import Console
from rich.table import Table
from torch import nn

from dspreg import Batch, ParamVector, gradient, trainable
from dspreg.batches import Objective
from dspreg.penalty import Step, exact, lookahead

RADII = (20.0, 2.0, 0.2, 0.02, 2e-4, 2e-6)  # times λ
WEIGHT = 1e-3


def smooth(net: nn.Module) -> None:
    """SiLU in place of every ReLU6."""
    for module in net.modules():
        for name, child in module.named_children():
            if isinstance(child, nn.ReLU6):
                setattr(module, name, nn.SiLU())


def likeness(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[str]:
    def objective(_: object) -> torch.Tensor:
        return F.cross_entropy(net(x), y)

    def below(objective: Objective, batches: list[Batch]) -> tuple[torch.Tensor, ParamVector]:
        loss = objective(batches)
        return loss.detach(), gradient(loss, net)

    c = ParamVector((n, torch.ones_like(p)) for n, p in trainable(net).items())
    step = Step(below, objective, [], net, c, WEIGHT)
    _, g = step.gradient()
    target = (exact(step).gradient - g).flat().double()
    cells = []
    for times in RADII:
        part = lookahead(step, radius=partial(lambda times, weight: times * weight, times)).gradient - g
        a = part.flat().double()
        cells.append(f"{float(a @ target / (a.norm() * target.norm())):.3f}, {float(a.norm() / target.norm()):.2f}")
    return cells


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    experiment = without_sketch(64)
    shown = experiment.transform("domainbed").normalise
    made = experiment.steps()[0]
    x, y = torch.cat([shown(x)[:8] for x, _ in made]), torch.cat([y[:8] for _, y in made])
    table = Table("lookahead to exact: cosine, norm ratio", *(f"h = {r:g}λ" for r in RADII))
    for activation in ("ReLU6", "SiLU"):
        for dtype in (torch.float32, torch.float64):
            net = experiment.algorithm().net.eval()
            if activation == "SiLU":
                smooth(net)
            table.add_row(f"{activation}, {str(dtype)[6:]}", *likeness(net.to(dtype), x.to(dtype), y))
    Console(width=130).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
