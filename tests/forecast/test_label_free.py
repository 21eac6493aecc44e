"""Estimates without labels, against plain loops."""

import numpy as np
import pytest
from scipy import special, stats

from dspreg import DataError
from dspreg.forecast.label_free import (
    FeatureStatistics,
    estimate_by_agreement,
    estimate_by_confidence,
    oddness,
    softmax,
    sureness,
)

RANDOM = np.random.default_rng(0)


def test_sureness_is_scipys_entropy():
    logits = 5 * RANDOM.standard_normal((50, 4))
    np.testing.assert_allclose(softmax(logits), special.softmax(logits, 1), rtol=1e-12)
    np.testing.assert_allclose(sureness(logits), -stats.entropy(special.softmax(logits, 1), axis=1), atol=1e-12)
    assert np.isfinite(sureness(np.array([[1e5, 0.0]]))).all()


def test_confidence_counts_images_above_the_threshold_that_fits_validation():
    validation, labels = RANDOM.standard_normal((40, 3)), RANDOM.integers(0, 3, 40)
    images = 2 * RANDOM.standard_normal((30, 3))
    wrong = sum(int(np.argmax(x) != y) for x, y in zip(validation, labels, strict=True))
    sure = sorted(float(-stats.entropy(special.softmax(x))) for x in validation)
    threshold = sure[wrong]  # as many validation images lie below as are wrong
    assert sum(s < threshold for s in sure) == wrong
    above = [float(-stats.entropy(special.softmax(x))) >= threshold for x in images]
    assert estimate_by_confidence(validation, labels, images) == pytest.approx(np.mean(above))


def test_confidence_gives_validation_its_own_accuracy_back():
    logits, labels = 3 * RANDOM.standard_normal((200, 5)), RANDOM.integers(0, 5, 200)
    accuracy = (logits.argmax(1) == labels).mean()
    assert estimate_by_confidence(logits, labels, logits) == pytest.approx(accuracy)
    assert estimate_by_confidence(logits, logits.argmin(1), logits) == 0
    assert estimate_by_confidence(logits, logits.argmax(1), logits) == 1


def test_agreement_is_the_mean_over_pairs():
    predicted = [RANDOM.integers(0, 3, 50) for _ in range(3)]
    pairs = [(0, 1), (0, 2), (1, 2)]
    by_hand = np.mean([np.mean([predicted[a][i] == predicted[b][i] for i in range(50)]) for a, b in pairs])
    assert estimate_by_agreement(predicted) == pytest.approx(by_hand)
    with pytest.raises(DataError, match="at least two"):
        estimate_by_agreement(predicted[:1])
    with pytest.raises(DataError, match="validation images"):
        estimate_by_confidence(np.zeros((0, 3)), np.zeros(0), np.zeros((2, 3)))


def statistics(x):
    return FeatureStatistics(len(x), x.mean(0), x.var(0))


def test_oddness_is_a_distance_in_standard_deviations_without_the_share_of_chance():
    sources = statistics(RANDOM.standard_normal((100_000, 20)) * 3 + 1)
    shifted = statistics(RANDOM.standard_normal((50_000, 20)) * 3 + 1 + 1.5)
    assert oddness(shifted, sources) == pytest.approx(0.5, abs=0.02)
    squares = [oddness(statistics(RANDOM.standard_normal((10, 20)) * 3 + 1), sources) ** 2 for _ in range(300)]
    assert np.mean(squares) < 0.03  # without the correction it would be 1/10
    constant = FeatureStatistics(5, np.ones(3), np.zeros(3))
    assert oddness(constant, constant) == 0
