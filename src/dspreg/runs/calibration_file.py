"""calibration.json of a run: the temperature of its models. Read without torch.

It may be made when a run is long finished, so result.json does not name it: it carries a SHA-256 of its own, and names
that of the model each temperature is of.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dspreg.errors import IntegrityError
from dspreg.io.atomic_files import canonical_json, holds_file, read_json, sha256
from dspreg.runs.folder import CALIBRATION, RunFolder

FORMAT = "dspreg.calibration/1"
LEAST, MOST = 0.02, 50.0  # temperatures


def temperature_of(run: str | Path, model: str) -> float:
    """What the logits of a finished run's model are divided by; 1 where it was not calibrated.

    Args:
        run: The folder.
        model: Name of the model's file.

    Raises:
        IntegrityError: calibration.json is damaged, or of another model.
    """
    folder = RunFolder(run)
    found = read_calibration(folder).get(model)
    if found is None:
        return 1.0
    result = folder.result(weights=False) or {}
    if found["sha256"] != result.get("files", {}).get(model):
        raise IntegrityError(
            f"{folder / CALIBRATION}: the temperature is of another {model} than there is; calibrate again, or "
            "remove it"
        )
    return float(found["temperature"])


def read_calibration(folder: RunFolder) -> dict[str, Any]:
    """By the name of a model's file: its SHA-256, temperature and what that was found on."""
    path = folder / CALIBRATION
    if not holds_file(path):
        return {}
    value = read_json(path)
    stamp = value.pop("sha256", None) if isinstance(value, dict) else None
    if stamp is None or stamp != sha256(canonical_json(value).encode()) or value.get("format") != FORMAT:
        raise IntegrityError(f"{path} is damaged: its SHA-256 is not the one in it. Calibrate again, or remove it")
    models = value.get("models")
    if not isinstance(models, dict):
        raise IntegrityError(f"{path}: models is {reprlib.repr(models)}; wanted an object")
    for name, each in models.items():
        known = each.get("temperature") if isinstance(each, dict) else None
        if not isinstance(known, float) or not LEAST <= known <= MOST or not isinstance(each.get("sha256"), str):
            raise IntegrityError(
                f"{path}: {name!r} has the temperature {reprlib.repr(known)}; wanted {LEAST} to {MOST}"
            )
    return dict(models)


def write_calibration(folder: RunFolder, models: Mapping[str, Any]) -> None:
    """Replace it as a whole."""
    value = {"format": FORMAT, "models": dict(models)}
    folder.write_json(CALIBRATION, {**value, "sha256": sha256(canonical_json(value).encode())})
