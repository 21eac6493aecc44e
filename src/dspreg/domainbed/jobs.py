"""A run as DomainBed's sweep knows it: its arguments, its seed, and the name of its folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from dspreg.domainbed.seeds import seed_hash
from dspreg.runs.run import Run


def job_arguments(run: Run, domains: Sequence[str], data_dir: str = "") -> dict[str, Any]:
    """What its sweep gives to its trainer.

    Args:
        run: With targets among `domains`.
        domains: Of the data set, in its own order: DomainBed counts them.
        data_dir: Of DomainBed. It is part of the folder's name there: moving the data renames every job.
    """
    options = run.options
    return trainer_arguments(
        run.data_name,
        run.algorithm,
        sorted(domains.index(name) for name in run.targets),
        trial=run.trial,
        draw=run.draw,
        holdout=options.get("holdout", 0.2),
        data_dir=data_dir,
        steps=options.get("steps"),
    )


def trainer_arguments(
    dataset: str,
    algorithm: str,
    test_envs: list[int],
    *,
    trial: int,
    draw: int,
    holdout: float,
    data_dir: str,
    steps: int | None,
) -> dict[str, Any]:
    """The same by DomainBed's own words; `steps` is there only if its sweep was given them."""
    arguments = {
        "dataset": dataset,
        "algorithm": algorithm,
        "test_envs": test_envs,
        "holdout_fraction": holdout,
        "hparams_seed": draw,
        "data_dir": data_dir,
        "task": "domain_generalization",
        "trial_seed": trial,
        "seed": seed_hash(dataset, algorithm, test_envs, draw, trial),
    }
    return arguments | ({} if steps is None else {"steps": steps})


def job_id(arguments: Mapping[str, Any]) -> str:
    """Name of the job's folder in a sweep of DomainBed's."""
    text = json.dumps(dict(arguments), sort_keys=True)
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
