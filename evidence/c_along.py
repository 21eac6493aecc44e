"""c, its null (c under random domain labels) and c without the share of noise, at every evaluated step.

    dspreg sweep evidence/pacs/c.yaml --store build/c
    python evidence/c_along.py build/c --root build/data --out evidence/pacs/c.jsonl

One line for each run and step, over the parameters that some domain is sensitive to; lines that are there are not
measured again. On 512 images of each source domain, those that a refresh before the next step would take. Of trial 0
the first and the last step are measured on all training images as well: c without noise is not unbiased, and what is
left of the noise is larger where the null is.
"""

from __future__ import annotations

import sys
from typing import Any

from load_checkpoint import load_checkpoint
from measure_checkpoints import make_parser, measure_checkpoints

from dspreg import DSPReg, Profile

ENDS = (0, 299)
ALL = 10**6  # batches: more than any domain has


def main() -> int:
    options = make_parser(__doc__).parse_args()
    measure_checkpoints(
        options.store,
        options.out,
        lambda run, step: measure_c(
            load_checkpoint(run, step, options.root, options.weights)[1],
            whole=step in ENDS and run.trial == 0,
        ),
    )
    return 0


def measure_c(algorithm: DSPReg, *, whole: bool) -> dict[str, Any]:
    found = summarize(algorithm.profile())
    if whole:
        algorithm.measure_batches = ALL
        found["whole"] = summarize(algorithm.profile())
    return found


def summarize(profile: Profile) -> dict[str, Any]:
    """Means over parameters, and how many of them are above their own null."""
    assert profile.null is not None
    assert profile.c_debiased is not None
    c, null, debiased = (profile.over_alive(v).double() for v in (profile.c, profile.null, profile.c_debiased))
    return {
        "c": float(c.mean()),
        "null": float(null.mean()),
        "c_debiased": float(debiased.mean()),
        "c_squared": float(c.square().mean()),
        "null_squared": float(null.square().mean()),
        "above_null": float((c > null).double().mean()),
        "reliability": profile.reliability,
        "alive": c.numel() / profile.c.numel(),
    }


if __name__ == "__main__":
    sys.exit(main())
