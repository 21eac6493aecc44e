"""Variants of DSP-Reg: Tables 2 and 3, Figure 2, and DSP-Reg around other methods.

Each says its command, its cost and what to expect.
"""

from __future__ import annotations

from dspreg.paper.item import Item, Variant
from dspreg.paper.scales import ENGINE, FORMULA, PAPER, Scale, dsp_reg


def components(scale: Scale = PAPER, engine: str = ENGINE) -> Item:
    """Table 2: the full method, without the penalty (λ = 0), without the coefficients (c = 1).

        dspreg paper components --scale small --root data --set weights=lite0.safetensors --store runs/small

    A fourth variant is ours: c shuffled within each tensor, the same values at other parameters.

    Cost: 4 variants × 4 targets × 3 trials = 48 runs; small: 5 trials, 80 runs; smoke: 8 runs on the digits.

    Expect: 87.5, 85.5, 85.8 in the paper. λ = 0 is ERM to the bit. If the paper's reading is right, the full method
    beats shuffled c; if any gradient penalty would do, it does not.
    """
    variants = (
        Variant("full method", dsp_reg(scale, engine), ("ablation_components", "full method")),
        Variant("λ = 0", "DSPReg(weight=0.0)", ("ablation_components", "without R (lambda=0)")),
        Variant("c = 1", dsp_reg(scale, engine, T=None, c="ones"), ("ablation_components", "without c (c=1)")),
        Variant("c shuffled", dsp_reg(scale, engine, c="shuffled")),
    )
    return Item(
        name="components",
        what="Table 2: what the parts are worth",
        claim="full 87.5, λ = 0 85.5, c = 1 85.8 on PACS",
        kind="ablation",
        variants=variants,
        pairs=tuple(("full method", other) for other in ("λ = 0", "c = 1", "c shuffled")),
        scale=scale,
        engine=engine,
    )


def dynamic(scale: Scale = PAPER, engine: str = ENGINE) -> Item:
    """Table 3: c measured again and again, against once before the first step.

        dspreg paper dynamic --scale small --root data --set weights=lite0.safetensors --store runs/small

    Cost: 2 variants × 4 targets × 3 trials = 24 runs; small: 40; smoke: 4. Half of them are those of `components`.

    Expect: 87.5 against 85.7 in the paper.
    """
    return Item(
        name="dynamic",
        what="Table 3: dynamic against static c",
        claim="dynamic 87.5, static 85.7 on PACS",
        kind="ablation",
        variants=(
            Variant("dynamic c", dsp_reg(scale, engine), ("ablation_dynamic", "dynamic c")),
            Variant("static c", dsp_reg(scale, engine, T=None, c="static"), ("ablation_dynamic", "static c")),
        ),
        pairs=(("dynamic c", "static c"),),
        scale=scale,
        engine=engine,
    )


def interval(scale: Scale = PAPER, engine: str = ENGINE) -> Item:
    """Figure 2a: how often c is measured, T = 1, 2, 3, 4 epochs.

        dspreg paper interval --scale small --root data --store runs/small --figures pictures

    Short runs have steps in place of epochs: 30·T (small), 5·T (smoke).

    Cost: 4 variants × 4 targets × 3 trials = 48 runs; small: 80; smoke: 8.

    Expect: the paper gives no number; it calls T = 2 the best trade-off with cost, T = 1 without significant gain.
    """
    times = (1, 2, 3, 4)
    return Item(
        name="interval",
        what="Figure 2a: interval between refreshes",
        claim="T = 2 the best trade-off with cost; T = 1 without significant gain; no numbers",
        kind="ablation",
        variants=tuple(
            Variant(f"T = {t}", dsp_reg(scale, engine, T=t), ("ablation_dynamic", "dynamic c") if t == 2 else None, t)
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

    With an engine that is not the paper's formula, `finite_difference` is run as well, which is: what a λ is worth
    depends on the engine.

    Cost: 4 variants × 4 targets × 3 trials = 48 runs, with such an engine 96; small: 80 or 160; smoke: 8 or 16.

    Expect: the paper gives no number; accuracy rises up to λ = 0.001, the full method's, and falls beyond.
    """
    engines, weights = (engine,) if engine in FORMULA else (engine, ENGINE), (1e-4, 1e-3, 1e-2, 1e-1)

    def label(weight: float, how: str) -> str:
        return f"λ = {weight:g}" + (f", {how}" if len(engines) > 1 else "")

    return Item(
        name="strength",
        what="Figure 2b: strength of the penalty",
        claim="rises up to λ = 0.001, falls beyond; no numbers",
        kind="ablation",
        variants=tuple(
            Variant(
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


def compose(scale: Scale = PAPER, engine: str = ENGINE) -> Item:
    """In words only: DSP-Reg "seamlessly" around other methods; Mixup, CORAL, MLDG and SAM, with and without it.

        dspreg paper compose --scale small --root data --set weights=lite0.safetensors --store runs/small

    Cost: 8 variants × 4 targets × 3 trials = 96 runs; small: 160; smoke: 16.

    Expect: the paper claims it in appendix A of "data-augmentation, invariant-representation, or meta-learning
    schemes" and prints no number for it; beside ours stand its figures of the methods alone. SAM is not in the
    sentence: it is ours, the nearest relative of DSP-Reg.
    """
    ours = dsp_reg(scale, engine)
    methods = ("Mixup", "CORAL", "MLDG", "SAM")
    pairs = [
        (Variant(name, name, ("per_domain", name)), Variant(f"{name} + DSP-Reg", f"{name}+{ours}")) for name in methods
    ]
    return Item(
        name="compose",
        what="in words: DSP-Reg around other methods",
        claim="orthogonal and complementary to other methods; no numbers",
        kind="ablation",
        variants=tuple(variant for pair in pairs for variant in pair),
        pairs=tuple((f"{name} + DSP-Reg", name) for name in methods),
        scale=scale,
        engine=engine,
    )
