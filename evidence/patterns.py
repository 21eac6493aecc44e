"""How alike are the penalties of c, of c shuffled and of one number? On the models that `c.yaml` keeps.

    python evidence/patterns.py build/c --root build/data --out evidence/pacs/patterns.jsonl

At each kept step c is measured as a refresh would, and the penalty part 2λH(c⊙g) computed by double differentiation on
training batches. Beside it the part with c of another draw of 512 images, with c shuffled within each tensor, and with
its mean everywhere: cosine and ratio of lengths to the first, of one batch on average, and of the sum over all eight.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path

import torch
from kept import measured
from torch import Tensor

import dspreg
from dspreg.algorithms import DSPReg
from dspreg.batches import Batch
from dspreg.penalty import Step, engine_named
from dspreg.protocol.settings import Execution
from dspreg.store import RunFolder
from dspreg.training.experiment import Experiment, prepared
from dspreg.training.model import load_tensors
from dspreg.training.saved import contents, model_file
from dspreg.vectors import ParamVector

BATCHES = 8
SPEC = "DSPReg(weight=0.001, coefficients='{}')"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--root", required=True)
    parser.add_argument("--weights", default="build/lite0.safetensors")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", nargs="+", type=int, default=[60, 180, 299])
    parser.add_argument("--trials", nargs="+", type=int, default=[0])
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", dspreg.Notice)
    measured(
        options.store,
        options.out,
        lambda folder, step: compared(made(folder, options.root, options.weights), folder, step),
        steps=options.steps,
        trials=options.trials,
    )
    return 0


def made(folder: RunFolder, root: str, weights: str) -> Experiment:
    s = dict(folder.description()["settings"])
    given = s | {"targets": tuple(s["targets"]), "weights": weights, "algorithm": SPEC.format("dynamic")}
    how = Execution(root=root, layout="channels-last", cache="disk", check_images="never", threads=1, workers=0)
    return prepared(given, how)


def compared(experiment: Experiment, folder: RunFolder, step: int) -> dict[str, object]:
    algorithm = experiment.algorithm()
    assert isinstance(algorithm, DSPReg)
    load_tensors(algorithm, contents(model_file(folder.path, str(step)))[1], str(folder.path))
    algorithm.stack.steps = step + 1
    c = algorithm.measured_c()
    patterns = {"c": c}
    algorithm.stack.steps = step + 1 + 10**6  # another draw of images
    patterns["again"] = algorithm.measured_c()
    for name in ("shuffled", "mean"):
        algorithm.coefficients = name
        patterns[name] = algorithm.arranged(c)
    algorithm.coefficients = "dynamic"
    shown = experiment.shown(experiment.settings.augment).normalised
    steps = experiment.steps()
    single: dict[str, list[list[float]]] = {name: [] for name in patterns if name != "c"}
    sums: dict[str, Tensor] = {}
    shares = []
    for i in range(10**6, 10**6 + BATCHES):  # steps never trained on
        batches = [Batch(shown(x), y, d) for d, (x, y) in enumerate(steps[i])]
        found = {name: part(algorithm, batches, pattern) for name, pattern in patterns.items()}
        g = algorithm.base.gradient(lambda b: algorithm.loss(algorithm(b)), batches)[1]
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


def part(algorithm: DSPReg, batches: list[Batch], c: ParamVector) -> Tensor:
    step = Step(algorithm.base.gradient, lambda b: algorithm.loss(algorithm(b)), batches, algorithm.net, c, 0.001)
    found = engine_named("exact")(step)
    plain = found.plain if found.plain is not None else step.gradient()[1]
    return (found.gradient - plain).flat().double()


def likeness(a: Tensor, b: Tensor) -> list[float]:
    """Cosine, and ratio of lengths."""
    return [float(a @ b / (a.norm() * b.norm())), float(a.norm() / b.norm())]


if __name__ == "__main__":
    sys.exit(main())
