"""Tables of differences between variants, paired by trial."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from markdown import print_table
from variants import FULL_DIGITS, OTHERS, Rows, differences, find_rows, pair_accuracies, variant_labels

from dspreg import Contrast, RunResult, contrast

RULES = {"late": "second half", "training": "selected"}
Apart = dict[str, list[float]]  # target → differences by trial


def print_contrasts(name: str, named: dict[str, str], found: dict[str, Rows]) -> None:
    lines = []
    for other in OTHERS:
        for rule, words in RULES.items():
            rows = found[rule]
            if apart := differences(rows, named["DSP-Reg"], named[other]):
                c = contrast(rows[named["DSP-Reg"]], rows[named[other]])
                said = full_verdict(c, apart, rows, other) if rule == "late" else ""
                others = ["" if each is None else f"{each:.2f}" for each in (c.detectable, c.equal_within)]
                lines.append([other, words, *cells(c), *others, said])
    head = ["", "outcome", "difference", "95 % interval", "pairs", "detectable", "equal within", "verdict"]
    print_table(f"{name}: DSP-Reg minus …, percentage points; the second-half mean decides", head, lines)


def cells(c: Contrast) -> list[str]:
    """Difference, interval and pairs."""
    return [f"{c.difference:+.2f}", interval(c), str(c.pairs)]


def interval(c: Contrast) -> str:
    return "" if c.low is None or c.high is None else f"{c.low:+.2f} … {c.high:+.2f}"


def full_verdict(c: Contrast, apart: Apart, found: Rows, other: str) -> str:
    """The verdict of a contrast over all targets; over some of them there is none."""
    domains = next(iter(found.values())).domains
    if len(apart) < len(domains):
        return f"none: {len(apart)} of {len(domains)} targets"
    return c.verdict("DSP-Reg", other)


def print_targets(name: str, named: dict[str, str], found: dict[str, Rows]) -> None:
    """Where a mean over targets comes from, and what is left of it without each of them."""
    domains = next(iter(found["late"].values())).domains
    above, without = [], []
    for other in OTHERS:
        for rule, words in RULES.items():
            rows = found[rule]
            apart = differences(rows, named["DSP-Reg"], named[other])
            if len(apart) < len(domains):
                continue
            means = [f"{100 * fmean(d):+.2f} ({sum(x > 0 for x in d)} of {len(d)})" for d in apart.values()]
            above.append([other, words, *means])
            both = rows[named["DSP-Reg"]], rows[named[other]]
            rest = [contrast(*both, targets=[t for t in domains if t != left]) for left in domains]
            texts = [", ".join(filter(None, (f"{c.difference:+.2f}", interval(c)))) for c in rest]
            without.append([other, words, *texts])
    head = ["", "outcome"]
    print_table(f"{name}: DSP-Reg minus …, by target: mean, and how many pairs are above 0", [*head, *domains], above)
    print_table(f"{name}: DSP-Reg minus …, without one target", [*head, *(f"without {d}" for d in domains)], without)


def print_pairs(found: Rows, title: str, pairs: dict[str, tuple[str, str]]) -> None:
    """Exploratory: intervals and no verdicts, since among so many some would exclude 0 by chance."""
    lines = []
    for name, (label, other) in pairs.items():
        if pairs_of := pair_accuracies(found, label, other):
            mean, its = (100 * fmean(fmean(pair[i] for pair in each) for each in pairs_of.values()) for i in (0, 1))
            against = "DSP-Reg" if other == FULL_DIGITS else other
            lines.append([name, f"{mean:.1f}", against, f"{its:.1f}", *cells(contrast(found[label], found[other]))])
    head = ["", "mean", "compared with", "its mean", "difference", "95 % interval", "pairs"]
    print_table(f"{title}, percentage points", head, lines)


def print_batch(runs: Sequence[RunResult]) -> None:
    ours = variant_labels(40)["DSP-Reg"]
    found = find_rows(runs, "late", {"ERM", ours})
    print_pairs(found, "digits, 3 × 11 images", {"DSP-Reg": (ours, "ERM")})
