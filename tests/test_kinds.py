"""Figures of tasks against scikit-learn and against loops."""

import numpy as np
import pytest
from sklearn import metrics

from dspreg import ConfigError
from dspreg.kinds import KINDS, compute_figures, figures_of, kind_of, require_kind, useless_labels


def drawn(seed, labels, *, ties=False):
    random = np.random.default_rng(seed)
    outputs = random.normal(size=(40, 3))
    if ties:
        outputs = outputs.round()  # many equal ones, and zeros
    y = (random.random((40, 3)) < 0.4).astype(float) if labels == "multilabel" else random.normal(size=(40, 3))
    return outputs, y


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_figures_of_several_labels_are_scikit_learns(seed, ties):
    outputs, y = drawn(seed, "multilabel", ties=ties)
    found = compute_figures("multilabel", [outputs[:7], outputs[7:]], [y[:7], y[7:]])
    assert found["mean_average_precision"] == pytest.approx(metrics.average_precision_score(y, outputs), abs=1e-12)
    assert found["label_accuracy"] == pytest.approx(1 - metrics.hamming_loss(y, outputs > 0), abs=1e-12)
    assert found["exact_match"] == pytest.approx(metrics.accuracy_score(y, outputs > 0), abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_figures_of_numbers_are_scikit_learns(seed):
    outputs, y = drawn(seed, "regression")
    found = compute_figures("regression", [outputs], [y])
    assert found["r2"] == pytest.approx(metrics.r2_score(y, outputs), abs=1e-12)
    assert found["mse"] == pytest.approx(metrics.mean_squared_error(y, outputs), abs=1e-12)
    assert found["mae"] == pytest.approx(metrics.mean_absolute_error(y, outputs), abs=1e-12)


def test_a_label_that_no_sample_has_does_not_count():
    outputs, y = drawn(0, "multilabel")
    y[:, 1] = 0
    alone = [metrics.average_precision_score(y[:, c], outputs[:, c]) for c in (0, 2)]
    found = compute_figures("multilabel", [outputs], [y])["mean_average_precision"]
    assert found == pytest.approx(np.mean(alone), abs=1e-12)


@pytest.mark.parametrize("kind", ["multilabel", "regression"])
def test_outputs_that_are_not_finite_are_bad_ones_and_every_figure_is_a_number(kind):
    outputs, y = drawn(1, kind)
    before = compute_figures(kind, [outputs], [y])
    outputs[3] = np.nan
    outputs[4, 0] = np.inf
    found = compute_figures(kind, [outputs], [y])
    assert all(np.isfinite(value) for value in found.values())
    assert found[KINDS[kind].figure] < before[KINDS[kind].figure]


def test_labels_without_a_figure_are_told():
    assert "average precision" in useless_labels("multilabel", np.zeros((4, 2)))
    assert useless_labels("multilabel", np.eye(2)) == ""
    assert "number 1" in useless_labels("regression", np.array([[1.0, 5.0], [2.0, 5.0]]))
    assert useless_labels("regression", np.array([[1.0, 5.0], [2.0, 6.0]])) == ""


def test_records_say_their_kind_by_their_figure():
    assert kind_of({"accuracy": {}}) == "classes"
    assert kind_of({"r2": {}, "mse": {}}) == "regression"
    assert figures_of({"mean_average_precision": {"a": {"out": 0.5}}}) == {"a": {"out": 0.5}}


def test_an_unknown_kind_is_refused():
    with pytest.raises(ConfigError, match="wanted one of 'classes', 'multilabel', 'regression'"):
        require_kind("ranking")
