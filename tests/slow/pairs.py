"""All ordered pairs of methods: the laws, or the message.

    python tests/slow/pairs.py
    python tests/slow/pairs.py EMA SWA     # the pairs that one of these is in

A row is what stands below and a column what is around it: row+column. Ends with exit code 1 if a pair breaks a law.
"""

from __future__ import annotations

import sys
import warnings
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from dspreg.errors import Notice
from dspreg.testing import LawBroken
from helpers.stacking import LAYERS, refusal


def looked_at(pair: tuple[str, str]) -> tuple[str, str]:
    """`works`, `refused` or `broken`, with what was said."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", Notice)
    try:
        said = refusal(*pair)
    except LawBroken as error:
        return "broken", str(error)
    return ("refused", said) if said else ("works", "")


def main() -> None:
    only = set(sys.argv[1:] or LAYERS)
    if only - set(LAYERS):
        sys.exit(f"no method: {', '.join(sorted(only - set(LAYERS)))}; there are {', '.join(LAYERS)}")
    pairs = [pair for pair in product(LAYERS, LAYERS) if only.intersection(pair)]
    console = Console(width=None if sys.stdout.isatty() else 200)
    with ProcessPoolExecutor(2, get_context("forkserver")) as pool:
        answers = track(pool.map(looked_at, pairs), "pairs", len(pairs), console=Console(stderr=True))
        found = dict(zip(pairs, answers, strict=True))
    marks = {"works": "·", "refused": "r", "broken": "BROKEN"}
    table = Table("row+column", *LAYERS, title="· keeps the laws, r is refused", padding=(0, 0))
    for below in LAYERS:
        table.add_row(below, *(marks[found[below, above][0]] if (below, above) in found else "" for above in LAYERS))
    console.print(table)
    said: dict[str, list[str]] = {}
    for (below, above), (_, message) in found.items():
        if message:
            said.setdefault(message, []).append(f"{below}+{above}")
    for message, which in said.items():
        console.print(f"{', '.join(which)}: {message}")
    kinds = [kind for kind, _ in found.values()]
    console.print(", ".join(f"{kinds.count(kind)} {kind}" for kind in marks))
    sys.exit(1 if "broken" in kinds else 0)


if __name__ == "__main__":
    main()
