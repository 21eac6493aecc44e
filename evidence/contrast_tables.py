"""Tables of differences between arms, paired by trial."""

from __future__ import annotations

from statistics import fmean

from rows import BATCH, FULL_DIGITS, OTHERS, Rows, accuracies, arms, differences, rows

from dspreg.report.contrasts import Contrast, contrast, verdict
from dspreg.report.student import quantile

RULES = {"late": "second half", "training": "selected"}
Apart = dict[str, list[float]]  # target → differences by trial


def print_contrasts(name: str, named: dict[str, str], found: dict[str, Rows]) -> None:
    print(f"\n{name}: DSP-Reg less …, points of per cent; the second half decides\n")
    print("| | outcome | difference | 95 % interval | pairs | detectable | verdict |\n|---|---|---|---|---|---|---|")
    for other in OTHERS:
        for rule, words in RULES.items():
            if apart := differences(found[rule], named["DSP-Reg"], named[other]):
                c = contrast(apart.values())
                said = decided(c, apart, found[rule], other) if rule == "late" else ""
                print(f"| {other} | {words} | {cells(c)} | {detectable(c)} | {said} |")


def cells(c: Contrast) -> str:
    """Difference, interval and pairs."""
    return f"{c.difference:+.2f} | {interval(c)} | {c.pairs}"


def interval(c: Contrast) -> str:
    return "" if c.low is None or c.high is None else f"{c.low:+.2f} … {c.high:+.2f}"


def detectable(c: Contrast) -> str:
    """The difference that would have been found in four of five repetitions, at the level 5 %."""
    if c.error is None:
        return ""
    return f"{(quantile(0.975, c.freedom) + quantile(0.80, c.freedom)) * c.error:.2f}"


def decided(c: Contrast, apart: Apart, found: Rows, other: str) -> str:
    """Of some targets alone there is no verdict."""
    domains = next(iter(found.values())).domains
    if len(apart) < len(domains):
        return f"none: {len(apart)} of {len(domains)} targets"
    return verdict(c, "DSP-Reg", other)


def print_targets(name: str, named: dict[str, str], found: Rows) -> None:
    """Where a mean over targets comes from, and what is left of it without each of them."""
    domains = next(iter(found.values())).domains
    print(f"\n{name}: DSP-Reg less …, by target: mean, and how many pairs are above 0\n")
    print(f"| | {' | '.join(domains)} |\n{'|---' * (len(domains) + 1)}|")
    for other in OTHERS:
        apart = differences(found, named["DSP-Reg"], named[other])
        if len(apart) == len(domains):
            each = [f"{100 * fmean(d):+.2f} ({sum(x > 0 for x in d)} of {len(d)})" for d in apart.values()]
            print(f"| {other} | {' | '.join(each)} |")
    print(f"\n{name}: DSP-Reg less …, without one target\n")
    print(f"| | {' | '.join(f'without {d}' for d in domains)} |\n{'|---' * (len(domains) + 1)}|")
    for other in OTHERS[:2]:
        apart = differences(found, named["DSP-Reg"], named[other])
        if len(apart) == len(domains):
            rest = [contrast(d for t, d in apart.items() if t != left) for left in domains]
            print(f"| {other} | {' | '.join(f'{c.difference:+.2f}, {interval(c)}' for c in rest)} |")


def print_pairs(found: Rows, title: str, pairs: dict[str, tuple[str, str]]) -> None:
    """Exploratory: intervals and no verdicts, for among so many some would be without 0 by chance."""
    print(f"\n{title}, points of per cent\n")
    print("| | mean | compared with | its mean | difference | 95 % interval | pairs |\n|---|---|---|---|---|---|---|")
    for name, (label, other) in pairs.items():
        if apart := differences(found, label, other):
            mean, its = (
                fmean(fmean(accuracies(found[each], t, found[label].trials)) for t in apart) for each in (label, other)
            )
            against = "DSP-Reg" if other == FULL_DIGITS else other
            print(f"| {name} | {mean:.1f} | {against} | {its:.1f} | {cells(contrast(apart.values()))} |")


def print_batch() -> None:
    ours = arms(40)["DSP-Reg"]
    found = rows(BATCH, "late", {"ERM", ours})
    print_pairs(found, "digits, 3 × 11 images", {"DSP-Reg": (ours, "ERM")})
