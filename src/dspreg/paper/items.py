"""Every table and figure of the paper: a function each, with its command, its cost and what to expect.

    dspreg paper                                             what there is
    dspreg paper components --scale smoke --store runs/smoke
    dspreg sweep dspreg.paper.items:components --store DIR   the runs alone, at the paper's scale

Costs are numbers of runs; `--dry-run` adds hours as soon as a run is finished, and none is guessed before. Runs of one
scale share a store: the full method of `components` is that of `dynamic`, `interval` and `strength`, trained once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dspreg.paper.ablations import components, compose, dynamic, interval, strength
from dspreg.paper.item import Item, Variant
from dspreg.paper.methods import domainnet, main, officehome, pacs, terra, vlcs
from dspreg.paper.scales import ENGINE, OURS, PAPER, RUNNING, Scale, dsp_reg


def maps(scale: Scale = PAPER, engine: str = ENGINE) -> Item:
    """Figure 1: c of 2,500 parameters of the 13th convolution before and after training.

        dspreg paper maps --scale small --root data --set weights=lite0.safetensors --store runs/maps --figures pictures

    Beside it ERM's, and null: c under random domain labels.

    Cost: 2 runs (DSP-Reg and ERM, without sketch, one trial) and c on 512 images per domain before and after each.
    `--trials 5` gives pairs enough for a verdict.

    Expect: the paper's c falls. It shows neither ERM's nor the noise floor, without which a fall says nothing about
    DSP-Reg (docs/use/measuring.md). The digits' network has three convolutions; there it is the last.
    """
    scale = replace(scale, penalty={}) if scale.penalty else scale  # c of both on as many images
    return Item(
        name="maps",
        what="Figure 1: heat map of c before and after",
        claim="c of most parameters falls substantially; no numbers",
        kind="map",
        variants=(Variant("ERM", "ERM"), Variant(OURS, dsp_reg(scale, engine))),
        pairs=((OURS, "before"), ("ERM", "before"), (OURS, "ERM")),
        scale=scale,
        engine=engine,
    )


def overhead(scale: Scale = PAPER, engine: str = ENGINE) -> Item:
    """Table 4: steps a second and peak memory, refreshes included, of ERM and of every engine.

        dspreg paper overhead --scale paper --root data --device cuda

    Measured anew each time; no store. Variants take turns, block by block, each block with one refresh; training images
    are read outside of the time, as other processes would do it. Memory is that of a fresh process per variant.

    Cost: 9 variants × 3 blocks of T epochs (100 steps of PACS without sketch; small: 60, smoke: 10).

    Expect: 2.9 → 2.8 steps/s (1.036×) and 22.9 → 24.3 GB in the paper. A second derivative can't be had at that price:
    `exact` takes three to four ERM steps, `finite_difference` two (docs/understand/engines.md). The last variant
    measures c on a quarter of the images, as a running mean over refreshes.
    """
    engines = (
        "exact", "finite_difference", "gauss_newton", "gauss_newton(part=0.5)", "lookahead", "momentum", "lazy(30)"
    )  # fmt: skip
    return Item(
        name="overhead",
        what="Table 4: time and memory",
        claim="2.9 → 2.8 steps/s, 22.9 → 24.3 GB",
        kind="overhead",
        variants=(
            Variant("ERM", "ERM"),
            *(Variant(each, dsp_reg(scale, each)) for each in dict.fromkeys((*engines, engine))),
            Variant(f"finite_difference{RUNNING}", dsp_reg(scale, "finite_difference", running=True)),
        ),
        scale=scale,
        engine=engine,
    )


ITEMS: dict[str, Callable[..., Item]] = {
    each.__name__: each
    for each in (
        main, pacs, vlcs, officehome, terra, domainnet,
        components, dynamic, interval, strength, maps, overhead, compose,
    )
}  # fmt: skip
