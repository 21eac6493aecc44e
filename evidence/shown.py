"""The tables and pictures of docs/evidence.md, from the records in evidence/.

    python evidence/shown.py --out docs/images

What is not run yet is left out. Pictures: evidence-contrasts.png, evidence-pairs.png, evidence-c.png.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from matplotlib.figure import Figure

from dspreg.protocol.estimate import seconds_of
from dspreg.report.contrasts import FEWEST, Contrast, contrast, verdict
from dspreg.report.reading import read, run_folders
from dspreg.report.tables import Selected, selected

HERE = Path(__file__).parent
RULES = {"late": "second half", "training": "selected"}
OURS, BASE, GREY = "#c2410c", "#0369a1", "#94a3b8"


def dsp_reg(**options: object) -> str:
    """As reports name it: options sorted."""
    every = {"engine": "lookahead", "weight": 0.001, **options}
    return f"DSPReg({', '.join(f'{name}={every[name]!r}' for name in sorted(every) if every[name] is not None)})"


def arms(interval: int) -> dict[str, str]:
    """Name → label of the row in a report."""
    return {
        "ERM": "ERM",
        "DSP-Reg": dsp_reg(refresh_steps=interval),
        "shuffled c": dsp_reg(refresh_steps=interval, coefficients="shuffled"),
        "c = 1": dsp_reg(coefficients="ones"),
        "mean c": dsp_reg(refresh_steps=interval, coefficients="mean"),
        "static c": dsp_reg(coefficients="static"),
    }


SETS = {"PACS": (HERE / "pacs/store", arms(60)), "digits": (HERE / "digits/store", arms(40))}
OTHERS = ("shuffled c", "ERM", "c = 1", "mean c", "static c")  # the primary contrast first
STEP = dsp_reg(refresh_steps=60)
SINGLE = {  # one trial each: name → label, and what it is compared with
    "`exact`, λ = 0.0014": (dsp_reg(refresh_steps=60, engine=None, weight=0.0014), STEP),
    "`momentum`, λ = 0.0035": (dsp_reg(refresh_steps=60, engine="momentum", weight=0.0035), STEP),
    "`lazy(30)`, λ = 0.00026": (dsp_reg(refresh_steps=60, engine="lazy(30)", weight=0.00026), STEP),
    **{f"λ = {w:g}": (dsp_reg(refresh_steps=60, weight=w), STEP) for w in (0.0001, 0.01, 0.1)},
    **{f"T = {t}": (dsp_reg(refresh_steps=30 * t), STEP) for t in (1, 3, 4)},
    **{name: (name, "ERM") for name in ("CORAL", "SAM", "Fishr", "Mixup", "SAGM")},
    **{f"{name} + DSP-Reg": (f"{name}+{STEP}", name) for name in ("CORAL", "SAM", "Fishr", "Mixup", "SAGM")},
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the pictures")
    options = parser.parse_args()
    hours = 0.0
    pairs, contrasts = {}, {}
    for name, (store, named) in SETS.items():
        if not store.exists():
            continue
        hours += sum(seconds_of(folder.records) for folder in run_folders(store)) / 3600
        found = {rule: {row.label: row for row in selected(read(store)[0], rule)} for rule in RULES}
        print_arms(name, named, found)
        print_contrasts(name, named, found)
        if name == "PACS":
            print_single(found["late"])
        pairs[name] = differences(found["late"], named["DSP-Reg"], named["shuffled c"])
        contrasts[name] = {o: contrast(differences(found["late"], named["DSP-Reg"], named[o]).values())
                           for o in OTHERS if differences(found["late"], named["DSP-Reg"], named[o])}  # fmt: skip
    forest(contrasts).savefig(options.out / "evidence-contrasts.png", dpi=130)
    dots(pairs).savefig(options.out / "evidence-pairs.png", dpi=130)
    if (path := HERE / "pacs/c.jsonl").exists():
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        print_c(lines)
        along(lines).savefig(options.out / "evidence-c.png", dpi=130)
    print(f"\n{hours:.1f} hours on one core in the records.")
    return 0


# Tables.


def print_arms(name: str, named: dict[str, str], found: dict[str, dict[str, Selected]]) -> None:
    domains = next(iter(found["late"].values())).domains
    print(f"\n{name}, mean over the second half of the steps (sd over trials); at the right as selected\n")
    print(f"| arm | trials | {' | '.join(domains)} | mean | selected |\n|---|---|{'---|' * (len(domains) + 2)}")
    for arm, label in named.items():
        if label not in found["late"]:
            continue
        cells, means = [], []
        for target in domains:
            values = accuracies(found["late"][label], target)
            means.append(fmean(values) if values else float("nan"))
            cells.append(f"{means[-1]:.1f}" + (f" ({stdev(values):.1f})" if len(values) > 1 else ""))
        chosen = [accuracies(found["training"][label], target) for target in domains]
        picked = fmean(map(fmean, chosen)) if all(chosen) else float("nan")
        n = {len(each) for each in chosen}
        trials = "–".join(str(each) for each in sorted({min(n), max(n)}))
        print(f"| {arm} | {trials} | {' | '.join(cells)} | {fmean(means):.1f} | {picked:.1f} |")


def print_contrasts(name: str, named: dict[str, str], found: dict[str, dict[str, Selected]]) -> None:
    print(f"\n{name}: DSP-Reg less …, points of per cent\n")
    print("| | outcome | difference | 95 % interval | pairs | verdict |\n|---|---|---|---|---|---|")
    for other in OTHERS:
        for rule, words in RULES.items():
            if apart := differences(found[rule], named["DSP-Reg"], named[other]):
                c = contrast(apart.values())
                between = "" if c.low is None or c.high is None else f"{c.low:+.2f} … {c.high:+.2f}"
                said = verdict(c, "DSP-Reg", other)
                print(f"| {other} | {words} | {c.difference:+.2f} | {between} | {c.pairs} | {said} |")


def print_single(found: dict[str, Selected]) -> None:
    print("\nPACS, trial 0 alone: no verdicts\n\n| arm | mean | compared with | difference |\n|---|---|---|---|")
    for name, (label, other) in SINGLE.items():
        if label not in found or other not in found:
            continue
        domains = found[label].domains
        ours, theirs = ([found[each].accuracy(target, 0) for target in domains] for each in (label, other))
        both = [(a, b) for a, b in zip(ours, theirs, strict=True) if a is not None and b is not None]
        if len(both) == len(domains):
            mean, apart = (100 * fmean(each) for each in ((a for a, _ in both), (a - b for a, b in both)))
            against = "ERM" if other == "ERM" else "DSP-Reg, `lookahead`, λ = 0.001, T = 2" if other == STEP else other
            print(f"| {name} | {mean:.1f} | {against} | {apart:+.1f} |")


def print_c(lines: Sequence[dict[str, Any]]) -> None:
    print("\nc along training, means over runs\n")
    print("| | step | c | null | c without noise | above null | runs |\n|---|---|---|---|---|---|---|")
    for (arm, step), chosen in by_arm(lines).items():
        shown = [fmean(each[k] for each in chosen) for k in ("c", "null", "c_debiased", "above_null")]
        print(f"| {arm} | {step} | " + " | ".join(f"{x:.3f}" for x in shown) + f" | {len(chosen)} |")
    for arm in ("ERM", "DSP-Reg"):
        runs: dict[object, dict[int, float]] = defaultdict(dict)
        for (name, step), chosen in by_arm(lines).items():
            for each in chosen if name == arm else ():
                runs[each["run"]][step] = each["c_debiased"]
        falls = [each[max(each)] - each[0] for each in runs.values() if 0 in each and max(each) > 0]
        if falls:
            print(f"\n{arm}: c without noise from the first to the last step {fmean(falls):+.3f}, lower in "
                  f"{sum(f < 0 for f in falls)} of {len(falls)} runs")  # fmt: skip


# What they are made of.


def accuracies(row: Selected, target: str) -> list[float]:
    """In per cent, one per trial."""
    return [100 * each for trial in row.trials if (each := row.accuracy(target, trial)) is not None]


def differences(found: dict[str, Selected], one: str, other: str) -> dict[str, list[float]]:
    """Target → differences by trial, as shares; only targets that have pairs."""
    if one not in found or other not in found:
        return {}
    apart = {}
    for target in found[one].domains:
        both = [(found[one].accuracy(target, t), found[other].accuracy(target, t)) for t in found[one].trials]
        if each := [a - b for a, b in both if a is not None and b is not None]:
            apart[target] = each
    return apart


def by_arm(lines: Sequence[dict[str, Any]]) -> dict[tuple[str, int], list[dict[str, Any]]]:
    found: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        found["ERM" if line["algorithm"] == "ERM" else "DSP-Reg", line["step"]].append(line)
    return dict(sorted(found.items(), reverse=False))


# Pictures.


def forest(found: dict[str, dict[str, Contrast]]) -> Figure:
    """Every contrast with its interval; hollow where there are too few pairs for a verdict."""
    figure = Figure(figsize=(7.2, 3.2), layout="constrained")
    places = figure.subplots(1, len(found), squeeze=False, sharey=True)[0]
    for axes, (name, each) in zip(places, found.items(), strict=True):
        for y, other in enumerate(OTHERS):
            if other not in each:
                continue
            c = each[other]
            colour = OURS if y == 0 else BASE
            if c.low is not None and c.high is not None:
                axes.plot([c.low, c.high], [y, y], color=colour, lw=2)
            axes.plot([c.difference], [y], "o", ms=7, color=colour, mfc=colour if c.pairs >= FEWEST else "none")
        axes.axvline(0, color=GREY, lw=1)
        axes.set_title(f"{name}", fontsize=10)
        axes.set_xlabel("DSP-Reg less …, points")
        axes.grid(axis="x", alpha=0.25)
    places[0].set_yticks(range(len(OTHERS)), [f"{o}{' (primary)' if o == OTHERS[0] else ''}" for o in OTHERS])
    places[0].set_ylim(len(OTHERS) - 0.5, -0.5)
    return figure


def dots(found: dict[str, dict[str, list[float]]]) -> Figure:
    """The pairs of the primary contrast, one dot each, and the mean of each target."""
    figure = Figure(figsize=(7.2, 3.0), layout="constrained")
    places = figure.subplots(1, len(found), squeeze=False)[0]
    for axes, (name, targets) in zip(places, found.items(), strict=True):
        for x, values in enumerate(targets.values()):
            spread = [x + 0.08 * (i - (len(values) - 1) / 2) for i in range(len(values))]
            axes.plot(spread, [100 * v for v in values], "o", ms=4, color=OURS, alpha=0.7)
            axes.plot([x - 0.3, x + 0.3], [100 * fmean(values)] * 2, color="black", lw=1.5)
        axes.axhline(0, color=GREY, lw=1)
        axes.set_xticks(range(len(targets)), list(targets), fontsize=8)
        axes.set_title(name, fontsize=10)
        axes.grid(axis="y", alpha=0.25)
    places[0].set_ylabel("DSP-Reg − shuffled c, points")
    return figure


def along(lines: Sequence[dict[str, Any]]) -> Figure:
    """Means over runs of c, of its null, and of c without noise."""
    figure = Figure(figsize=(7.2, 3.2), layout="constrained")
    places = figure.subplots(1, 2)
    found = by_arm(lines)
    for arm, colour in (("ERM", BASE), ("DSP-Reg", OURS)):
        steps = sorted(step for name, step in found if name == arm)
        for axes, key, style, label in (
            (places[0], "c", "o-", f"c, {arm}"),
            (places[0], "null", "--", f"null, {arm}"),
            (places[1], "c_debiased", "o-", arm),
        ):
            values = [fmean(each[key] for each in found[arm, step]) for step in steps]
            axes.plot(steps, values, style, color=colour, ms=4, label=label)
    for axes, title in zip(places, ("c and its null", "c without the share of noise"), strict=True):
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("step")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize=8)
    places[0].set_ylabel("mean over parameters")
    return figure


if __name__ == "__main__":
    sys.exit(main())
