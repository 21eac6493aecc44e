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

from dspreg.paper.item import ENGINE, Arm, Item
from dspreg.paper.scales import PAPER, Scale
from dspreg.report.paper import FIVE

METHODS = (
    "MMD", "MLDG", "IRM", "MixStyle", "GroupDRO", "ARM", "MTL", "VREx", "Mixup", "SagNet", "CORAL", "RSC", "ERM", "SAM",
    "Fish", "GSAM", "SAGM", "GMDG", "GGA",
)  # fmt: skip
OURS = "DSP-Reg"


def dsp_reg(scale: Scale, engine: str = ENGINE, *, weight: float = 1e-3, T: int | None = 2, c: str = "dynamic") -> str:
    """The spec of DSP-Reg at a scale; λ and T are written out, for what is left open would be drawn in a search."""
    refresh = {} if T is None else {"refresh_epochs": T} if scale.epoch is None else {"refresh_steps": scale.epoch * T}
    options: dict[str, object] = {"weight": weight, **refresh}
    if c != "ones":
        options |= scale.penalty
    options |= ({} if c == "dynamic" else {"coefficients": c}) | ({} if engine == ENGINE else {"engine": engine})
    return f"DSPReg({', '.join(f'{name}={value!r}' for name, value in options.items())})"


def main(scale: Scale = PAPER, engine: str = ENGINE) -> Item:
    """Table 1: twenty methods on five data sets.

        dspreg paper main --scale paper --root data --set device=cuda --store runs/paper

    Cost: 20 methods × 22 targets × 3 trials × 20 draws = 26,400 runs of 5,001 steps of a ResNet-50; small: 1,320 runs;
    smoke: 40 runs on the digits. All five data sets have to be in `--root`.

    Expect: the paper has DSP-Reg at 66.7 and ERM at 63.3, and DSP-Reg first on PACS, VLCS and DomainNet. Its rows of
    other methods are taken from other papers, under their searches, so that ours differ by more than seeds.
    """
    claim = "DSP-Reg 66.7, before GMDG and GGA 66.3, SAGM 66.1, ERM 63.3"
    return _methods("main", "Table 1: means of five data sets", claim, FIVE, scale, engine)


def pacs(scale: Scale = PAPER, engine: str = ENGINE) -> Item:
    """Appendix: twenty methods on the four domains of PACS.

        dspreg paper pacs --scale small --root data --set weights=lite0.safetensors --store runs/small

    Cost: 20 methods × 4 targets × 3 trials × 20 draws = 4,800 runs, a part of those of `main`; small: 240; smoke: 40.

    Expect: 87.5 in the paper, ERM 84.2 (85.5 in its Table 1). Fish and GMDG have a mean alone there.
    """
    return _methods("pacs", "appendix: PACS by domain", "DSP-Reg 87.5, first", ("PACS",), scale, engine)


def vlcs(scale: Scale = PAPER, engine: str = ENGINE) -> Item:
    """Appendix: twenty methods on the four domains of VLCS.

        dspreg paper vlcs --scale paper --root data --store runs/paper

    Cost: 4,800 runs, a part of those of `main`; small: 240; smoke: those of `pacs`.

    Expect: 80.1 in the paper, ERM 77.3.
    """
    return _methods("vlcs", "appendix: VLCS by domain", "DSP-Reg 80.1, first", ("VLCS",), scale, engine)


def officehome(scale: Scale = PAPER, engine: str = ENGINE) -> Item:
    """Appendix: twenty methods on the four domains of OfficeHome.

        dspreg paper officehome --scale paper --root data --store runs/paper

    Cost: 4,800 runs, a part of those of `main`; small: 240; smoke: those of `pacs`.

    Expect: 69.4 in the paper, behind GMDG 70.7, SAGM 70.1 and SAM 69.6, though it claims to lead on all data sets.
    """
    claim = "DSP-Reg 69.4, behind GMDG"
    return _methods("officehome", "appendix: OfficeHome by domain", claim, ("OfficeHome",), scale, engine)


def terra(scale: Scale = PAPER, engine: str = ENGINE) -> Item:
    """Appendix: twenty methods on the four locations of TerraIncognita.

        dspreg paper terra --scale paper --root data --store runs/paper

    Cost: 4,800 runs, a part of those of `main`; small: 240; smoke: those of `pacs`.

    Expect: 50.7 in the paper, which calls that slightly above others; its own table has GMDG at 51.1.
    """
    claim = "DSP-Reg 50.7, slightly above others"
    return _methods("terra", "appendix: TerraIncognita by location", claim, ("TerraIncognita",), scale, engine)


