"""Tables of premise.py: what predicts the change of sensitivities on the unseen domain.

Means over targets of the mean over a target's runs, with an interval over targets: runs of one target, of ERM and of
DSP-Reg above all, are nearly the same network on the same images, and count as one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import sqrt
from statistics import fmean, stdev
from typing import Any

from c_tables import Steps
from markdown import print_table

from dspreg.reporting.statistics import quantile

PREDICTORS = {
    "c": "c",
    "c_debiased": "c without noise",
    "c_levelled": "c of equal levels",
    "null": "null",
    "mean": "s̄",
    "agreement": "agreement of gradients",
    "c_with_unseen": "c with the target among the domains",
    "again": "change on other images of the target",
}
OUTCOMES = ("unseen", "sources", "excess")
SUFFIXES = {"": "", "_less_level": ", level taken off"}
WITHIN = ("over all parameters", "within tensor and tenth by s̄")


def print_premise(name: str, found: Steps) -> None:
    """`found`: variant and step → lines; the last step in full, and c alone at the others."""
    last = max(step for _, step in found)
    both = [line for (_, step), chosen in found.items() if step == last for line in chosen]
    targets = sorted({line["targets"][0] for line in both})
    for suffix, words in SUFFIXES.items():
        rows = []
        for predictor, label in PREDICTORS.items():
            cells = [spread(both, predictor, f"{o}{suffix}", w) for w in (0, 1) for o in OUTCOMES]
            if any(cells):
                rows.append([label, *cells])
        heads = [f"{o}, {'all' if w == 0 else 'within'}" for w in (0, 1) for o in ("target", "sources", "excess")]
        print_table(
            f"{name}, step {last}: rank correlation with the change of sensitivity{words}; mean and 95 % interval over "
            f"{len(targets)} targets, {len(both)} runs",
            ["", *heads],
            rows,
        )
    rows = []
    for (variant, step), chosen in found.items():
        cells = [spread(chosen, "c", f"{o}_less_level", w) for w in (0, 1) for o in OUTCOMES]
        rows.append([variant, step, *cells, len(chosen)])
    print_table(
        f"{name}: c along training, level taken off",
        ["", "step", "target, all", "sources, all", "excess, all", "target, within", "sources, within",
         "excess, within", "runs"],
        rows,
    )  # fmt: skip
    rows = []
    for target in targets:
        mine = [line for line in both if line["targets"][0] == target]
        numbers = [mean_of(mine, p, f"{o}_less_level", 0) for p in ("c", "again") for o in OUTCOMES]
        levels = [fmean(line["medians"]["change"][f"{o}{s}"] for line in mine)
                  for s in SUFFIXES for o in OUTCOMES[:2]]  # fmt: skip
        rows.append([target, *numbers, *(f"{x:.2f}" for x in levels), len(mine)])
    heads = [f"{p}: {o}" for p in ("c", "other images") for o in ("target", "sources", "excess")]
    print_table(
        f"{name}, step {last}, by target: rank correlations over all parameters with the level taken off, and medians "
        "of the change",
        ["target", *heads, "median change", "sources", "level off", "sources", "runs"],
        rows,
    )
    third = thirds(both)
    print_table(
        f"{name}, step {last}: c of two sources with the change on the third",
        ["", *WITHIN, "level taken off: all", "within", "third domains"],
        [["mean", *third]] if third else [],
    )


def spread(lines: Sequence[Mapping[str, Any]], predictor: str, outcome: str, which: int) -> str:
    """The mean and its interval; empty where it was not measured."""
    return interval([(line["targets"][0], value_of(line, predictor, outcome, which)) for line in lines])


def interval(values: Sequence[tuple[str, float | None]]) -> str:
    """Mean and interval over targets, of target and value."""
    of_target: dict[str, list[float]] = defaultdict(list)
    for target, value in values:
        if value is not None:
            of_target[target].append(value)
    means = [fmean(each) for each in of_target.values()]
    if not means:
        return ""
    middle = fmean(means)
    if len(means) < 2:
        return f"{middle:+.2f}"
    half = quantile(0.975, len(means) - 1) * stdev(means) / sqrt(len(means))
    return f"{middle:+.2f} ({middle - half:+.2f} … {middle + half:+.2f})"


def value_of(line: Mapping[str, Any], predictor: str, outcome: str, which: int) -> float | None:
    found: float | None = line["correlations"].get(predictor, {}).get(outcome, (None, None))[which]
    return found


def mean_of(lines: Sequence[Mapping[str, Any]], predictor: str, outcome: str, which: int) -> str:
    values = [v for line in lines if (v := value_of(line, predictor, outcome, which)) is not None]
    return f"{fmean(values):+.2f}" if values else ""


def thirds(lines: Sequence[Mapping[str, Any]]) -> list[object]:
    """The mean over the sources of each run, and of that mean and interval."""
    values: dict[tuple[str, int], list[tuple[str, float]]] = defaultdict(list)
    for line in lines:
        for change in ("change", "change_less_level"):
            for which in (0, 1):
                each = [row[change][which] for row in line["third"].values() if row[change][which] is not None]
                if each:
                    values[change, which].append((line["targets"][0], fmean(each)))
    if not values:
        return []
    return [*(interval(each) for each in values.values()), sum(len(line["third"]) for line in lines)]
