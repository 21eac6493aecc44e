"""How alike are the penalties of c, of c shuffled and of one number? On the models that `c.yaml` keeps.

    python evidence/patterns.py build/c --root build/data --out evidence/pacs/patterns.jsonl

At each kept step c is measured as a refresh would, and the penalty part 2λH(c⊙g) computed by double differentiation on
training batches. Beside it the part with c of another draw of 512 images, with c shuffled within each tensor, and with
its mean everywhere: cosine and ratio of lengths to the first, of one batch on average, and of the sum over all eight.
"""

from __future__ import annotations

import sys

from kept import measured, parser
from restored import UNSEEN, batches, restored
from torch import Tensor

from dspreg.algorithms import DSPReg
from dspreg.batches import Batch
from dspreg.penalty import Step, engine_named
from dspreg.training.experiment import Experiment
from dspreg.vectors import ParamVector

BATCHES = 8


def main() -> int:
    options_of = parser(__doc__)
    options_of.add_argument("--steps", nargs="+", type=int, default=[60, 180, 299])
    options_of.add_argument("--trials", nargs="+", type=int, default=[0])
    options = options_of.parse_args()
    measured(
        options.store,
        options.out,
        lambda folder, step: compared(*restored(folder, step, options.root, options.weights)),
        steps=options.steps,
        trials=options.trials,
    )
    return 0


def compared(experiment: Experiment, algorithm: DSPReg) -> dict[str, object]:
    c = algorithm.measured_c()
    patterns = {"c": c}
    algorithm.stack.steps += UNSEEN  # another draw of images
    patterns["again"] = algorithm.measured_c()
    for name in ("shuffled", "mean"):
        algorithm.coefficients = name
        patterns[name] = algorithm.arranged(c)
    algorithm.coefficients = "dynamic"
    single: dict[str, list[list[float]]] = {name: [] for name in patterns if name != "c"}
    sums: dict[str, Tensor] = {}
    shares = []
    for step in batches(experiment, BATCHES):
        found = {name: part(algorithm, step, pattern) for name, pattern in patterns.items()}
        g = algorithm.base.gradient(lambda b: algorithm.loss(algorithm(b)), step)[1]
        shares.append(float(found["c"].norm() / g.norm()))
        for name, values in single.items():
            values.append(likeness(found[name], found["c"]))
        sums = {name: sums.get(name, 0) + each for name, each in found.items()}
    flat = c.flat().double()
    return {
        "share": sum(shares) / BATCHES,
        "spread_of_c": float(flat.std() / flat.mean()),
        "single": {name: [sum(v) / BATCHES for v in zip(*values, strict=True)] for name, values in single.items()},
        "summed": {name: likeness(sums[name], sums["c"]) for name in single},
    }


def part(algorithm: DSPReg, step: list[Batch], c: ParamVector) -> Tensor:
    asked = Step(algorithm.base.gradient, lambda b: algorithm.loss(algorithm(b)), step, algorithm.net, c, 0.001)
    found = engine_named("exact")(asked)
    plain = found.plain if found.plain is not None else asked.gradient()[1]
    return (found.gradient - plain).flat().double()


def likeness(a: Tensor, b: Tensor) -> list[float]:
    """Cosine, and ratio of lengths."""
    return [float(a @ b / (a.norm() * b.norm())), float(a.norm() / b.norm())]


if __name__ == "__main__":
    sys.exit(main())
