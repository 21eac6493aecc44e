"""Sentences made of numbers, by the rules of `report.contrasts`. No number, no claim; few pairs, no verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dspreg.reporting.contrasts import FEWEST, Contrast
from dspreg.reporting.table import format_with_sign


@dataclass(frozen=True)
class Comparison:
    """One variant less another.

    Attributes:
        first, second: Their labels.
        found: The paired difference; None where no trial has both.
        paper: What the paper's difference is, where it prints both; None otherwise.
        unit: What the difference is in.
        decimals: Printed.
        larger: What the one with the larger number is called.
        comparable: Whether ours was run at the paper's scale.
    """

    first: str
    second: str
    found: Contrast | None
    paper: float | None = None
    unit: str = " points"
    decimals: int = 1
    larger: str = "better"
    comparable: bool = True

    @property
    def verdict(self) -> str:
        if self.found is None:
            return "none: no pairs"
        return self.found.verdict(self.first, self.second).replace("is better", f"is {self.larger}")

    def number(self, value: float) -> str:
        return format_with_sign(value, self.decimals)


def pair_sentence(each: Comparison) -> str:
    """One difference, with its interval and verdict, and the paper's beside it."""
    what, found = f"{each.first} − {each.second}", each.found
    if found is None:
        return f"{what}: no trial has both under the same conditions"
    pairs = f"{found.pairs} pair{'s' * (found.pairs != 1)}"
    size = f"{each.number(found.difference)}{each.unit}"
    if found.low is None or found.high is None or found.pairs < FEWEST:
        why = f"fewer than {FEWEST} pairs" if found.pairs < FEWEST else "no target has two pairs"
        text = f"{what} is {size} in {pairs}, no verdict ({why})"
    else:
        between = f"95 % {each.number(found.low)} to {each.number(found.high)}, {pairs}"
        text = f"{what} is {size} ({between}): {each.verdict}"
    if each.paper is None:
        return text
    theirs = each.number(each.paper)
    if not each.comparable:
        return f"{text} (the paper, at its own scale: {theirs})"
    if found.low is None or found.high is None or found.pairs < FEWEST:
        return f"{text}, the paper has {theirs}"
    side = "inside" if found.low <= each.paper <= found.high else "outside"
    return f"{text}, and the paper's {theirs} lies {side} the interval"


def pairs_sentence(several: Sequence[Comparison]) -> str:
    return "; ".join(map(pair_sentence, several)) + "."


def order_sentence(axis: str, points: Sequence[tuple[str, float, float]], best: float) -> str:
    """Where means are highest, beside what the paper takes.

    Args:
        axis: What x is.
        points: Label, x and mean of every variant that has one.
        best: The paper's x.
    """
    if not points:
        return f"No mean is there yet along {axis}; the paper takes {best:g}."
    highest = f"{max(mean for *_, mean in points):.1f}"
    top = {label: x for label, x, mean in points if f"{mean:.1f}" == highest}  # as printed
    where = "there too" if best in top.values() else "elsewhere"
    return (
        f"The highest mean, {highest} %, is at {' and '.join(top)}; the paper takes {best:g}, so {where}; "
        f"an order of means is no verdict."
    )
