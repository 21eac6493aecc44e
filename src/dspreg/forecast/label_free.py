"""What images alone say about how well a model does on them: estimates without labels, and how odd a site is.

None of them is right for every kind of shift (Garg et al. show that none can be). So `dspreg estimate` measures the
error of each on the sites that were held out, whose labels are known, and says it beside the estimate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dspreg.errors import DataError

Array = NDArray[np.float64]


def softmax(logits: Array) -> Array:
    """(N, C) → probabilities."""
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True))


def sureness(logits: Array) -> Array:
    """(N, C) → negative entropy of the prediction, which Garg et al. found better than the largest probability."""
    p = softmax(logits)
    return np.asarray(np.where(p > 0, p * np.log(np.maximum(p, 1e-300)), 0.0).sum(1))


def estimate_by_confidence(validation: Array, labels: NDArray[Any], images: Array) -> float:
    """Average thresholded confidence (ATC).

        a = share of `images` surer than t        t: share of validation images less sure than t = share of them wrong

    Garg, Balakrishnan, Lipton, Neyshabur & Sedghi, "Leveraging unlabeled data to predict out-of-distribution
    performance", ICLR 2022.

    Args:
        validation: Logits (N, C) of images that the model was not trained on, from its own sites.
        labels: Of these, (N,).
        images: Logits of the new images, (M, C).
    """
    if not len(validation) or not len(images):
        raise DataError("an estimate by confidence needs validation images and new ones, at least one of each")
    sure = np.sort(sureness(validation))
    wrong = int((validation.argmax(1) != labels).sum())
    if wrong == len(sure):
        return 0.0
    return float((sureness(images) >= sure[wrong]).mean())


def estimate_by_agreement(predicted: Sequence[NDArray[Any]]) -> float:
    """Mean share of images on which two trainings agree.

    Jiang, Nagarajan, Baek & Kolter, "Assessing generalization of SGD via disagreement", ICLR 2022: models that differ
    in their seed alone disagree as often as they are wrong, if they are calibrated as an ensemble. On new domains they
    mostly agree too much; Baek, Jiang, Raghunathan & Kolter, "Agreement-on-the-line", NeurIPS 2022, correct that with a
    line fitted to many networks, of which there are too few here.

    Args:
        predicted: Classes (N,) by each training, of the same images; at least two.
    """
    if len(predicted) < 2:
        raise DataError(f"agreement needs the predictions of at least two trainings, and there is {len(predicted)}")
    return float(np.mean([(a == b).mean() for a, b in combinations(predicted, 2)]))


@dataclass(frozen=True)
class FeatureStatistics:
    """Of the features of some images: their number, and mean and variance of each feature."""

    images: int
    mean: Array
    variance: Array


def oddness(site: FeatureStatistics, sources: FeatureStatistics) -> float:
    """How far the images of a site lie from those that a model was trained on, in standard deviations.

        √ mean_f ((m_f − m̂_f)² / v̂_f − 1/N)        N images of the site, of features f

    1/N is what a sample of N images of the sources would have by chance. Features that do not vary are left out.
    """
    there = sources.variance > 1e-12 * max(float(sources.variance.max()), 1e-300)
    if not there.any():
        return 0.0
    squares = (site.mean - sources.mean)[there] ** 2 / sources.variance[there]
    return float(np.sqrt(max(0.0, float(squares.mean()) - 1 / site.images)))
