"""An assessment as files: JSON for programs, CSV for spreadsheets, a picture for people."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dspreg import __version__
from dspreg.inference.evaluate_run import DomainScores, RunEvaluation
from dspreg.inference.metrics import Scores
from dspreg.io.atomic_files import format_json, make_folder, write, write_output
from dspreg.io.text import escape_csv

FORMAT = "dspreg.scores/1"
NUMBERS: dict[str, Callable[[Scores], float]] = {
    "accuracy": lambda s: s.accuracy,
    "class_mean": lambda s: s.class_mean,
    "calibration_error": lambda s: s.calibration_error,
    "log_loss": lambda s: s.log_loss,
}


def mean(domains: Sequence[DomainScores], number: str) -> float:
    """Of one of `NUMBERS` over domains, each counting as much, however many images it has."""
    return sum(NUMBERS[number](each.scores) for each in domains) / len(domains)


def as_json(found: RunEvaluation) -> dict[str, Any]:
    """All numbers, by name."""
    return {
        "format": FORMAT,
        "dspreg": __version__,
        "run": found.run,
        "model": {"which": found.which, "step": found.step},
        "dataset": found.dataset,
        "adapt": found.adapt,
        "adapted_on_the_images_evaluated": found.adapt != "none",
        "domains": {each.domain: _domain(each, found.classes) for each in found.domains},
        "mean": {number: mean(found.domains, number) for number in NUMBERS},
        "mean_unseen": {number: mean(found.unseen, number) for number in NUMBERS} if found.unseen else None,
        "worst": {"domain": found.worst.domain, "accuracy": found.worst.scores.accuracy},
    }


def _domain(each: DomainScores, classes: Sequence[str]) -> dict[str, Any]:
    by_class = {classes[c]: {"images": n, "accuracy": share} for c, (n, share) in each.scores.by_class.items()}
    return {
        "part": each.part,
        "role": each.role,
        "fingerprint": each.fingerprint,
        "images": each.scores.images,
        **{name: number(each.scores) for name, number in NUMBERS.items()},
        "classes": by_class,
        "trained_on": each.trained_on,
        "without_trained_on": {"images": each.without.images} | {n: f(each.without) for n, f in NUMBERS.items()}
        if each.without is not None
        else None,
    }


def save(found: RunEvaluation, out: Path, *, follow: bool = True) -> None:
    """Write scores.json, per_class.csv, confusion.csv and confusion.png.

    Args:
        found: What to write.
        out: The folder.
        follow: Write to what links in the folder point to; not where the folder may come from a stranger.
    """
    from dspreg.inference.confusion import png

    put = write_output if follow else write
    make_folder(out)
    put(out / "per_class.csv", _csv(_per_class(found)))
    put(out / "confusion.csv", _csv(_confusion(found)))
    put(out / "confusion.png", png(found))
    put(out / "scores.json", format_json(as_json(found)))  # last: where it is, the others are


def _per_class(found: RunEvaluation) -> Iterator[Sequence[Any]]:
    yield "domain", "part", "class", "images", "accuracy"
    for each in found.domains:
        for c, (images, share) in each.scores.by_class.items():
            yield escape_csv(each.domain), each.part, escape_csv(found.classes[c]), images, f"{share:.6g}"


def _confusion(found: RunEvaluation) -> Iterator[Sequence[Any]]:
    yield "domain", "part", "true", "predicted", "images"
    for each in found.domains:
        for row, column in np.argwhere(each.scores.confusion):
            true, predicted = escape_csv(found.classes[row]), escape_csv(found.classes[column])
            yield escape_csv(each.domain), each.part, true, predicted, int(each.scores.confusion[row, column])


def _csv(rows: Iterator[Sequence[Any]]) -> bytes:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue().encode()
