"""Something measured of every model that runs with `keep: all` left: one line each, and none twice."""

from __future__ import annotations

import json
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

from rich.progress import track
from rows import finished

from dspreg.store import RunFolder


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def measured(
    store: Path,
    out: Path,
    measure: Callable[[RunFolder, int], dict[str, Any]],
    *,
    steps: Container[int] | None = None,
    trials: Container[int] | None = None,
) -> None:
    """Add to `out` what `measure` finds at each evaluated step of each finished run, or at these of these."""
    there = {(line["run"], line["step"]) for line in read_lines(out)}
    wanted = []
    for folder in finished(store):
        described = folder.description()
        about = {"run": described["id"], **{k: described["settings"][k] for k in ("algorithm", "targets", "trial")}}
        for step in (record["step"] for record in folder.records):
            chosen = (steps is None or step in steps) and (trials is None or about["trial"] in trials)
            if chosen and (about["run"], step) not in there:
                wanted.append((folder, about | {"step": step}))
    for folder, about in track(wanted, "measuring"):
        line = json.dumps(about | measure(folder, about["step"]))
        with out.open("a") as file:
            file.write(line + "\n")
