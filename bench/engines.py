"""How far each engine's penalty part is from 2λH(c⊙g), with an explicit Hessian, float64.

    python bench/engines.py

Always the penalty part, returned gradient less g: an engine that forgets the penalty has relative error 1, shown last.
"""

import math
import sys
from itertools import pairwise
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from dspreg.penalty import parse_engine
from helpers.penalties import Problem, mutant, quadratic, relative, settle

WEIGHTS = (1e-1, 1e-2, 1e-3, 1e-4)


def part(problem, engine, settled: bool) -> torch.Tensor:
    if settled:
        return settle(problem, engine) - problem.flat.gradient(problem.flat.theta)
    return problem.part(engine)


def main() -> None:
    torch.set_num_threads(1)
    table = Table("engine", *(f"λ = {w:g}" for w in WEIGHTS), "slope in λ", "on a quadratic")
    names = ("exact", "lookahead", "lookahead(radius=0.2*weight)", "central", "momentum, settled", "the plain gradient")
    for name in names:
        engine = mutant if name == "the plain gradient" else parse_engine(name.split(",")[0])
        settled = "settled" in name
        errors = []
        for weight in WEIGHTS:
            problem = Problem(weight)
            errors.append(relative(part(problem, engine, settled) - problem.target, problem.target))
        slopes = ", ".join(f"{math.log10(a / b):.2f}" for a, b in pairwise(errors)) if errors[0] > 1e-6 else "–"
        q = quadratic(1e-3)
        on_quadratic = relative(part(q, engine, settled) - q.target, q.target)
        table.add_row(name, *(f"{e:.1e}" for e in errors), slopes, f"{on_quadratic:.1e}")
    Console(width=130).print(table)

    q = quadratic(0.02)
    g = q.flat.gradient(q.flat.theta)
    closed = torch.linalg.solve(torch.eye(len(g), dtype=g.dtype) - 2 * q.weight * q.a * q.c, g)
    error = relative(settle(q, parse_engine("momentum")) - closed, closed)
    print(f"momentum on a quadratic against its closed form (I − 2λHC)⁻¹g: {error:.1e}")
    for every, inner in ((5, "lookahead"), (3, "exact")):
        p = Problem()
        expected, total = p.part(parse_engine(inner)) * every, 0
        for _ in range(every):
            total = total + p.part(parse_engine(f"lazy({every}, {inner})"))
            p.memory.commit()
        error = relative(total - expected, expected)
        print(f"lazy({every}, {inner}): {every} frozen steps against {every} × {inner}: {error:.1e}")


if __name__ == "__main__":
    main()