def domainnet(scale: Scale = PAPER, engine: str = ENGINE) -> Item:
    """Appendix: twenty methods on the six domains of DomainNet.

        dspreg paper domainnet --scale paper --root data --store runs/paper

    Cost: 20 × 6 × 3 × 20 = 7,200 runs, a part of those of `main`; small: 360; smoke: those of `pacs`.

    Expect: 45.6 in the paper. An epoch has 2,000 to 2,900 steps here, so c is refreshed once in 5,001; the table says.
    """
    return _methods("domainnet", "appendix: DomainNet by domain", "DSP-Reg 45.6, first", ("DomainNet",), scale, engine)


def components(scale: Scale = PAPER, engine: str = ENGINE) -> Item:
    """Table 2: the full method, without the penalty (λ = 0), without the coefficients (c = 1).

        dspreg paper components --scale small --root data --set weights=lite0.safetensors --store runs/small

    A fourth arm is ours: c shuffled within each tensor, which has the same penalty but not at the same parameters.

    Cost: 4 arms × 4 targets × 3 trials = 48 runs; small: 5 trials, 80 runs; smoke: 8 runs on the digits.

    Expect: 87.5, 85.5, 85.8 in the paper. λ = 0 is ERM to the bit. If the paper's reading is right, the full method
    beats shuffled c; if any gradient penalty would do, it does not.
    """
    arms = (
        Arm("full method", dsp_reg(scale, engine), ("ablation_components", "full method")),
        Arm("λ = 0", "DSPReg(weight=0.0)", ("ablation_components", "without R (lambda=0)")),
        Arm("c = 1", dsp_reg(scale, engine, T=None, c="ones"), ("ablation_components", "without c (c=1)")),
        Arm("c shuffled", dsp_reg(scale, engine, c="shuffled")),
    )
    return Item(
        name="components",
        what="Table 2: what the parts are worth",
        claim="full 87.5, λ = 0 85.5, c = 1 85.8 on PACS",
        kind="ablation",
        arms=arms,
        pairs=tuple(("full method", other) for other in ("λ = 0", "c = 1", "c shuffled")),
        scale=scale,
        engine=engine,
    )


def dynamic(scale: Scale = PAPER, engine: str = ENGINE) -> Item:
    """Table 3: c measured again and again, against once before the first step.

        dspreg paper dynamic --scale small --root data --set weights=lite0.safetensors --store runs/small

    Cost: 2 arms × 4 targets × 3 trials = 24 runs; small: 40; smoke: 4. Half of them are those of `components`.

    Expect: 87.5 against 85.7 in the paper.
    """
    return Item(
        name="dynamic",
        what="Table 3: dynamic against static c",
        claim="dynamic 87.5, static 85.7 on PACS",
        kind="ablation",
        arms=(
            Arm("dynamic c", dsp_reg(scale, engine), ("ablation_dynamic", "dynamic c")),
            Arm("static c", dsp_reg(scale, engine, T=None, c="static"), ("ablation_dynamic", "static c")),
        ),
        pairs=(("dynamic c", "static c"),),
        scale=scale,
        engine=engine,
    )


def interval(scale: Scale = PAPER, engine: str = ENGINE) -> Item:
    """Figure 2a: how often c is measured, T = 1, 2, 3, 4 epochs.

        dspreg paper interval --scale small --root data --store runs/small --figures pictures

    Short runs have steps in place of epochs: 30·T (small), 5·T (smoke).

    Cost: 4 arms × 4 targets × 3 trials = 48 runs; small: 80; smoke: 8.

    Expect: the paper's figure has no numbers but 87.5 at T = 2, which it calls best: T = 1 no better, T ≥ 3 worse.
    """
    times = (1, 2, 3, 4)
    return Item(
        name="interval",
        what="Figure 2a: interval between refreshes",
        claim="T = 2 best (87.5); T = 1 no better, T ≥ 3 worse; no other numbers",
        kind="ablation",
        arms=tuple(
            Arm(f"T = {t}", dsp_reg(scale, engine, T=t), ("ablation_dynamic", "dynamic c") if t == 2 else None, t)
            for t in times
        ),
        pairs=tuple(("T = 2", f"T = {t}") for t in times if t != 2),
        axis="T_update, epochs" if scale.epoch is None else f"T_update, units of {scale.epoch} steps",
        best=(2, 87.5),
        scale=scale,
        engine=engine,
    )


