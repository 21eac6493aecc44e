"""What c of a trained network depends on that the paper leaves open: which images, how they look, ε.

    python evidence/choices.py build/c --root build/data --out evidence/pacs/choices.jsonl

At the last step of every run of trial 0 that `c.yaml` kept, on 512 images per source domain: c as a refresh measures
it, on the same images augmented, on another draw (which has up to two fifths of them, the domains being small), and
with an ε. Mean c over the parameters that some domain is sensitive to, and Spearman's rank correlation with the first.
Exploratory.
"""

from __future__ import annotations

import sys

from load_checkpoint import NEW, load_checkpoint
from measure_checkpoints import make_parser, measure_checkpoints

import dspreg
from dspreg import DSPReg, Profile
from dspreg.data.sampling import draw_measure_batches as positions
from dspreg.sensitivity.summary import agreement
from dspreg.training.experiment import Experiment

EPSILONS = (1e-8, 1e-6, 1e-4)


def main() -> int:
    options = make_parser(__doc__).parse_args()
    measure_checkpoints(
        options.store,
        options.out,
        lambda run, step: compare_choices(*load_checkpoint(run, step, options.root, options.weights)),
        steps=[299],
        trials=[0],
    )
    return 0


def compare_choices(experiment: Experiment, algorithm: DSPReg) -> dict[str, object]:
    usual, augmented = algorithm.profile(), measure_augmented(experiment, algorithm)
    algorithm.stack.steps += NEW
    found = {"again": algorithm.profile(), "augmented": augmented}
    lines = {
        "usual": summarize(usual, None),
        **{name: summarize(each, usual.compare(each).agreement) for name, each in found.items()},
    }
    alive = usual.alive().flat()
    c, mean, variance = (each.flat()[alive].double() for each in (usual.c, usual.mean, usual.variance))
    for eps in EPSILONS:
        other = variance.sqrt() / (mean + eps)
        lines[f"{eps:g}"] = {"c": float(other.mean()), "agreement": agreement(other, c)}
    return {"choices": lines, "median_s": float(mean.median())}


def measure_augmented(experiment: Experiment, algorithm: DSPReg) -> Profile:
    """On the images that a refresh takes, as training shows them."""
    shown, key, domains = experiment.transform(augment=True), (*experiment.key, algorithm.t), {}
    for part in (experiment.part(name, "in", shown) for name in experiment.sources):
        chosen = positions(len(part), algorithm.measure_batches, *key, part.domain)
        made = [part.batch(each, *key, n, "augmented") for n, each in enumerate(chosen)]
        domains[part.domain] = [(shown.normalise(x), y) for x, y in made]
    return dspreg.measure(algorithm.net, domains)


def summarize(profile: Profile, agreement_with_usual: float | None) -> dict[str, float | None]:
    assert profile.null is not None
    c, null = (float(profile.over_alive(each).double().mean()) for each in (profile.c, profile.null))
    return {"c": c, "null": null, "agreement": agreement_with_usual}


if __name__ == "__main__":
    sys.exit(main())
