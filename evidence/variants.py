"""What was trained, by short names, and paired accuracies of two of them.

A variant is one way to train on a data set; the frozen protocol (pacs/protocol.md) calls it an arm.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from dspreg import RunResult, SelectedRow, describe, parse, select_rows

Rows = dict[str, SelectedRow]  # by label


def dsp_reg_label(**options: object) -> str:
    """As reports name it."""
    every = {"engine": "lookahead", "weight": 0.001, **options}
    text = ", ".join(f"{name}={value!r}" for name, value in every.items() if value is not None)
    return describe(parse(f"DSPReg({text})"))


def variant_labels(interval: int) -> dict[str, str]:
    """Name → label. The primary contrast is that of the second and the third."""
    return {
        "ERM": "ERM",
        "DSP-Reg": dsp_reg_label(refresh_steps=interval),
        "shuffled c": dsp_reg_label(refresh_steps=interval, coefficients="shuffled"),
        "c = 1": dsp_reg_label(coefficients="ones"),
        "mean c": dsp_reg_label(refresh_steps=interval, coefficients="mean"),
        "static c": dsp_reg_label(coefficients="static"),
    }


OTHERS = ("shuffled c", "ERM", "c = 1", "mean c", "static c")  # that DSP-Reg is compared with
SETS = {"PACS": ("pacs/store", variant_labels(60)), "digits": ("digits/store", variant_labels(40))}
BATCH = "digits/batch"  # the store of batch.yaml

METHODS = ("CORAL", "SAM", "Fishr", "Mixup", "SAGM")


def methods_alone() -> dict[str, tuple[str, str]]:
    """Name → label of a method, and what it is compared with."""
    return {name: (name, "ERM") for name in METHODS}


def methods_with_dsp_reg(interval: int) -> dict[str, tuple[str, str]]:
    """Name → label of a method with DSP-Reg around it, and of the method alone."""
    return {f"{name} + DSP-Reg": (f"{name}+{dsp_reg_label(refresh_steps=interval)}", name) for name in METHODS}


FULL, FULL_DIGITS = dsp_reg_label(refresh_steps=60), dsp_reg_label(refresh_steps=40)
SINGLE = {  # of PACS, one trial each: name → label, and label of what it is compared with
    "`exact`, λ = 0.0014": (dsp_reg_label(refresh_steps=60, engine=None, weight=0.0014), FULL),
    "`momentum`, λ = 0.0035": (dsp_reg_label(refresh_steps=60, engine="momentum", weight=0.0035), FULL),
    "`lazy(30)`, λ = 0.00026": (dsp_reg_label(refresh_steps=60, engine="lazy(30)", weight=0.00026), FULL),
    **{f"λ = {w:g}": (dsp_reg_label(refresh_steps=60, weight=w), FULL) for w in (0.0001, 0.01, 0.1)},
    **{f"c every {n} steps": (dsp_reg_label(refresh_steps=n), FULL) for n in (30, 90, 120)},
    **methods_alone(),
    **methods_with_dsp_reg(60),
}
CHOICES = {  # of the digits: what the paper leaves open, each alone
    **{f"c every {n} steps": dsp_reg_label(refresh_steps=n) for n in (20, 60, 80)},
    "c of the output": dsp_reg_label(refresh_steps=40, of="output"),
    "c by `fisher`": dsp_reg_label(refresh_steps=40, of="fisher"),
    "`minibatch`": dsp_reg_label(refresh_steps=40, estimator="minibatch"),
    "c on 32 images per domain": dsp_reg_label(refresh_steps=40, measure_batches=1),
    "ε = 1e-4": dsp_reg_label(refresh_steps=40, eps=0.0001),
    "`exact`": dsp_reg_label(refresh_steps=40, engine=None),
    "`momentum`": dsp_reg_label(refresh_steps=40, engine="momentum"),
    "`lazy(30)`": dsp_reg_label(refresh_steps=40, engine="lazy(30)"),
    **{f"λ = {w:g}": dsp_reg_label(refresh_steps=40, weight=w) for w in (0.0001, 0.01, 0.1)},
}


def find_rows(runs: Sequence[RunResult], rule: str, known: set[str]) -> Rows:
    """The rows that have a number; reports what none of the tables shows."""
    found = {row.label: row for row in select_rows(runs, rule) if row.finished}
    for label in sorted(set(found) - known):
        print(f"in no table: {label}", file=sys.stderr)
    return found


def accuracies(row: SelectedRow, target: str) -> list[float]:
    """In per cent, one per trial."""
    return [100 * each for trial in row.trials if (each := row.accuracy(target, trial)) is not None]


def pair_accuracies(found: Rows, one: str, other: str) -> dict[str, list[tuple[float, float]]]:
    """Target → both accuracies, between 0 and 1, of every trial that has both; only targets that have pairs."""
    return found[one].pair_with(found[other]) if one in found and other in found else {}


def differences(found: Rows, one: str, other: str) -> dict[str, list[float]]:
    """Target → differences by trial; an accuracy is between 0 and 1."""
    return {target: [a - b for a, b in pairs] for target, pairs in pair_accuracies(found, one, other).items()}
