"""An evaluation as files: JSON for programs, CSV for spreadsheets, pictures for people."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dspreg import __version__
from dspreg.inference.evaluate_run import DomainScores, RunEvaluation, mean_interval
from dspreg.inference.intervals import Interval, interval_of_share, resampled_figures
from dspreg.inference.operating_points import OperatingPoint
from dspreg.io.atomic_files import format_json, make_folder, write, write_output
from dspreg.io.text import escape_csv
from dspreg.metrics import ACCURACY, accuracy

FORMAT = "dspreg.scores/1"
Number = Callable[[DomainScores], float | None]
NUMBERS: dict[str, Number] = {
    "accuracy": lambda each: each.scores.accuracy,
    "class_mean": lambda each: each.scores.class_mean,
    "macro_f1": lambda each: each.figures.get("macro-f1"),
    "auroc": lambda each: each.figures.get("auroc"),
    "average_precision": lambda each: each.figures.get("average-precision"),
    "calibration_error": lambda each: each.scores.calibration_error,
    "log_loss": lambda each: each.scores.log_loss,
}
RESAMPLED = {  # number → the metric whose bootstrap is its own
    "accuracy": ACCURACY, "class_mean": "balanced", "macro_f1": "macro-f1", "auroc": "auroc",
    "average_precision": "average-precision", "log_loss": "log-loss",
}  # fmt: skip
VALUES = 20  # of a metadata column; one of more, such as a date, is no column of kinds
WIDEST = 50  # classes whose probabilities are in predictions.csv


def mean(domains: Sequence[DomainScores], number: str) -> float | None:
    """Of one of `NUMBERS` over domains, each counting as much, however many images it has; None where one has none."""
    found = [NUMBERS[number](each) for each in domains]
    known = [each for each in found if each is not None]
    return sum(known) / len(known) if known and len(known) == len(found) else None


def as_json(found: RunEvaluation) -> dict[str, Any]:
    """All numbers, by name."""
    every = tuple(each for each in found.domains if each.part != "test")
    groups = {"mean": every, "mean_unseen": found.unseen, "mean_sources": found.sources}
    return {
        "format": FORMAT,
        "dspreg": __version__,
        "run": found.run,
        "model": {"which": found.which, "step": found.step, "temperature": found.temperature},
        "dataset": found.dataset,
        "adapt": found.adapt,
        "adapted_on_the_images_evaluated": found.adapt != "none",
        "domains": {each.domain: _domain(each, found.classes) for each in every},
        "test": {each.domain: _domain(each, found.classes) for each in found.domains if each.part == "test"},
        **{name: _mean(domains) if domains else None for name, domains in groups.items()},
        "worst": {"domain": found.worst.domain, "accuracy": found.worst.scores.accuracy},
        "operating_points": [_point(each) for each in found.points],
        "by_metadata": [
            {"domain": domain, "column": column, "value": value, "images": images, "accuracy": share, "interval": ends}
            for domain, column, value, images, share, ends in by_metadata(found.domains)
        ],
    }


def _mean(domains: Sequence[DomainScores]) -> dict[str, Any]:
    return {
        **{number: mean(domains, number) for number in NUMBERS},
        "domains": len(domains),
        "images": sum(each.scores.images for each in domains),
        "intervals": {number: mean_interval(domains, metric) for number, metric in RESAMPLED.items()},
    }


def _domain(each: DomainScores, classes: Sequence[str]) -> dict[str, Any]:
    by_class = {classes[c]: {"images": n, "accuracy": share} for c, (n, share) in each.scores.by_class.items()}
    grouped = each.answers is not None and each.answers.groups is not None
    return {
        "part": each.part,
        "role": each.role,
        "fingerprint": each.fingerprint,
        "images": each.scores.images,
        "groups": each.answers.independent if grouped and each.answers else None,
        **{name: number(each) for name, number in NUMBERS.items()},
        "intervals": {number: each.interval(metric) for number, metric in RESAMPLED.items()},
        "classes": by_class,
        "trained_on": each.trained_on,
        "without_trained_on": {"images": each.without.scores.images} | {n: f(each.without) for n, f in NUMBERS.items()}
        if each.without is not None
        else None,
    }


def _point(each: OperatingPoint) -> dict[str, Any]:
    return {
        "demand": str(each.demand),
        "positive": each.positive,
        "domain": each.domain,
        "threshold": each.threshold if np.isfinite(each.threshold) else None,
        "chosen_on": list(each.chosen_on),
        "chosen_on_the_images_evaluated": each.own,
        **{name: getattr(each, name) for name in ("sensitivity", "specificity", "precision", "tp", "fp", "tn", "fn")},
    }


def by_metadata(domains: Sequence[DomainScores]) -> Iterator[tuple[str, str, str, int, float, Interval | None]]:
    """Domain, column, value, images, accuracy and its 95 % interval, of every column of few values."""
    for each in domains:
        for column, given in (each.answers.metadata if each.answers else {}).items():
            values = np.array([str(value) for value in given])
            kinds = np.unique(values)
            if not 1 < len(kinds) <= VALUES:
                continue
            for value in kinds:
                assert each.answers is not None
                part = each.answers.select(values == value)
                share = accuracy(part.labels, part.log_p)
                key = f"{each.fingerprint}/{each.part}/{column}/{value}"
                resampled = resampled_figures(part.labels, part.log_p, part.groups, key=key, areas=False)
                known = resampled.get(ACCURACY)
                ends = None if known is None else interval_of_share(share, known, part.independent)
                yield each.domain, column, str(value), len(part), share, ends


def save(found: RunEvaluation, out: Path, *, follow: bool = True) -> list[str]:
    """Write scores.json, per_class.csv, confusion.csv, predictions.csv and the pictures.

    Args:
        found: What to write.
        out: The folder.
        follow: Write to what links in the folder point to; not where the folder may come from a stranger.

    Returns:
        Names of the files.
    """
    from dspreg.inference.confusion import png
    from dspreg.inference.curve_pictures import reliability_picture, roc_picture

    whole = all(each.answers is not None for each in found.domains)
    further = any(each.answers is not None and each.answers.metadata for each in found.domains)
    makers: dict[str, Callable[[], bytes]] = {
        **({"predictions.csv": lambda: _csv(_predictions(found))} if whole else {}),
        "per_class.csv": lambda: _csv(_per_class(found)),
        "confusion.csv": lambda: _csv(_confusion(found)),
        **({"by_metadata.csv": lambda: _csv(_by_metadata(found))} if further else {}),
        "confusion.png": lambda: png(found),
        **({"roc.png": lambda: roc_picture(found)} if whole else {}),
        **({"reliability.png": lambda: reliability_picture(found)} if whole else {}),
        "scores.json": lambda: format_json(as_json(found)),  # last: where it is, the others are
    }
    put = write_output if follow else write
    make_folder(out)
    for name, make in makers.items():
        put(out / name, make())
    return list(makers)


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


def _predictions(found: RunEvaluation) -> Iterator[Sequence[Any]]:
    """One line for each image."""
    metadata = list(dict.fromkeys(name for each in found.domains if each.answers for name in each.answers.metadata))
    grouped = any(each.answers is not None and each.answers.groups is not None for each in found.domains)
    classes = found.classes if len(found.classes) <= WIDEST else ()
    yield (
        "domain", "part", "image", "true", "predicted", "right", "probability", "probability_of_true",
        *(["group"] if grouped else []), *map(escape_csv, metadata), *(escape_csv(f"p_{name}") for name in classes),
    )  # fmt: skip
    for each in found.domains:
        assert each.answers is not None
        p, known = np.exp(each.answers.log_p), each.answers
        for i, (true, best) in enumerate(zip(known.labels, p.argmax(1), strict=True)):
            yield (
                escape_csv(each.domain), each.part, escape_csv(known.names[i]), escape_csv(found.classes[true]),
                escape_csv(found.classes[best]), int(true == best), f"{p[i, best]:.6g}", f"{p[i, true]:.6g}",
                *([escape_csv(str(known.groups[i] if known.groups else ""))] if grouped else []),
                *(escape_csv(str(known.metadata[name][i])) if name in known.metadata else "" for name in metadata),
                *(f"{value:.6g}" for value in p[i][: len(classes)]),
            )  # fmt: skip


def _by_metadata(found: RunEvaluation) -> Iterator[Sequence[Any]]:
    yield "domain", "column", "value", "images", "accuracy", "low", "high"
    for domain, column, value, images, share, ends in by_metadata(found.domains):
        low, high = (f"{end:.6g}" for end in ends) if ends else ("", "")
        yield escape_csv(domain), escape_csv(column), escape_csv(value), images, f"{share:.6g}", low, high


def _csv(rows: Iterator[Sequence[Any]]) -> bytes:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue().encode()