def strength(scale: Scale = PAPER, engine: str = ENGINE) -> Item:
    """Figure 2b: λ = 0.0001, 0.001, 0.01, 0.1.

        dspreg paper strength --scale small --engine lookahead --root data --store runs/small --figures pictures

    With another engine than `exact`, `exact` is run as well: what a λ is worth depends on the engine.

    Cost: 4 arms × 4 targets × 3 trials = 48 runs, with another engine 96; small: 80 or 160; smoke: 8 or 16.

    Expect: the paper's figure has no numbers but 87.5 at λ = 0.001; accuracy rises up to there and falls beyond.
    """
    engines, weights = dict.fromkeys((engine, ENGINE)), (1e-4, 1e-3, 1e-2, 1e-1)

    def label(weight: float, how: str) -> str:
        return f"λ = {weight:g}" + (f", {how}" if len(engines) > 1 else "")

    return Item(
        name="strength",
        what="Figure 2b: strength of the penalty",
        claim="rises up to λ = 0.001 (87.5), falls beyond; no other numbers",
        kind="ablation",
        arms=tuple(
            Arm(
                label(w, how),
                dsp_reg(scale, how, weight=w),
                ("ablation_dynamic", "dynamic c") if w == 1e-3 else None,
                w,
                how,
            )
            for how in engines
            for w in weights
        ),
        pairs=tuple((label(1e-3, how), label(w, how)) for how in engines for w in weights if w != 1e-3),
        axis="λ",
        best=(1e-3, 87.5),
        scale=scale,
        engine=engine,
    )


def maps(scale: Scale = PAPER, engine: str = ENGINE) -> Item:
    """Figure 1: c of 2,500 parameters of the 13th convolution before and after training; with ERM's and null beside.

        dspreg paper maps --scale small --root data --set weights=lite0.safetensors --store runs/maps --figures pictures

    Cost: 2 runs (DSP-Reg and ERM, without sketch, one trial) and c on 512 images per domain before and after each.
    `--trials 5` gives pairs enough for a verdict.

    Expect: the paper's c falls. It shows neither ERM's nor the floor, without which a fall says nothing about DSP-Reg
    (docs/measuring.md). The digits' network has three convolutions; there it is the last.
    """
    return Item(
        name="maps",
        what="Figure 1: heat map of c before and after",
        claim="c of most parameters falls substantially; no numbers",
        kind="map",
        arms=(Arm("ERM", "ERM"), Arm(OURS, dsp_reg(replace(scale, penalty={}), engine))),  # c of both on as many images
        pairs=((OURS, "before"), ("ERM", "before"), (OURS, "ERM")),
        scale=scale,
        engine=engine,
    )


def overhead(scale: Scale = PAPER, engine: str = ENGINE) -> Item:
    """Table 4: steps a second and peak memory, refreshes included, of ERM and of every engine.

        dspreg paper overhead --scale paper --root data --set device=cuda

    Measured anew each time; no store. Arms take turns, block by block, each block with one refresh; training images are
    read outside of the time, as other processes would do it. Memory is that of a fresh process per arm.

    Cost: 5 arms × 3 blocks of T epochs (100 steps of PACS without sketch; small: 60, smoke: 10).

    Expect: 2.9 → 2.8 steps/s (1.036×) and 22.9 → 24.3 GB in the paper. A second derivative can't be had at that price:
    `exact` takes about three ERM steps, `lookahead` two (docs/engines.md).
    """
    engines = ("exact", "lookahead", "momentum", "lazy(30)")
    return Item(
        name="overhead",
        what="Table 4: time and memory",
        claim="2.9 → 2.8 steps/s, 22.9 → 24.3 GB",
        kind="overhead",
        arms=(Arm("ERM", "ERM"), *(Arm(each, dsp_reg(scale, each)) for each in dict.fromkeys((*engines, engine)))),
        scale=scale,
        engine=engine,
    )


def compose(scale: Scale = PAPER, engine: str = ENGINE) -> Item:
    """In words only: DSP-Reg "seamlessly" around other methods; CORAL, Mixup and SAM, with and without it.

        dspreg paper compose --scale small --root data --set weights=lite0.safetensors --store runs/small

    Cost: 6 arms × 4 targets × 3 trials = 72 runs; small: 120; smoke: 12.

    Expect: the paper claims it in its last section and prints no number for it; beside ours stand its figures of the
    methods alone.
    """
    ours = dsp_reg(scale, engine)
    methods = ("CORAL", "Mixup", "SAM")
    arms = [(Arm(name, name, ("per_domain", name)), Arm(f"{name} + DSP-Reg", f"{name}+{ours}")) for name in methods]
    return Item(
        name="compose",
        what="in words: DSP-Reg around other methods",
        claim="orthogonal and complementary to other methods; no numbers",
        kind="ablation",
        arms=tuple(arm for pair in arms for arm in pair),
        pairs=tuple((f"{name} + DSP-Reg", name) for name in methods),
        scale=scale,
        engine=engine,
    )


def _methods(name: str, what: str, claim: str, datasets: tuple[str, ...], scale: Scale, engine: str) -> Item:
    table = "main" if name == "main" else "per_domain"
    arms = [Arm(method, method, (table, method)) for method in METHODS]
    return Item(
        name=name,
        what=what,
        claim=claim,
        kind="methods",
        arms=(*arms, Arm(OURS, dsp_reg(scale, engine), (table, OURS))),
        pairs=tuple((OURS, other) for other in ("ERM", "SAGM", "GMDG", "GGA")),
        datasets=datasets,
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
