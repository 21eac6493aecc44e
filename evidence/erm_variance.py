"""How much ERM's accuracy varies between seeds, and how small a difference between two variants can be detected.

    python evidence/erm_variance.py evidence/pacs/store.tar.xz

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
from variants import accuracies

from dspreg import Contrast, SelectedRow, load_runs, select_rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path, help="a store, or an archive of one")
    parser.add_argument("--algorithm", default="ERM")
    parser.add_argument("--selection", default="training", help="as in `dspreg report`")
    options = parser.parse_args()
    rows = select_rows(load_runs(options.store), options.selection)
    (row,) = [each for each in rows if each.label == options.algorithm]
    print_variance(row)
    return 0


def print_variance(row: SelectedRow) -> None:
    title = f"{row.label} on {row.dataset}, selection {row.rule}"
    table = Table("target", "mean, %", "sd, points", "trials", title=title)
    spreads = []
    for target in row.domains:
        values = accuracies(row, target)
        spreads.append((stdev(values) ** 2, len(values) - 1))
        table.add_row(target, f"{fmean(values):.1f}", f"{stdev(values):.2f}", str(len(values)))
    freedom = sum(f for _, f in spreads)
    pooled = math.sqrt(sum(s * f for s, f in spreads) / freedom)
    error = math.sqrt(2 * pooled**2 * sum(1 / (f + 1) for _, f in spreads)) / len(spreads)
    seen = Contrast(0.0, error, None, None, freedom, freedom + len(spreads)).detectable
    console = Console(width=100)
    console.print(table)
    console.print(f"pooled sd {pooled:.2f} points; detectable difference {seen:.2f} points, if pairing helps nothing")


if __name__ == "__main__":
    sys.exit(main())
