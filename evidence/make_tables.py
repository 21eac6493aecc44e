"""All tables and plots of the evidence, from the records beside this file.

    python evidence/make_tables.py --out docs/images > evidence/tables.md

What is not run yet is left out. Plots: evidence-contrasts.png, evidence-pairs.png, evidence-c.png,
evidence-premise.png.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import plots
from agreement_tables import print_agreement
from archives import HERE, STORES, SUFFIX
from averages_tables import print_averages
from c_tables import group_by_variant, print_c, print_choices, print_patterns
from contrast_tables import RULES, print_batch, print_contrasts, print_pairs, print_targets
from markdown import print_table
from measure_checkpoints import read_lines
from premise_tables import print_premise
from reading_tables import print_readings
from variants import (
    BATCH,
    CHOICES,
    FULL,
    FULL_DIGITS,
    OTHERS,
    SETS,
    SINGLE,
    Rows,
    accuracies,
    differences,
    find_rows,
    methods_alone,
    methods_with_dsp_reg,
)

from dspreg import RunResult, contrast, load_runs

HEAD = """# Every table of the evidence

Printed by `python evidence/make_tables.py --out docs/images`. Accuracies are in per cent, differences in percentage
points. An *arm* is a variant of the training, as the frozen protocol calls it; *second half* is the mean accuracy over
the second half of the steps, *selected* the accuracy at the step that source validation selects; *null* is c under
random domain labels; the *penalty part* is what the penalty adds to the gradient g of the loss; the *change* of a
parameter on some images is |log s/s̄|, with s̄ of the sources, and its *excess* the squared change on the target less
that on as many held-out images of the sources."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the plots")
    says = "where archives.py opened the stores (default: the archives beside this file)"
    parser.add_argument("--stores", type=Path, metavar="DIR", help=says)
    options = parser.parse_args()
    places = {name: options.stores / name if options.stores else HERE / f"{name}{SUFFIX}" for name in STORES}
    print_all({name: load_runs(place) for name, place in places.items() if place.exists()}, options.out)
    return 0


def print_all(stores: Mapping[str, Sequence[RunResult]], out: Path) -> None:
    """Every table, and every plot as a file.

    Args:
        stores: The runs of each, by its name.
        out: Where the plots go.
    """
    print(HEAD)
    hours, pairs, contrasts = 0.0, {}, {}
    choices = {name: (label, FULL_DIGITS) for name, label in CHOICES.items()}
    composed = methods_alone() | methods_with_dsp_reg(40)
    for name, (place, named) in SETS.items():
        runs = [run for run in stores.get(place, ()) if run.finished]
        if not runs:
            continue
        hours += sum(run.seconds for run in runs) / 3600
        beside = SINGLE if name == "PACS" else choices | composed
        others = {label for pair in beside.values() for label in pair}
        found = {rule: find_rows(stores[place], rule, {*named.values(), *others}) for rule in RULES}
        print_variants(name, named, found)
        print_contrasts(name, named, found)
        print_targets(name, named, found)
        print_strength(name, runs, named)
        if name == "PACS":
            print_single(found["late"])
        else:
            print_pairs(found["late"], "digits: … minus DSP-Reg", choices)
            print_pairs(found["late"], "digits: methods, and DSP-Reg around them", composed)
        apart = {o: differences(found["late"], named["DSP-Reg"], named[o]) for o in OTHERS}
        if apart[OTHERS[0]]:
            pairs[name] = apart[OTHERS[0]]
            rows = found["late"]
            ours = rows[named["DSP-Reg"]]
            contrasts[name] = {other: contrast(ours, rows[named[other]]) for other, each in apart.items() if each}
    if any(run.finished for run in stores.get(BATCH, ())):
        print_batch(stores[BATCH])
    if pairs:
        plots.plot_contrasts(contrasts).savefig(out / "evidence-contrasts.png", dpi=130)
        plots.plot_pairs(pairs).savefig(out / "evidence-pairs.png", dpi=130)
    if lines := read_lines(HERE / "pacs/c.jsonl"):
        along = group_by_variant(lines)
        print_c(along)
        plots.plot_c(along).savefig(out / "evidence-c.png", dpi=130)
    if lines := read_lines(HERE / "pacs/choices.jsonl"):
        print_choices(group_by_variant(lines))
    if lines := read_lines(HERE / "pacs/patterns.jsonl"):
        print_patterns(group_by_variant(lines))
    if lines := read_lines(HERE / "pacs/readings.jsonl"):
        print_readings(lines)
    premise = {name: read_lines(HERE / f"{name.lower()}/premise.jsonl") for name in ("PACS", "digits")}
    premise_by_step = {name: group_by_variant(lines) for name, lines in premise.items() if lines}
    for name, found in premise_by_step.items():
        print_premise(name, found)
    if premise_by_step:
        plots.plot_premise(premise_by_step).savefig(out / "evidence-premise.png", dpi=130)
    print_agreement(stores)
    print_averages(stores)
    print(f"\n{hours:.1f} hours on one core in the records of the two stores.")


def print_variants(name: str, named: dict[str, str], found: dict[str, Rows]) -> None:
    domains, lines = next(iter(found["late"].values())).domains, []
    for variant, label in named.items():
        if label not in found["late"]:
            continue
        values = [accuracies(found["late"][label], target) for target in domains]
        chosen = [accuracies(found["training"][label], target) for target in domains]
        cells = [f"{fmean(v):.1f} ({stdev(v):.1f})" if len(v) > 1 else f"{v[0]:.1f}" if v else "" for v in values]
        means = [f"{fmean(map(fmean, each)):.1f}" if all(each) else "" for each in (values, chosen)]
        trials = "–".join(str(n) for n in sorted({min(map(len, values)), max(map(len, values))}))
        lines.append([variant, trials, *cells, *means])
    title = f"{name}, mean over the second half of the steps (sd over trials); last column: selected"
    print_table(title, ["arm", "trials", *domains, "mean", "selected"], lines)


def print_strength(name: str, runs: Sequence[RunResult], named: dict[str, str]) -> None:
    """At the first refresh all variants of a trial have the same θ and see the same batch: equal λ, unequal penalty."""
    at = 60 if name == "PACS" else 40
    names = {label: variant for variant, label in named.items()}
    shares: dict[tuple[Any, ...], dict[str, tuple[float, float]]] = defaultdict(dict)
    for run in runs:
        variant = names.get(run.algorithm)
        logs = {record["step"]: record["log"] for record in run.records}
        if variant is not None and "DSPReg.ratio" in logs[at]:
            shares[run.targets[0], run.trial][variant] = (logs[at]["DSPReg.ratio"], logs[at]["loss"])
    lines = []
    for variant in named:
        mine = [each[variant][0] for each in shares.values() if variant in each]
        both = [each for each in shares.values() if variant in each and "DSP-Reg" in each]
        same = [each[variant][0] / each["DSP-Reg"][0] for each in both]
        if mine and variant != "static c":  # which has another θ by then
            lines.append([variant, f"{median(mine):.3f}", f"{median(same):.2f}×" if same else "", len(mine)])
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
