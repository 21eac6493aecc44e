"""Figures of merit of a classifier, by scikit-learn, and which of them may select a model. No torch in here.

Everything is computed from the labels of N images and the natural logarithms of the probabilities of C classes, (N, C).
scikit-learn takes seconds to load and is loaded when the first figure is asked for.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dspreg.errors import ConfigError
from dspreg.kinds import KINDS, kind_of

ACCURACY, WORST = "accuracy", "worst-domain"
Figure = Callable[[np.ndarray, np.ndarray], float | None]  # labels (N,), log p (N, C); None: it is not defined


@dataclass(frozen=True)
class Metric:
    """A figure of merit of one domain.

    Attributes:
        help: What it is, for `--help` and documents.
        of: Of labels (N,) and log-probabilities (N, C); None where it is not defined.
        larger: Whether more is better.
    """

    help: str
    of: Figure
    larger: bool = True


def accuracy(labels: np.ndarray, log_p: np.ndarray) -> float:
    """Share of the images that are recognised."""
    return float(np.mean(log_p.argmax(1) == labels))


def balanced(labels: np.ndarray, log_p: np.ndarray) -> float:
    """Mean of the accuracies of the classes that occur: rare ones count as much as frequent ones."""
    from sklearn.metrics import balanced_accuracy_score

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of predicted classes that do not occur, which is no reason for a word
        return float(balanced_accuracy_score(labels, log_p.argmax(1)))


def macro_f1(labels: np.ndarray, log_p: np.ndarray) -> float:
    """Mean over the classes that occur or are predicted of F1 = 2 TP / (2 TP + FP + FN)."""
    from sklearn.metrics import f1_score

    return float(f1_score(labels, log_p.argmax(1), average="macro", zero_division=0.0))


def auroc(labels: np.ndarray, log_p: np.ndarray) -> float | None:
    """Area under the ROC curve, each class against the rest; the mean over classes that some images have, and some not.

    Of two classes it is the area of either: their probabilities add up to 1.
    """
    from sklearn.metrics import roc_auc_score

    return _mean_over_classes(lambda positive, score: float(roc_auc_score(positive, score)), labels, log_p)


def average_precision(labels: np.ndarray, log_p: np.ndarray) -> float | None:
    """Area under the precision-recall curve, each class against the rest, averaged as for `auroc`."""
    from sklearn.metrics import average_precision_score

    return _mean_over_classes(lambda positive, score: float(average_precision_score(positive, score)), labels, log_p)


def log_loss(labels: np.ndarray, log_p: np.ndarray) -> float:
    """Mean of −log p(true class), in nats: the cross-entropy."""
    return -float(np.mean(np.take_along_axis(log_p, labels[:, None], 1)))


def score_of(log_p: np.ndarray, c: int) -> np.ndarray:
    """By how much class c is more probable than the rest, which orders images as p_c does, (N,).

    log p_c − log(1 − p_c): p_c itself is 1 for all images that a network is very sure of, and orders them no more.
    """
    rest = np.delete(log_p, c, axis=1)
    if not rest.shape[1]:
        return np.zeros(len(log_p))
    top = rest.max(1, keepdims=True)
    return np.asarray(log_p[:, c] - (top[:, 0] + np.log(np.exp(rest - top).sum(1))))


def defined_classes(labels: np.ndarray) -> list[int]:
    """The classes that some images have and some do not: those a curve can be drawn of."""
    found, counts = np.unique(labels, return_counts=True)
    return [int(c) for c, n in zip(found, counts, strict=True) if n < len(labels)]


def _mean_over_classes(figure: Figure, labels: np.ndarray, log_p: np.ndarray) -> float | None:
    found = [figure(labels == c, score_of(log_p, c)) for c in defined_classes(labels)]
    return float(np.mean([each for each in found if each is not None])) if found else None


METRICS: dict[str, Metric] = {
    ACCURACY: Metric("share of the images that are recognised", accuracy),
    "balanced": Metric("mean accuracy of the classes", balanced),
    "macro-f1": Metric("mean F1 of the classes", macro_f1),
    "auroc": Metric("area under the ROC curve, each class against the rest", auroc),
    "average-precision": Metric(
        "area under the precision-recall curve, each class against the rest", average_precision
    ),
    "log-loss": Metric("mean of -log p of the true class", log_loss, larger=False),
}
RECORDED = ("balanced", "macro-f1", "auroc", "log-loss")  # of each source, in the records of a run that needs them
SELECT_BY = (ACCURACY, "balanced", "macro-f1", "auroc", WORST, "log-loss")


def recorded_metrics(labels: np.ndarray, log_p: np.ndarray) -> dict[str, float | None]:
    """What a record holds of one source besides its accuracy."""
    return {name: METRICS[name].of(labels, log_p) for name in RECORDED}


def selection_value(record: Mapping[str, Any], sources: Sequence[str], by: str = ACCURACY) -> float | None:
    """What a step is selected by: of the sources' held-out images alone, and the larger the better.

        mean over the sources of the metric      of `worst-domain` the smallest accuracy, of `log-loss` −1 times it

    This is the one place that says so: training, tables and forecasts ask here.

    Args:
        record: A line of records.jsonl.
        sources: The domains that were trained on.
        by: One of `SELECT_BY`.

    Returns:
        None where the record lacks a figure that is needed; NaN where the metric is defined of no source.
    """
    if by in (ACCURACY, WORST):
        figure = KINDS[kind_of(record)].figure  # the accuracy, where the task is of classes
        found = [_recorded(record, figure, name, "out") for name in sources]
        if None in found or not found:
            return None
        values = [each for each in found if each is not None]
        return mean(values) if by == ACCURACY else min(values, key=lambda v: -math.inf if math.isnan(v) else v)
    if any(by not in (record.get("metrics") or {}).get(name, {}) for name in sources) or not sources:
        return None
    defined = [v for name in sources if (v := _recorded(record, "metrics", name, by)) is not None]
    sign = 1.0 if METRICS[by].larger else -1.0
    return sign * mean(defined) if defined else math.nan


def missing_figures(by: str) -> str:
    """In words, why a step can't be selected by a metric."""
    if by in (ACCURACY, WORST):
        return "no record has the sources' validation and the target's accuracy"
    return f"its records hold no {by} of the sources: train with --select-by {by}, or any but accuracy"


def check_select_by(by: str) -> str:
    """`by`, or a ConfigError if there is no such metric."""
    if by not in SELECT_BY:
        raise ConfigError(f"select_by={by!r}; wanted one of {', '.join(SELECT_BY)}")
    return by


def mean(values: Sequence[float]) -> float:
    """To the last bit as NumPy's, which decides ties; its way of adding differs from eight numbers on."""
    return (sum(values) if len(values) < 8 else float(np.sum(values))) / len(values)


def _recorded(record: Mapping[str, Any], field: str, domain: str, name: str) -> float | None:
    found = (record.get(field) or {}).get(domain)
    value = found.get(name) if found else None
    return None if value is None else float(value)
