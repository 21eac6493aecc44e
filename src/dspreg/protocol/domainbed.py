"""A run as DomainBed's sweep knows it: its arguments, its seed, and the name of its folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from dspreg.priors import seed_hash
from dspreg.protocol.run import Run


def job_arguments(run: Run, domains: Sequence[str], data_dir: str = "") -> dict[str, Any]:
    """What its sweep gives to its trainer.

    Args:
        run: With targets among `domains`.
        domains: Of the data set, in its own order: DomainBed counts them.
        data_dir: Of DomainBed. It is part of the folder's name there: moving the data renames every job.
    """
    test_envs = sorted(domains.index(name) for name in run.targets)
    dataset = run.data_name
    arguments = {
        "dataset": dataset,
        "algorithm": run.algorithm,
        "test_envs": test_envs,
        "holdout_fraction": run.options.get("holdout", 0.2),
        "hparams_seed": run.draw,
        "data_dir": data_dir,
        "task": "domain_generalization",
        "trial_seed": run.trial,
        "seed": seed_hash(dataset, run.algorithm, test_envs, run.draw, run.trial),
    }
    return arguments | ({"steps": run.options["steps"]} if "steps" in run.options else {})


def job_id(arguments: Mapping[str, Any]) -> str:
    """Name of the job's folder in a sweep of DomainBed's."""
    text = json.dumps(dict(arguments), sort_keys=True)
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
