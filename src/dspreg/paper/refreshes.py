"""How often c was measured in a run, and how often its spec wants it to be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dspreg.algorithms import DSPReg, parse
from dspreg.data.splits import steps_per_epoch


def penalty_of(spec: str) -> DSPReg | None:
    return next((each for each in parse(spec).layers() if isinstance(each, DSPReg)), None)


def planned(described: Mapping[str, Any]) -> int | None:
    """By T or S and the length of the run, from its `run.json`; None where there is no DSP-Reg.

    Refreshes come before steps (mT − 1)·E, or mS, m = 1, 2, …, as far as they are below the number of steps.
    """
    settings, sizes = described["settings"], described["data"]["sizes"]
    layer, last = penalty_of(settings["algorithm"]), settings["steps"] - 1
    if layer is None:
        return None
    if not layer.uses_c:
        return 0
    if layer.coefficients == "static":
        return 1
    if layer.refresh_steps is not None:
        return int(last // layer.refresh_steps)
    sources = [each["in"] for name, each in sizes.items() if name not in settings["targets"]]
    epoch = steps_per_epoch(sources, settings["batch_size"] * len(sources))
    return int((last // epoch + 1) // layer.refresh_epochs)
