"""What is learned of a sample: its class, several labels, or numbers; and the figures that say how well. No torch.

The loss of each kind is `dspreg.batches.sample_losses`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dspreg.errors import ConfigError

Figure = Callable[[np.ndarray, np.ndarray], float]  # of outputs (N, C) and labels (N, C), in float64
LARGEST = float(np.finfo(np.float32).max)


def mean_average_precision(outputs: np.ndarray, labels: np.ndarray) -> float:
    """The mean, over the labels that some sample has, of their average precision.

        AP = Σ_n (R_n − R_{n−1}) P_n

    P_n and R_n are precision and recall where the n highest outputs count as positive. Equal outputs are counted
    together, so that their order does not matter. As scikit-learn's `average_precision_score`.
    """
    columns = [(f, y > 0.5) for f, y in zip(outputs.T, labels.T, strict=True) if (y > 0.5).any()]
    return float(np.mean([_average_precision(f, y) for f, y in columns])) if columns else 0.0


def _average_precision(outputs: np.ndarray, positive: np.ndarray) -> float:
    order = np.argsort(-outputs, kind="stable")
    ends = np.flatnonzero(np.diff(outputs[order], append=np.nan))  # the last of each group of equal outputs
    hits = np.cumsum(positive[order])[ends]
    recall = hits / hits[-1]
    return float(np.sum(np.diff(recall, prepend=0.0) * hits / (ends + 1)))


def label_accuracy(outputs: np.ndarray, labels: np.ndarray) -> float:
    """Share of all labels of all samples that are right, where an output above 0 says that the label is there."""
    return float(np.mean((outputs > 0) == (labels > 0.5)))


def exact_match(outputs: np.ndarray, labels: np.ndarray) -> float:
    """Share of the samples all of whose labels are right."""
    return float(np.mean(((outputs > 0) == (labels > 0.5)).all(1)))


def r2(outputs: np.ndarray, labels: np.ndarray) -> float:
    """The coefficient of determination, 1 − Σ (y − f)² / Σ (y − ȳ)², its mean over the numbers predicted.

    1 is perfect, 0 as good as the mean of these samples' own labels, and below 0 worse.
    """
    unexplained = np.square(labels - outputs).sum(0)
    return float(np.mean(1 - unexplained / np.square(labels - labels.mean(0)).sum(0)))


def mse(outputs: np.ndarray, labels: np.ndarray) -> float:
    """Mean squared error, over samples and numbers."""
    return float(np.mean(np.square(labels - outputs)))


def mae(outputs: np.ndarray, labels: np.ndarray) -> float:
    """Mean absolute error, over samples and numbers."""
    return float(np.mean(np.abs(labels - outputs)))


@dataclass(frozen=True)
class Kind:
    """One kind of task.

    Attributes:
        names: What the names of the outputs are called in text.
        figures: Name in records → figure. The first selects, and is reported: larger is better.
        title: The first figure in words.
        shares: Whether the first figure is from 0 to 1; otherwise it may be as far below 0 as it likes.
    """

    names: str
    figures: Mapping[str, Figure | None]  # None: counted while predictions are made, without keeping them
    title: str
    shares: bool = True

    @property
    def figure(self) -> str:
        """The name of the figure that selects."""
        return next(iter(self.figures))

    def text(self, value: float) -> str:
        """A value of that figure for people."""
        return f"{100 * value:.1f} %" if self.shares else f"{value:.3f}"

    def phrase(self, value: float) -> str:
        """The same, with what it is, where it is no accuracy."""
        return self.text(value) if self.figure == "accuracy" else f"{self.title} {self.text(value)}"


CLASSES, MULTILABEL, REGRESSION = "classes", "multilabel", "regression"
KINDS = {
    CLASSES: Kind("classes", {"accuracy": None}, "accuracy"),
    MULTILABEL: Kind(
        "labels",
        {
            "mean_average_precision": mean_average_precision,
            "label_accuracy": label_accuracy,
            "exact_match": exact_match,
        },
        "mean average precision",
    ),
    REGRESSION: Kind("numbers", {"r2": r2, "mse": mse, "mae": mae}, "R²", shares=False),
}


def require_kind(kind: str) -> Kind:
    """The kind of this name, or a ConfigError."""
    if kind not in KINDS:
        raise ConfigError(f"kind={kind!r}; wanted one of {', '.join(map(repr, KINDS))}")
    return KINDS[kind]


def kind_of(record: Mapping[str, Any]) -> str:
    """Which kind of task a record of an evaluation is of."""
    return next((name for name, kind in KINDS.items() if kind.figure in record), CLASSES)


def figures_of(record: Mapping[str, Any]) -> Mapping[str, Mapping[str, float]]:
    """Domain → split → the figure that selects, of a record of an evaluation: accuracy, if it is of classes."""
    found: Mapping[str, Mapping[str, float]] = record[KINDS[kind_of(record)].figure]
    return found


def compute_figures(kind: str, outputs: Sequence[np.ndarray], labels: Sequence[np.ndarray]) -> dict[str, float]:
    """All figures of a kind that keeps its predictions.

    An output that is not finite counts as the lowest number of single precision, so that every figure is a number.

    Args:
        kind: Not `"classes"`.
        outputs: Batches (B, C).
        labels: Batches (B, C).
    """
    f, y = (np.concatenate([np.asarray(each, np.float64) for each in batches]) for batches in (outputs, labels))
    f = np.nan_to_num(f, nan=-LARGEST, posinf=LARGEST, neginf=-LARGEST)
    return {name: figure(f, y) for name, figure in KINDS[kind].figures.items() if figure is not None}


def useless_labels(kind: str, labels: np.ndarray) -> str:
    """Why no figure can be made of these labels (N, C), in words; empty if it can."""
    if kind == MULTILABEL and not (labels > 0.5).any():
        return "no sample has any of the labels, so that there is no average precision"
    if kind == REGRESSION and (constant := np.flatnonzero((labels == labels[:1]).all(0))).size:
        return f"all samples have the same number {int(constant[0])}, so that there is no R²"
    return ""
