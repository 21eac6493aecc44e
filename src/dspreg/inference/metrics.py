"""What is counted when a trained model is evaluated, and the numbers that come of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dspreg.errors import DataError

BINS = 15  # of confidence, of equal width


@dataclass(frozen=True)
class Scores:
    """Sums over images, from which every number follows. Made by adding batches, so that no logits are kept.

    Attributes:
        confusion: (C, C) images of each class (row) by the class predicted (column).
        bins: (3, 15) images, sum of confidences and images right, by confidence.
        surprise: Sum over images of −log p(true class).
    """

    confusion: np.ndarray
    bins: np.ndarray
    surprise: float

    @classmethod
    def none(cls, num_classes: int) -> Scores:
        return cls(np.zeros((num_classes, num_classes), np.int64), np.zeros((3, BINS)), 0.0)

    def adding(self, logits: Tensor, y: Tensor) -> Scores:
        """With one more batch: logits (B, C) and labels (B,), in float64 from here on."""
        if not bool(logits.isfinite().all()):
            bad = int((~logits.isfinite().all(dim=1)).sum())
            raise DataError(f"the model's outputs for {bad} images are not finite, so that they have no scores")
        log_p = logits.detach().cpu().double().log_softmax(1)
        labels, predicted = y.cpu(), log_p.argmax(1)
        num_classes = len(self.confusion)
        pairs = np.bincount((labels * num_classes + predicted).numpy(), minlength=num_classes**2)
        confidence = log_p.max(1).values.exp().numpy()
        # bin b is (b/15, (b+1)/15], as in Guo et al.; a confidence is never 0
        place = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
        right = (labels == predicted).numpy()
        bins = np.stack([np.bincount(place, w, BINS) for w in (np.ones_like(confidence), confidence, right)])
        surprise = -float(log_p.gather(1, labels[:, None]).sum())
        confusion = self.confusion + pairs.reshape(num_classes, num_classes)
        return Scores(confusion, self.bins + bins, self.surprise + surprise)

    @property
    def images(self) -> int:
        return int(self.confusion.sum())

    @property
    def accuracy(self) -> float:
        """Share of the images that are recognised."""
        return int(np.trace(self.confusion)) / self.images

    @property
    def by_class(self) -> dict[int, tuple[int, float]]:
        """Class → its images and the share of them that is recognised, for every class that has an image."""
        totals = self.confusion.sum(1)
        return {int(c): (int(totals[c]), float(self.confusion[c, c] / totals[c])) for c in np.flatnonzero(totals)}

    @property
    def class_mean(self) -> float:
        """Mean over the classes that have an image of their accuracy: rare classes count as much as frequent ones."""
        return float(np.mean([share for _, share in self.by_class.values()]))

    @property
    def calibration_error(self) -> float:
        """Expected calibration error (ECE) with 15 bins of equal width.

            ECE = Σ_b n_b/N · |accuracy of bin b − mean confidence in bin b|

        Confidence is the largest softmax probability. 0 where a model that is sure to 80 % is right in 80 % of the
        cases. Of few images it is too large, because the accuracy of a bin is then noise.
        """
        _, confidence, right = self.bins
        return float(np.abs(right - confidence).sum() / self.images)

    @property
    def log_loss(self) -> float:
        """Mean over images of −log p(true class), in nats: the cross-entropy."""
        return self.surprise / self.images


def scores_of(logits: Tensor, y: Tensor) -> Scores:
    """Of logits (N, C) and labels (N,) at once."""
    return Scores.none(logits.shape[1]).adding(logits, y.to(torch.int64))
