"""Figures of merit against loops over images and pairs of images, and which step they select."""

import math
from itertools import product

import numpy as np
import pytest

from dspreg.errors import ConfigError
from dspreg.metrics import (
    METRICS,
    RECORDED,
    SELECT_BY,
    average_precision,
    check_select_by,
    recorded_metrics,
    score_of,
    selection_value,
)
from dspreg.protocol.selection import last_step, second_half_mean, training_domains
from dspreg.reporting.tables import select_rows
from helpers.runs import DOMAINS, record, trace


def answers(n, classes, seed=0, rows=None):
    """Labels and log-probabilities; of few different rows, so that there are ties."""
    random = np.random.default_rng(seed)
    logits = random.normal(size=(rows or n, classes))
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    return random.integers(0, classes, n), log_p[random.integers(0, len(log_p), n)] if rows else log_p


def pairs_area(labels, log_p):
    """Of each class, the share of (positive, negative) pairs in the right order, ties by half; the mean of them."""
    areas = []
    for c in range(log_p.shape[1]):
        p = np.exp(log_p[:, c])
        pairs = [(p[i], p[j]) for i, j in product(range(len(labels)), repeat=2) if labels[i] == c != labels[j]]
        if pairs:
            areas.append(np.mean([1.0 if a > b + 1e-12 else 0.5 if abs(a - b) <= 1e-12 else 0.0 for a, b in pairs]))
    return np.mean(areas)


def f1_by_hand(labels, log_p):
    predicted, found = log_p.argmax(1), []
    for c in sorted({*labels, *predicted}):
        tp = sum(a == c == b for a, b in zip(labels, predicted, strict=True))
        fp = sum(b == c != a for a, b in zip(labels, predicted, strict=True))
        fn = sum(a == c != b for a, b in zip(labels, predicted, strict=True))
        found.append(2 * tp / (2 * tp + fp + fn))
    return np.mean(found)


@pytest.mark.parametrize(("n", "classes", "rows"), [(30, 2, None), (40, 5, None), (40, 3, 5)])
def test_figures_are_those_of_loops(n, classes, rows):
    labels, log_p = answers(n, classes, seed=n, rows=rows)
    predicted = log_p.argmax(1)
    recall = [np.mean(predicted[labels == c] == c) for c in sorted(set(labels))]
    assert METRICS["accuracy"].of(labels, log_p) == pytest.approx(np.mean(predicted == labels), rel=1e-12)
    assert METRICS["balanced"].of(labels, log_p) == pytest.approx(np.mean(recall), rel=1e-12)
    assert METRICS["macro-f1"].of(labels, log_p) == pytest.approx(f1_by_hand(labels, log_p), rel=1e-12)
    assert METRICS["auroc"].of(labels, log_p) == pytest.approx(pairs_area(labels, log_p), rel=1e-12)
    loss = -np.mean([log_p[i, y] for i, y in enumerate(labels)])
    assert METRICS["log-loss"].of(labels, log_p) == pytest.approx(loss, rel=1e-12)


def test_average_precision_by_hand():
    """Positives at ranks 1 and 3 of four: (1/1 + 2/3)/2; of the other class at ranks 2 and 4 from the other end."""
    p = np.array([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.4, 0.6]])
    labels = np.array([0, 1, 0, 1])
    first, second = (1 + 2 / 3) / 2, (1 / 1 + 2 / 3) / 2
    assert average_precision(labels, np.log(p)) == pytest.approx((first + second) / 2, rel=1e-12)


def test_images_that_are_all_sure_are_still_ordered():
    """p is 1.0 in double precision for both, and the area by p would be a tie."""
    log_p = np.array([[-1e-20, -46.0], [-1e-25, -57.0]])
    assert score_of(log_p, 0)[1] > score_of(log_p, 0)[0]
    assert METRICS["auroc"].of(np.array([1, 0]), log_p) == 1.0


def test_one_class_has_no_area():
    labels, log_p = np.zeros(4, int), answers(4, 3)[1]
    assert METRICS["auroc"].of(labels, log_p) is None
    assert METRICS["average-precision"].of(labels, log_p) is None
    assert recorded_metrics(labels, log_p)["auroc"] is None


# Which step is selected.


def scored(step, target, **sources):
    """A record of a run that holds `ash` out: accuracy there, and of each source its accuracy and metrics."""
    made = record(step, {"ash": (target, None)} | {d: (None, each["accuracy"]) for d, each in sources.items()})
    return made | {"metrics": {d: {n: each[n] for n in RECORDED} for d, each in sources.items()}}


