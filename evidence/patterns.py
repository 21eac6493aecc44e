"""How alike are the penalties of c, of c shuffled and of one number? On the models that `c.yaml` keeps.

    python evidence/patterns.py build/c --root build/data --out evidence/pacs/patterns.jsonl

At each kept step c is measured as a refresh would, and the penalty part 2λH(c⊙g) computed by double differentiation on
training batches. Beside it the part with c of another draw of 512 images, with c shuffled within each tensor, and with
its mean everywhere: cosine and ratio of lengths to the first, of one batch on average, and of the sum over all eight.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

import torch
from kept import measured, parser
from restored import UNSEEN, batches, restored
from torch import Tensor

from dspreg.algorithms import DSPReg
from dspreg.batches import Batch
from dspreg.training.experiment import Experiment
from dspreg.vectors import ParamVector, gradient, trainable

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
        found, length = parts(algorithm, step, patterns)
        shares.append(float(found["c"].norm() / length))
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


def parts(
    algorithm: DSPReg, step: list[Batch], patterns: Mapping[str, ParamVector]
) -> tuple[dict[str, Tensor], Tensor]:
    """2λH(c⊙g) on one batch for every pattern c, all from one graph, and ‖g‖."""
    params = list(trainable(algorithm.net).values())
    g = gradient(algorithm.loss(algorithm(step)), algorithm.net, create_graph=True)
    plain, found = g.map(Tensor.detach), {}
    for name, c in patterns.items():
        products = torch.autograd.grad(g.dot(c * plain), params, retain_graph=True)
        found[name] = 2 * algorithm.weight * torch.cat([each.reshape(-1).double() for each in products])
    return found, plain.norm()


def likeness(a: Tensor, b: Tensor) -> list[float]:
    """Cosine, and ratio of lengths."""
    return [float(a @ b / (a.norm() * b.norm())), float(a.norm() / b.norm())]


if __name__ == "__main__":
    sys.exit(main())
