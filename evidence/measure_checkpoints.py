"""Measures the models that runs with `keep: all` left, at every evaluated step: one line each, and none twice."""

from __future__ import annotations

import argparse
import json
import os
import warnings
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

import torch
from rich.progress import track

import dspreg
from dspreg import RunResult


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def make_parser(doc: str | None) -> argparse.ArgumentParser:
    """Of a script that measures checkpoints."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path, help="the --store of the sweep that kept them")
    parser.add_argument("--root", help="folder that holds the data sets, if they are not embedded")
    parser.add_argument("--weights", default="build/lite0.safetensors", help="as the runs had them")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines; those that are there stay")
    return parser


def measure_checkpoints(
    store: Path,
    out: Path,
    measure: Callable[[RunResult, int], dict[str, Any]],
    *,
    steps: Container[int] | None = None,
    trials: Container[int] | None = None,
    algorithms: Container[str] | None = None,
) -> None:
    """Add to `out` what `measure` finds at each evaluated step of each finished run, or at these of these."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", dspreg.Notice)
    lines = read_lines(out)
    there = {(line["run"], line["step"]) for line in lines}
    wanted = []
    for run in dspreg.load_runs(store):
        if not run.finished:  # the sweep may still be at work
            continue
        about = {"run": run.id, **{k: run.settings.get(k) for k in ("algorithm", "targets", "trial")}}
        for step in (record["step"] for record in run.records):
            of = {"algorithm": algorithms, "trial": trials}
            chosen = all(wants is None or about[what] in wants for what, wants in of.items())
            if chosen and (steps is None or step in steps) and (about["run"], step) not in there:
                wanted.append((run, about | {"step": step}))
    for run, about in track(wanted, "measuring"):
        lines.append(about | measure(run, about["step"]))
        whole = out.with_name(f".{out.name}.part")  # replaced at once: a torn line could not be read
        whole.write_text("".join(json.dumps(line) + "\n" for line in lines))
        os.replace(whole, out)
