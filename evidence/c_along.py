"""c, its null and c without the share of noise, of the model of every evaluated step.

    dspreg sweep evidence/pacs/c.yaml --store build/c
    python evidence/c_along.py build/c --root build/data --out evidence/pacs/c.jsonl

One line for each run and step, over the parameters that some domain is sensitive to; lines that are there are not
measured again. On 512 images of each source domain, those that a refresh at that step would take.
"""

from __future__ import annotations

import sys
from typing import Any

from kept import measured, parser

from dspreg.sensitivity import Profile
from dspreg.training.profiling import Plan, profile_run


def main() -> int:
    options = parser(__doc__).parse_args()
    plan = Plan(root=options.root, workers=0)
    measured(
        options.store,
        options.out,
        lambda folder, step: summary(profile_run(folder.path, plan, which=str(step))),
    )
    return 0


def summary(profile: Profile) -> dict[str, Any]:
    """Means over parameters, and how many of them are above their own null."""
    assert profile.null is not None
    assert profile.c_debiased is not None
    c, null, debiased = map(profile.over_alive, (profile.c, profile.null, profile.c_debiased))
    return {
        "c": float(c.mean()),
        "null": float(null.mean()),
        "c_debiased": float(debiased.mean()),
        "above_null": float((c > null).double().mean()),
        "reliability": profile.reliability,
        "alive": c.numel() / profile.c.numel(),
    }


if __name__ == "__main__":
    sys.exit(main())