def random_scored(seed, steps=8):
    random = np.random.default_rng(seed)
    return [
        scored(s, random.random(), **{d: {n: random.random() for n in ("accuracy", *RECORDED)} for d in DOMAINS[1:]})
        for s in range(steps)
    ]


@pytest.mark.parametrize("by", SELECT_BY)
@pytest.mark.parametrize("seed", range(5))
def test_a_naive_search_finds_the_same_step(by, seed):
    records = random_scored(seed)
    best, at = -math.inf, None
    for each in records:
        accuracies = [each["accuracy"][d]["out"] for d in DOMAINS[1:]]
        figures = [each["metrics"][d].get(by, 0) for d in DOMAINS[1:]]
        value = {"accuracy": sum(accuracies) / 2, "worst-domain": min(accuracies), "log-loss": -sum(figures) / 2}.get(
            by, sum(figures) / 2
        )
        if value > best:
            best, at = value, each
    found = training_domains([trace(*records)], "ash", by)
    assert (found.step, found.accuracy) == (at["step"], at["accuracy"]["ash"]["in"])
    assert found.validation == pytest.approx(best, rel=1e-12)
    trained_so = trace(*records, conditions={"select_by": by})
    assert training_domains([trained_so], "ash") == found  # without a word, by what it was trained with


def test_draws_are_compared_by_it_where_no_step_is_picked():
    better = {"accuracy": 0.1, "balanced": 0.9, "macro-f1": 0.9, "auroc": 0.9, "log-loss": 0.2}
    worse = {"accuracy": 0.9, "balanced": 0.2, "macro-f1": 0.2, "auroc": 0.2, "log-loss": 2.0}
    runs = [
        trace(scored(0, 0.5, birch=better, cedar=better), draw=0),
        trace(scored(0, 0.6, birch=worse, cedar=worse), draw=1),
    ]
    for rule in (last_step, second_half_mean):
        assert rule(runs, "ash").draw == 1
        assert rule(runs, "ash", "macro-f1").draw == rule(runs, "ash", "log-loss").draw == 0


def test_old_records_have_no_such_figures_and_say_so():
    old = trace(record(0, {"ash": (0.3, None), "birch": (None, 0.4), "cedar": (None, 0.8)}))
    said = training_domains([old], "ash", "auroc")
    assert said == "its records hold no auroc of the sources: train with --select-by auroc, or any but accuracy"
    assert training_domains([old], "ash", "worst-domain").validation == 0.4  # which needs accuracies alone
    (row,) = select_rows([old], select_by="log-loss")
    assert "train with --select-by log-loss" in row.choices["ash", 0]


def test_runs_without_validation_say_so():
    run = trace(record(0, {"ash": (0.3, None)}) | {"validation": None}, conditions={"holdout": 0.0})
    for rule in (training_domains, last_step, second_half_mean):
        assert "trained on all images of the sources" in rule([run], "ash")


def test_a_metric_that_is_null_for_a_source_is_the_mean_of_the_others():
    one = {"accuracy": 0.5, "balanced": 0.5, "macro-f1": 0.5, "auroc": None, "log-loss": 1.0}
    made = scored(0, 0.5, birch=one, cedar=one | {"auroc": 0.75})
    assert selection_value(made, ("birch", "cedar"), "auroc") == 0.75
    nobody = scored(0, 0.5, birch=one, cedar=one)
    assert math.isnan(selection_value(nobody, ("birch", "cedar"), "auroc"))


def test_the_target_is_never_looked_at():
    records = random_scored(3)
    other = [{**r, "accuracy": {**r["accuracy"], "ash": {"in": 1 - r["accuracy"]["ash"]["in"]}}} for r in records]
    for by in SELECT_BY:
        assert training_domains([trace(*records)], "ash", by).step == training_domains([trace(*other)], "ash", by).step


def test_unknown_metrics_and_selections_that_have_none_are_refused():
    with pytest.raises(ConfigError, match="select_by='f2'; wanted one of accuracy, balanced"):
        check_select_by("f2")
    runs = [trace(*random_scored(0))]
    with pytest.raises(ConfigError, match="'oracle' selects by accuracy, and not by auroc"):
        select_rows(runs, "oracle", select_by="auroc")
    assert select_rows(runs, "oracle", select_by="accuracy")
