"""How far the estimators are from one sample at a time, on every kind of network.

    python bench/exactness.py

The largest |Δ| over the largest s of its tensor, the worst tensor of the network, float64. The reference shares no code
with the package: `backward` into `.grad`, one sample and one output at a time (tests/reference/sensitivity.py).
"""

import sys
import warnings
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import dspreg
from helpers import problems
from reference.sensitivity import largest_difference, mean_squares, squared_means


def worst(name: str, reference, **options) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dspreg.Notice)  # the LSTM goes by the loop, and says so
        profile = dspreg.measure(problems.model(name), problems.domains(name), null=False, **options)
    items = problems.domains(name)
    return f"{max(largest_difference(profile.s[d], reference(problems.model(name), items[d])) for d in items):.1e}"


def main() -> None:
    torch.set_num_threads(1)
    table = Table("network", "parameters", "persample", "persample, of=output", "minibatch")
    for name in problems.MODELS:
        count = sum(p.numel() for p in problems.model(name).parameters() if p.requires_grad)
        outputs = worst(name, lambda m, i: mean_squares(m, i, "output"), of="output") if count < 2e7 else "–"
        rest = worst(name, mean_squares), outputs, worst(name, squared_means, estimator="minibatch")
        table.add_row(name, f"{count:,}", *rest)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
