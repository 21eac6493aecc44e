"""Bootstrap intervals of figures of merit: how much they would move with other images of the same domain.

Images are drawn anew with replacement, or, where images belong together (a patient, a video, a burst), whole groups of
them: images of one group are no independent evidence. An interval of one domain says nothing about another domain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dspreg.io.atomic_files import sha256
from dspreg.metrics import defined_classes, score_of

RESAMPLES = 1_000
AT_ONCE = 4_000_000  # weights in memory
MOST = 100_000_000  # weights that areas under curves go through; they are left out where there would be more
Interval = tuple[float, float]


def resampled_figures(
    labels: np.ndarray, log_p: np.ndarray, groups: Sequence[object] | None = None, *, key: str = "", areas: bool = True
) -> dict[str, np.ndarray]:
    """Of every metric its values on 1,000 resamples; NaN where it is not defined of one.

    Args:
        labels: (N,).
        log_p: (N, C).
        groups: Of every image, the group it belongs to; None: each is one of its own.
        key: The resamples are a function of it, and of nothing else.
        areas: Also of areas under curves, which take longest.

    Returns:
        Nothing for metrics that would take too long, nor where there are fewer than two groups.
    """
    number = _numbered(groups, len(labels))
    if number.max() < 1:
        return {}
    areas = areas and RESAMPLES * len(labels) * len(defined_classes(labels)) <= MOST
    parts = [weighted_figures(w, labels, log_p, areas=areas) for w in _weights(number, key)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def interval_of(values: np.ndarray, level: float = 0.95) -> Interval | None:
    """The middle of resampled values; None where fewer than half of them are defined."""
    known = values[np.isfinite(values)]
    if len(known) < len(values) / 2:
        return None
    low, high = np.quantile(known, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def interval_of_share(share: float, values: np.ndarray, independent: int, level: float = 0.95) -> Interval | None:
    """The same of a share, which no resample moves away from 0 or 1: there it is Clopper and Pearson's.

    Args:
        share: The figure itself.
        values: Of the resamples.
        independent: Images, or groups of them.
        level: Of the interval.
    """
    far = 1 - ((1 - level) / 2) ** (1 / independent)  # with 30 right of 30 one can't exclude that one in nine is wrong
    if share == 1:
        return 1 - far, 1.0
    return (0.0, far) if share == 0 else interval_of(values, level)


def weighted_figures(
    weights: np.ndarray, labels: np.ndarray, log_p: np.ndarray, *, areas: bool = True
) -> dict[str, np.ndarray]:
    """Every metric where image i counts as `weights[b, i]` images, for every b at once.

    Args:
        weights: (b, N), whole numbers.
        labels: (N,).
        log_p: (N, C).
        areas: Also those under curves, which take a pass for every class.
    """
    w = weights.astype(np.float64)
    total, classes = w.sum(1), log_p.shape[1]
    predicted, loss = log_p.argmax(1), -np.take_along_axis(log_p, labels[:, None], 1)[:, 0]
    right = (predicted == labels).astype(np.float64)
    true, called = _sums(w, labels, classes), _sums(w, predicted, classes)
    hits = _sums(w * right, labels, classes)
    with np.errstate(invalid="ignore", divide="ignore"):
        recall = np.where(true > 0, hits / true, np.nan)
        f1 = np.where(true + called > 0, 2 * hits / (true + called), np.nan)
        found = {
            "accuracy": w @ right / total,
            "balanced": _nanmean(recall),
            "macro-f1": _nanmean(f1),
            "log-loss": w @ loss / total,
        }
        if areas:
            curves = [_areas(w, labels == c, score_of(log_p, c)) for c in defined_classes(labels)]
            for place, name in enumerate(("auroc", "average-precision")):
                each = [curve[place] for curve in curves]
                found[name] = _nanmean(np.stack(each, 1)) if each else np.full(len(w), np.nan)
    return found


def _areas(w: np.ndarray, positive: np.ndarray, score: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Under the ROC and the precision-recall curve, for every row of weights; NaN without positives or negatives."""
    order = np.argsort(-score, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(score[order]) != 0])  # equal scores are one threshold
    ordered, kind = w[:, order], positive[order]
    tp = np.add.reduceat(ordered * kind, starts, axis=1)
    fp = np.add.reduceat(ordered * ~kind, starts, axis=1)
    above = np.cumsum(tp, 1)
    false = np.cumsum(fp, 1)
    positives, negatives = above[:, -1:], false[:, -1:]
    roc = (fp * (above - tp / 2)).sum(1) / (positives * negatives)[:, 0]
    precision = np.where(above + false > 0, above / (above + false), 0.0)
    average = (tp * precision).sum(1) / positives[:, 0]
    return roc, np.where(negatives[:, 0] > 0, average, np.nan)


def _sums(w: np.ndarray, of: np.ndarray, classes: int) -> np.ndarray:
    """Sum of the weights of each class, (b, C)."""
    found = np.zeros((len(w), classes))
    order = np.argsort(of, kind="stable")
    there, starts = np.unique(of[order], return_index=True)
    found[:, there] = np.add.reduceat(w[:, order], starts, axis=1)
    return found


def _nanmean(values: np.ndarray) -> np.ndarray:
    """Mean over the second axis of what is defined, NaN where nothing is."""
    known = np.isfinite(values)
    return np.asarray(np.where(known, values, 0.0).sum(1) / known.sum(1))


def _numbered(groups: Sequence[object] | None, images: int) -> np.ndarray:
    if groups is None:
        return np.arange(images)
    numbers: dict[object, int] = {}
    return np.array([numbers.setdefault(each, len(numbers)) for each in groups])


def _weights(number: np.ndarray, key: str) -> Iterator[np.ndarray]:
    """How often each image is in each resample, (b, N), in pieces that fit into memory."""
    random = np.random.default_rng(int(sha256(f"bootstrap/{key}".encode())[:16], 16))
    groups, left = int(number.max()) + 1, RESAMPLES
    while left:
        now = min(left, max(1, AT_ONCE // len(number)))
        yield random.multinomial(groups, np.full(groups, 1 / groups), size=now)[:, number]
        left -= now
