"""How alike are the penalties of c and of other patterns? On the models that `c.yaml` keeps; exploratory.

    python evidence/patterns.py build/c --root build/data --out evidence/pacs/patterns.jsonl

At each kept step c is measured as a refresh would, and the penalty part computed on new training batches by `exact`,
2λH(c⊙g), and by `lookahead`, g(θ + 2λ c⊙g) − g, which the variants were trained with. Beside it the parts with

    again       c of another draw of 512 images per domain: the share of noise
    shuffled    c permuted within each tensor
    mean        its mean everywhere
    reversed    within each tensor the largest value where the smallest was
    head        c on the classifier, 0 elsewhere: what the cosine is of a pattern that has little to do with c

as cosine and ratio of lengths to the first, of one batch on average, and of the sum over all eight.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

import torch
from load_checkpoint import NEW, load_checkpoint, new_batches
from measure_checkpoints import make_parser, measure_checkpoints
from torch import Tensor

from dspreg import Batch, DSPReg, ParamVector, gradient, trainable
from dspreg.penalty import Step
from dspreg.training.experiment import Experiment

BATCHES = 8
Parts = dict[str, Tensor]  # pattern → penalty part


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--steps", nargs="+", type=int, default=[60, 299])
    parser.add_argument("--trials", nargs="+", type=int, default=[0])
    options = parser.parse_args()
    measure_checkpoints(
        options.store,
        options.out,
        lambda run, step: compare_patterns(*load_checkpoint(run, step, options.root, options.weights)),
        steps=options.steps,
        trials=options.trials,
    )
    return 0


def compare_patterns(experiment: Experiment, algorithm: DSPReg) -> dict[str, object]:
    patterns = build_patterns(algorithm)
    engines = {"exact": exact_parts, "lookahead": lookahead_parts}
    by_batch: dict[str, list[Parts]] = {name: [] for name in engines}
    lengths = []
    for step in new_batches(experiment, BATCHES):
        lengths.append(float(gradient(algorithm.loss(algorithm(step)), algorithm.net).norm()))
        for name, parts in engines.items():
            by_batch[name].append(parts(algorithm, step, patterns))
    sums = {
        name: {k: torch.stack([each[k] for each in found]).sum(0) for k in patterns} for name, found in by_batch.items()
    }
    pairs = list(zip(by_batch["lookahead"], by_batch["exact"], strict=True))
    c = patterns["c"].flat().double()
    return {
        "spread_of_c": float(c.std() / c.mean()),
        "engines": {
            "single": mean_of_each([similarity(a["c"], b["c"]) for a, b in pairs]),
            "summed": similarity(sums["lookahead"]["c"], sums["exact"]["c"]),
        },
        **{
            name: {
                "share": sum(float(p["c"].norm()) / n for p, n in zip(found, lengths, strict=True)) / BATCHES,
                "single": {k: mean_of_each([similarity(p[k], p["c"]) for p in found]) for k in patterns if k != "c"},
                "summed": {k: similarity(sums[name][k], sums[name]["c"]) for k in patterns if k != "c"},
            }
            for name, found in by_batch.items()
        },
    }


def build_patterns(algorithm: DSPReg) -> dict[str, ParamVector]:
    c = algorithm.measure_c()
    found = {"c": c}
    algorithm.stack.steps += NEW  # another draw of images
    found["again"] = algorithm.measure_c()
    for name in ("shuffled", "mean", "reversed"):
        algorithm.coefficients = name
        found[name] = algorithm.arrange(c)
    algorithm.coefficients = "dynamic"
    head = set(c.select("classifier.*"))
    found["head"] = ParamVector((name, t if name in head else torch.zeros_like(t)) for name, t in c.items())
    return found


def exact_parts(algorithm: DSPReg, step: list[Batch], patterns: Mapping[str, ParamVector]) -> Parts:
    """2λH(c⊙g) on one batch for every pattern c, all from one graph."""
    params = list(trainable(algorithm.net).values())
    g = gradient(algorithm.loss(algorithm(step)), algorithm.net, create_graph=True)
    plain, found = g.map(Tensor.detach), {}
    for name, c in patterns.items():
        products = torch.autograd.grad(g.dot(c * plain), params, retain_graph=True)
        found[name] = 2 * algorithm.weight * torch.cat([each.reshape(-1).double() for each in products])
    return found


def lookahead_parts(algorithm: DSPReg, step: list[Batch], patterns: Mapping[str, ParamVector]) -> Parts:
    """g(θ + 2λ c⊙g) − g on one batch for every pattern c."""
    found, plain = {}, ParamVector()
    for name, c in patterns.items():
        asked = Step(
            algorithm.base.gradient, lambda b: algorithm.loss(algorithm(b)), step, algorithm.net, c, algorithm.weight
        )
        plain = plain or asked.gradient()[1]
        found[name] = (asked.gradient(plain, 2 * algorithm.weight)[1] - plain).flat().double()
    return found


def similarity(a: Tensor, b: Tensor) -> list[float]:
    """Cosine, and ratio of lengths."""
    return [float(a @ b / (a.norm() * b.norm())), float(a.norm() / b.norm())]


def mean_of_each(values: list[list[float]]) -> list[float]:
    return [sum(each) / len(values) for each in zip(*values, strict=True)]


if __name__ == "__main__":
    sys.exit(main())
