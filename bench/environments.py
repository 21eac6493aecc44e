"""How far the penalty part is from float64 in one process, in every environment a training loop may be in.

    python bench/environments.py

The part is what `Penalty` added to `.grad` less the float64 gradient. Where the penalty is lost, the error is 1.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from helpers import distributed
from helpers.environments import ALL, COMPILER, ENVIRONMENTS, Problem, likeness


def cell(part: torch.Tensor, target: torch.Tensor) -> str:
    error, cosine = likeness(part, target)
    return f"{error:.0e}, {cosine:.6f}"


def main() -> int:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    table = Table("environment", *ALL, title="penalty part: relative error, cosine")
    for name, (how, engines, _) in ENVIRONMENTS.items():
        if "inductor" in name and COMPILER is None:
            table.add_row(name, "no C++ compiler")
            continue
        table.add_row(name, *(cell(*how(engine)) if engine in engines else "refused" for engine in ALL))
    with tempfile.TemporaryDirectory() as folder:
        (found, _), _ = distributed.together(Path(folder))
    for kind in ("whole", "parts"):
        cells = [cell(found[f"part/False/{e}/{kind}"], Problem("smooth").target(e)) for e in ALL]
        table.add_row(f"DDP, 2 processes, {'one batch each' if kind == 'whole' else 'in parts'}", *cells)
    Console(width=190).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
