"""Tables of measured checkpoints: c during training, what it depends on, and how similar penalties are."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from markdown import print_table

Steps = Mapping[tuple[str, int], Sequence[Mapping[str, Any]]]  # variant, step → lines of one of the scripts
LAST = 299
CHOICES = {
    "usual": "as a refresh measures it", "again": "another draw of images", "augmented": "augmented images",
    "1e-08": "ε = 1e-8", "1e-06": "ε = 1e-6", "0.0001": "ε = 1e-4",
}  # fmt: skip
PATTERNS = {
    "again": "another draw of images", "shuffled": "shuffled c", "mean": "mean c", "reversed": "c reversed",
    "head": "the head's c alone",
}  # fmt: skip


def print_c(found: Steps) -> None:
    head = [
        "",
        "step",
        "c",
        "null",
        "c without noise",
        "√(c² − null²)",
        "above null",
        "reliability",
        "sensitive",
        "runs",
    ]
    print_table("c along training, means over runs and over the parameters that some domain is sensitive to", head,
                [c_row(variant, step, chosen) for (variant, step), chosen in found.items()])  # fmt: skip
    ends = {variant: without_noise(found, variant) for variant in ("ERM", "DSP-Reg")}
    for variant, runs in ends.items():
        print_change(f"{variant}, from step 0 to {LAST}", [last - first for first, last in runs.values()])
    both = ends["ERM"].keys() & ends["DSP-Reg"].keys()
    print_change(f"DSP-Reg minus ERM at step {LAST}", [ends["DSP-Reg"][at][1] - ends["ERM"][at][1] for at in both])
    whole = {at: [each["whole"] for each in chosen if "whole" in each] for at, chosen in found.items()}
    print_table("The same on all training images, trial 0", head,
                [c_row(variant, step, chosen) for (variant, step), chosen in whole.items() if chosen])  # fmt: skip
    some = {at: [each for each in chosen if "whole" in each] for at, chosen in found.items()}
    every = {at: [each | each["whole"] for each in chosen] for at, chosen in some.items()}
    for images, runs_of in (("512", some), ("all", every)):  # the same runs: what more images do to the fall
        for variant in ends:
            changes = [last - first for first, last in without_noise(runs_of, variant).values()]
            print_change(f"{variant}, trial 0, {images} images, from step 0 to {LAST}", changes)


def without_noise(found: Steps, variant: str) -> dict[tuple[str, int], tuple[float, float]]:
    """Target and trial → c without the share of noise over all parameters, as the protocol has it, first and last."""
    first, last = (
        {
            (each["targets"][0], each["trial"]): each["c_debiased"] * each["alive"]
            for each in found.get((variant, step), ())
        }
        for step in (0, LAST)
    )
    return {at: (first[at], last[at]) for at in first if at in last}


def print_change(what: str, changes: Sequence[float]) -> None:
    if changes:
        print(f"\nc without noise over all parameters, {what}: {fmean(changes):+.3f}; "
              f"below 0 in {sum(m < 0 for m in changes)} of {len(changes)}")  # fmt: skip


def c_row(variant: str, step: int, chosen: Sequence[Mapping[str, Any]]) -> list[str]:
    c, null, without, above, sure, alive = (
        fmean(each[k] for each in chosen) for k in ("c", "null", "c_debiased", "above_null", "reliability", "alive")
    )
    apart = fmean(math.sqrt(max(0.0, each["c_squared"] - each["null_squared"])) for each in chosen)
    numbers = [f"{x:.3f}" for x in (c, null, without, apart)] + [f"{x:.2f}" for x in (above, sure, alive)]
    return [variant, str(step), *numbers, str(len(chosen))]


def print_patterns(found: Steps) -> None:
    lines = []
    for (variant, step), chosen in found.items():
        for engine in ("exact", "lookahead"):
            both = [
                [format_similarity([each[engine][k][name] for each in chosen]) for k in ("single", "summed")]
                for name in PATTERNS
            ]
            share = fmean(each[engine]["share"] for each in chosen)
            lines.append([variant, step, f"`{engine}`", f"{share:.2f}", *map("; ".join, both), len(chosen)])
    print_table("Penalty parts beside that of c: cosine and ratio of lengths; one batch, and the sum over eight",
                ["", "step", "engine", "‖part‖/‖g‖", *PATTERNS.values(), "runs"], lines)  # fmt: skip
    between = []
    for (variant, step), chosen in found.items():
        both = [format_similarity([each["engines"][k] for each in chosen]) for k in ("single", "summed")]
        between.append([variant, step, *both, len(chosen)])
    print_table("The penalty part of c by `lookahead`, beside that by `exact`",
                ["", "step", "one batch", "the sum over eight", "runs"], between)  # fmt: skip


def format_similarity(values: Sequence[Sequence[float]]) -> str:
    cosine, ratio = (fmean(each[i] for each in values) for i in (0, 1))
    return f"{cosine:.2f}, {ratio:.2f}×"


def group_by_variant(lines: list[dict[str, Any]]) -> dict[tuple[str, int], list[dict[str, Any]]]:
    found: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        found["ERM" if line["algorithm"] == "ERM" else "DSP-Reg", line["step"]].append(line)
    return dict(sorted(found.items(), key=lambda each: (each[0][0] != "ERM", each[0][1])))


def print_choices(found: Steps) -> None:
    rows = []
    for (variant, _), chosen in found.items():
        for name, words in CHOICES.items():
            lines = [each["choices"][name] for each in chosen]
            numbers = [fmean(line[k] for line in lines) if lines[0].get(k) is not None else None
                       for k in ("c", "null", "agreement")]  # fmt: skip
            rows.append([variant, words, *("" if x is None else f"{x:.2f}" for x in numbers), len(lines)])
    print_table("c after training, by how it is measured: means over runs",
                ["", "", "c", "null", "rank correlation with the first", "runs"], rows)  # fmt: skip
