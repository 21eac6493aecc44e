"""Tables of `readings.py`: what c may be, whether its pattern then matters, and what c is like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from markdown import print_table

GAUSS_NEWTON = {
    "to exact": "JᵀΛK_c r to the whole penalty part, cosine",
    "ratio": "… ratio of lengths",
    "to exact, adam": "… cosine as Adam divides both",
    "logits, c to c = 1": "K_c r to Kr, cosine",
    "logits, c to shuffled": "K_c r of c to that of shuffled c, cosine",
    "residuals, c to shuffled": "change of residuals ΛK_c r of c to that of shuffled c, cosine",
    "residuals, change to r": "change of residuals ΛK_c r to the residuals r, cosine",
}
IMPORTANCE = {
    "spearman": "rank correlation of c with s̄",
    "log": "correlation of c with log s̄",
    "held": "share of Σs̄ that the tenth with the largest c holds",
    "between": "share of c's variance that is between tensors",
}


def print_readings(lines: Sequence[Mapping[str, Any]]) -> None:
    """Means over the checkpoints; of the first cosine the least as well."""
    targets = ", ".join(line["targets"][0] for line in lines)
    rows = []
    for name in lines[0]["readings"]:
        found = [line["readings"][name] for line in lines]
        cosines = [each["shuffled"][0] for each in found]
        rows.append([
            name, f"{fmean(each['spread'] for each in found):.2f}", f"{fmean(cosines):.3f} ({min(cosines):.3f})",
            f"{fmean(each['shuffled'][1] for each in found):.2f}", f"{fmean(each['adam'][0] for each in found):.3f}",
            f"{fmean(each['default'][0] for each in found):.3f}",
            f"{fmean(each['share'][0] for each in found):.2g}" if "share" in found[0] else "",
        ])  # fmt: skip
    for name in lines[0]["controls"]:
        cosine, ratio, adam = (fmean(line["controls"][name][i] for line in lines) for i in range(3))
        least = min(line["controls"][name][0] for line in lines)
        rows.append([f"default, {name}", "", f"{cosine:.3f} ({least:.3f})", f"{ratio:.2f}", f"{adam:.3f}", "", ""])
    title = (
        f"Readings of c: the penalty part of c shuffled within tensors beside that of c, by `exact`; ERM, step "
        f"{lines[0]['step']}, without {targets}"
    )
    head = ["c", "sd/mean", "cosine (least)", "ratio of lengths", "cosine, Adam", "cosine to default", "‖part‖/‖g‖"]
    print_table(title, head, rows)
    each_target = [line["targets"][0] for line in lines]
    for title, key, words in (
        ("The part without the network's curvature", "gauss_newton", GAUSS_NEWTON),
        ("c and importance, parameters that some domain is sensitive to", "importance", IMPORTANCE),
    ):
        table = [[text, *(f"{line[key][name]:.3f}" for line in lines)] for name, text in words.items()]
        print_table(f"{title}; ERM, step {lines[0]['step']}", ["left out", *each_target], table)
    kinds = []
    for kind in lines[0]["kinds"]:
        found = [line["kinds"][kind] for line in lines]
        numbers = [f"{fmean(each[k] for each in found):.2f}" for k in ("c", "null", "debiased")]
        kinds.append([kind, f"{round(fmean(each['parameters'] for each in found)):,}", *numbers])
    title = f"c by kind of parameter, means over the sensitive ones; ERM, step {lines[0]['step']}"
    print_table(title, ["", "parameters", "c", "null", "c without noise"], kinds)
