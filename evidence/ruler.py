"""How far ERM's accuracy moves from trial to trial, and how small a difference between two arms can be seen.

    python evidence/ruler.py evidence/pacs/store

sd is over trials, per target. A contrast is the mean over targets of the mean of n paired differences. If pairing
helped nothing a difference would have the spread √2·sd, and one of (t₀.₉₇₅ + t₀.₈₀)·√2·sd/√(n·targets) is found in four
of five repetitions at the level 5 %; sd is pooled over the targets, t has Σ(n − 1) degrees of freedom.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from statistics import fmean, stdev

from rich.console import Console
from rich.table import Table
from rows import accuracies

from dspreg.protocol.selection import RULES, TITLES
from dspreg.report.reading import read
from dspreg.report.student import quantile
from dspreg.report.tables import selected


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--algorithm", default="ERM")
    parser.add_argument("--selection", choices=RULES, default="training")
    options = parser.parse_args()
    traces, damaged = read(options.store)
    for each in damaged:
        print(f"left out: {each}", file=sys.stderr)
    found = selected(traces, options.selection)
    (arm,) = [each for each in found if each.label == options.algorithm]
    title = f"{arm.label} on {arm.dataset}; {TITLES[arm.rule]}"
    table = Table("target", "mean, %", "sd, points", "trials", title=title)
    spreads = []
    for target in arm.domains:
        values = accuracies(arm, target)
        spreads.append((stdev(values) ** 2, len(values) - 1))
        table.add_row(target, f"{fmean(values):.1f}", f"{stdev(values):.2f}", str(len(values)))
    freedom = sum(f for _, f in spreads)
    pooled = math.sqrt(sum(s * f for s, f in spreads) / freedom)
    error = math.sqrt(2 * pooled**2 * sum(1 / (f + 1) for _, f in spreads)) / len(spreads)
    seen = (quantile(0.975, freedom) + quantile(0.80, freedom)) * error
    console = Console(width=100)
    console.print(table)
    console.print(f"pooled sd {pooled:.2f} points; detectable difference {seen:.2f} points, if pairing helps nothing")
    return 0


if __name__ == "__main__":
    sys.exit(main())
