"""Does c of the sources say which parameters change on the unseen domain? On kept models, at four steps.

    dspreg sweep evidence/pacs/c.yaml --store build/c
    python evidence/premise.py build/c --root build/data --out evidence/pacs/premise.jsonl
    dspreg sweep evidence/digits/premise.yaml --store build/digits-premise
    python evidence/premise.py build/digits-premise --steps 0 40 120 199 --out evidence/digits/premise.jsonl

One line for each run and step, as `dspreg measure --held-out` has it; lines that are there are not measured again. c is
of 255 images that the run was trained on, of each source; held out are 255 of each source's other split, which training
did not see (198 on the digits, which have no more), and twice 255 of the target. Of every rank correlation a line has
two numbers: over all parameters, and within tensor and tenth by s̄.
"""

from __future__ import annotations

import sys
from typing import Any

from measure_checkpoints import make_parser, measure_checkpoints

from dspreg import MeasureConfig, RunResult, compare_held_out_run

STEPS = (0, 60, 180, 299)
IMAGES = 256
DIGITS = 4  # after the point


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--steps", type=int, nargs="+", default=STEPS, help=f"which are measured (default: {STEPS})")
    options = parser.parse_args()
    config = MeasureConfig(root=options.root, images=IMAGES, workers=0)
    measure_checkpoints(
        options.store, options.out, lambda run, step: measure_premise(run, step, config), steps=set(options.steps)
    )
    return 0


def measure_premise(run: RunResult, step: int, config: MeasureConfig) -> dict[str, Any]:
    found = compare_held_out_run(run.folder, config, run.targets[0], which=str(step))
    return {
        "images": found.images,
        "compared": found.compared / found.parameters,
        "correlations": {p: {o: numbers(each) for o, each in row.items()} for p, row in found.correlations.items()},
        "third": {source: {o: numbers(each) for o, each in row.items()} for source, row in found.third.items()},
        "medians": {k: {o: round(x, DIGITS) for o, x in row.items()} for k, row in found.medians.items()},
        "parts": {o: [[round(x, DIGITS) for x in part] for part in parts] for o, parts in found.parts.items()},
    }


def numbers(found: Any) -> list[float | None]:
    """A correlation without its interval, which is of one network; those of the tables are over targets."""
    return [None if each.value is None else round(each.value, DIGITS) for each in (found.all, found.within)]


if __name__ == "__main__":
    sys.exit(main())
