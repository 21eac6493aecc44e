"""All tables and pictures of the evidence, from the records beside this file.

    python evidence/shown.py --out docs/images > evidence/tables.md

What is not run yet is left out. Pictures: evidence-contrasts.png, evidence-pairs.png, evidence-c.png.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import drawn
from c_tables import by_arm, print_c, print_measuring, print_patterns
from contrast_tables import RULES, print_batch, print_contrasts, print_pairs, print_targets
from kept import read_lines
from markdown import print_table
from rows import (
    BATCH,
    CHOICES,
    FULL,
    FULL_DIGITS,
    HERE,
    OTHERS,
    SETS,
    SINGLE,
    Rows,
    accuracies,
    alone,
    composed,
    differences,
    finished,
    rows,
)

from dspreg.protocol.estimate import seconds_of
from dspreg.report.contrasts import contrast


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the pictures")
    out = parser.parse_args().out
    print("# Every table of the evidence\n\nPrinted by `python evidence/shown.py --out docs/images`.")
    hours, pairs, contrasts = 0.0, {}, {}
    choices = {name: (label, FULL_DIGITS) for name, label in CHOICES.items()}
    for name, (store, named) in SETS.items():
        if not (store / "runs").exists():
            continue
        hours += sum(seconds_of(folder.records) for folder in finished(store)) / 3600
        beside = SINGLE if name == "PACS" else choices | alone() | composed(40)
        others = {label for pair in beside.values() for label in pair}
        found = {rule: rows(store, rule, {*named.values(), *others}) for rule in RULES}
        print_arms(name, named, found)
        print_contrasts(name, named, found)
        print_targets(name, named, found)
        print_strength(name, store, named)
        if name == "PACS":
            print_single(found["late"])
        else:
            print_pairs(found["late"], "digits: … less DSP-Reg", choices)
            print_pairs(found["late"], "digits: methods, and DSP-Reg around them", alone() | composed(40))
        apart = {o: differences(found["late"], named["DSP-Reg"], named[o]) for o in OTHERS}
        if apart[OTHERS[0]]:
            pairs[name] = apart[OTHERS[0]]
            contrasts[name] = {other: contrast(each.values()) for other, each in apart.items() if each}
    if (BATCH / "runs").exists():
        print_batch()
    if pairs:
        drawn.forest(contrasts).savefig(out / "evidence-contrasts.png", dpi=130)
        drawn.dots(pairs).savefig(out / "evidence-pairs.png", dpi=130)
    if lines := read_lines(HERE / "pacs/c.jsonl"):
        along = by_arm(lines)
        print_c(along)
        drawn.along(along).savefig(out / "evidence-c.png", dpi=130)
    if lines := read_lines(HERE / "pacs/choices.jsonl"):
        print_measuring(by_arm(lines))
    if lines := read_lines(HERE / "pacs/patterns.jsonl"):
        print_patterns(by_arm(lines))
    print(f"\n{hours:.1f} hours on one core in the records of the two stores.")
    return 0


def print_arms(name: str, named: dict[str, str], found: dict[str, Rows]) -> None:
    domains, lines = next(iter(found["late"].values())).domains, []
    for arm, label in named.items():
        if label not in found["late"]:
            continue
        values = [accuracies(found["late"][label], target) for target in domains]
        chosen = [accuracies(found["training"][label], target) for target in domains]
        cells = [f"{fmean(v):.1f} ({stdev(v):.1f})" if len(v) > 1 else f"{v[0]:.1f}" if v else "" for v in values]
        means = [f"{fmean(map(fmean, each)):.1f}" if all(each) else "" for each in (values, chosen)]
        trials = "–".join(str(n) for n in sorted({min(map(len, values)), max(map(len, values))}))
        lines.append([arm, trials, *cells, *means])
    title = f"{name}, mean over the second half of the steps (sd over trials); at the right as selected"
    print_table(title, ["arm", "trials", *domains, "mean", "selected"], lines)


def print_strength(name: str, store: Path, named: dict[str, str]) -> None:
    """At the first refresh all arms of a trial stand at the same θ and see the same batch: equal λ, unequal penalty."""
    at = 60 if name == "PACS" else 40
    labels = {label: arm for arm, label in named.items()}
    shares: dict[tuple[Any, ...], dict[str, tuple[float, float]]] = defaultdict(dict)
    for folder in finished(store):
        described = folder.description()
        s, arm = described["settings"], labels.get(described["where"]["algorithm"])
        logs = {record["step"]: record["log"] for record in folder.records}
        if arm is not None and "DSPReg.ratio" in logs[at]:
            shares[s["targets"][0], s["trial"]][arm] = (logs[at]["DSPReg.ratio"], logs[at]["loss"])
    lines = []
    for arm in named:
        mine = [each[arm][0] for each in shares.values() if arm in each]
        same = [each[arm][0] / each["DSP-Reg"][0] for each in shares.values() if arm in each and "DSP-Reg" in each]
        if mine and arm != "static c":  # which has another θ by then
            lines.append([arm, f"{median(mine):.3f}", f"{median(same):.2f}×" if same else "", len(mine)])
    print_table(f"{name}, step {at}: ‖penalty part‖/‖g‖", ["", "median", "of DSP-Reg's, same start", "runs"], lines)


def print_single(found: Rows) -> None:
    lines = []
    for name, (label, other) in SINGLE.items():
        if label not in found or other not in found:
            continue
        domains = found[label].domains
        ours, theirs = ([found[each].accuracy(target, 0) for target in domains] for each in (label, other))
        both = [(a, b) for a, b in zip(ours, theirs, strict=True) if a is not None and b is not None]
        if len(both) == len(domains):
            mean, apart = (100 * fmean(each) for each in ((a for a, _ in both), (a - b for a, b in both)))
            against = "DSP-Reg, `lookahead`, λ = 0.001, c every 60 steps" if other == FULL else other
            lines.append([name, f"{mean:.1f}", against, f"{apart:+.1f}"])
    print_table("PACS, trial 0 alone: no verdicts", ["arm", "mean", "compared with", "difference"], lines)


if __name__ == "__main__":
    sys.exit(main())
