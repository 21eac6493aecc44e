"""Where to put the threshold of one class, and what comes of it on every domain.

The threshold is chosen on held-out images of the sources, as one would have to before the model goes to a new site, and
then judged on each domain. Where no held-out source is among the domains it is chosen on each domain itself, and said
to be: what it promises there is too good.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dspreg.errors import ConfigError
from dspreg.io.text import did_you_mean, join_few, shorten
from dspreg.metrics import score_of

if TYPE_CHECKING:
    from dspreg.inference.evaluate_run import DomainScores

MEASURES = {
    "sensitivity": "share of the positive images that are found (recall)",
    "specificity": "share of the negative images that are not called positive",
    "precision": "share of what is called positive that is",
}


@dataclass(frozen=True)
class Demand:
    """What `--at` asks for: `sensitivity=0.95`."""

    measure: str
    value: float

    @classmethod
    def parse(cls, text: str) -> Demand:
        """From text.

        Raises:
            ConfigError: It is none of the measures with a share.
        """
        measure, equals, number = text.partition("=")
        measure = {"recall": "sensitivity", "tpr": "sensitivity", "tnr": "specificity"}.get(measure, measure)
        if measure not in MEASURES or not equals:
            near = did_you_mean(measure, list(MEASURES))
            raise ConfigError(f"--at {shorten(text)};{near} wanted {', '.join(MEASURES)}=SHARE, as in sensitivity=0.95")
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if not 0 < value <= 1:
            raise ConfigError(f"--at {shorten(text)}; wanted a share above 0 and at most 1, as in {measure}=0.95")
        return cls(measure, value)

    def __str__(self) -> str:
        return f"{self.measure}={self.value:g}"


@dataclass(frozen=True)
class OperatingPoint:
    """One threshold on one domain.

    Attributes:
        demand: What it was chosen for.
        positive: The class.
        domain: On which it is judged.
        threshold: Of the probability of the class; an image is called positive from there on. Above 1: none is.
        chosen_on: Names of the domains it was chosen on.
        own: Whether it was chosen on the images it is judged by.
        tp, fp, tn, fn: Images.
    """

    demand: Demand
    positive: str
    domain: str
    threshold: float
    chosen_on: tuple[str, ...]
    own: bool
    tp: int
    fp: int
    tn: int
    fn: int

    @property
    def sensitivity(self) -> float | None:
        return self.tp / (self.tp + self.fn) if self.tp + self.fn else None

    @property
    def specificity(self) -> float | None:
        return self.tn / (self.tn + self.fp) if self.tn + self.fp else None

    @property
    def precision(self) -> float | None:
        return self.tp / (self.tp + self.fp) if self.tp + self.fp else None


def require_positive(classes: Sequence[str], positive: str | None) -> int:
    """The column of the class whose threshold is asked for.

    Raises:
        ConfigError: It is not a class of the model, or there are more than two and none is named.
    """
    if positive is None:
        if len(classes) == 2:
            return 1
        raise ConfigError(
            f"--at puts a threshold on one class, and there are {len(classes)}: name it with --positive CLASS, of "
            f"{join_few([*map(repr, classes)], 10)}"
        )
    if positive not in classes:
        near = did_you_mean(positive, list(classes))
        raise ConfigError(f"--positive {positive!r} is no class of the model.{near} It has {join_few([*classes], 10)}")
    return list(classes).index(positive)


def operating_points(
    domains: Sequence[DomainScores], classes: Sequence[str], demands: Sequence[Demand], positive: str | None = None
) -> list[OperatingPoint]:
    """Every demand on every domain.

    Args:
        domains: With their answers.
        classes: The model's.
        demands: What is asked for.
        positive: The class; of two the second, unless it is named.
    """
    if not demands:
        return []
    c = require_positive(classes, positive)
    sources = [each for each in domains if each.part == "out"]
    found = []
    for demand in demands:
        for each in domains:
            by = sources or [each]
            answers = [one.answers for one in by if one.answers is not None]
            threshold = threshold_for(
                demand,
                np.concatenate([one.labels == c for one in answers]),
                np.concatenate([score_of(one.log_p, c) for one in answers]),
            )
            found.append(_judge(demand, each, c, classes[c], threshold, by))
    return found


def threshold_for(demand: Demand, positive: np.ndarray, score: np.ndarray) -> float:
    """The score from which on an image is called positive, so that a demand is just met; infinity if none meets it.

    Of the thresholds that meet a sensitivity it is the largest, of those that meet a specificity or a precision the
    one that finds most.
    """
    candidates = np.unique(score)[::-1]
    tp = np.array([np.count_nonzero(positive & (score >= t)) for t in candidates])
    called = np.array([np.count_nonzero(score >= t) for t in candidates])
    positives, negatives = int(positive.sum()), int((~positive).sum())
    if demand.measure == "sensitivity":
        fits = tp >= demand.value * positives if positives else np.zeros(len(tp), bool)
        return float(candidates[np.argmax(fits)]) if fits.any() else -math.inf
    if demand.measure == "specificity":
        fits = negatives - (called - tp) >= demand.value * negatives
    else:
        fits = tp >= demand.value * called
    at = np.flatnonzero(fits)
    return float(candidates[at[-1]]) if len(at) else math.inf


def _judge(
    demand: Demand, each: DomainScores, c: int, name: str, threshold: float, by: Sequence[DomainScores]
) -> OperatingPoint:
    assert each.answers is not None
    positive = each.answers.labels == c
    called = score_of(each.answers.log_p, c) >= threshold
    tp, fp = int((positive & called).sum()), int((~positive & called).sum())
    fn, tn = int((positive & ~called).sum()), int((~positive & ~called).sum())
    shown = 1 / (1 + math.exp(-min(max(threshold, -700.0), 700.0))) if threshold < math.inf else math.inf
    chosen_on = tuple(one.domain for one in by)
    return OperatingPoint(demand, name, each.domain, shown, chosen_on, each.domain in chosen_on, tp, fp, tn, fn)
