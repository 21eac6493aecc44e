"""Which samples a step sees: a function of the key, the step and the domain, never of what ran before."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dspreg.randomness import Key, generator

MEASURE_BATCH = 32  # images in a batch to measure on, whatever the training batch


def draw_training_batch(num_images: int, size: int, *key: Key) -> list[int]:
    """Positions of one training batch, drawn with replacement."""
    chosen = torch.randint(num_images, (size,), generator=generator(*key, "train"), device="cpu")
    return [int(i) for i in chosen.tolist()]


def draw_balanced_batch(by_class: Sequence[Sequence[int]], size: int, *key: Key) -> list[int]:
    """The same with every class as likely: a class, then one of its images, both with replacement.

    Args:
        by_class: The positions of each class.
        size: Of the batch.
        key: Of the step and the domain.
    """
    random = generator(*key, "train")
    classes = torch.randint(len(by_class), (size,), generator=random, device="cpu").tolist()
    places = torch.rand(size, generator=random, dtype=torch.float64, device="cpu").tolist()
    return [by_class[c][int(u * len(by_class[c]))] for c, u in zip(classes, places, strict=True)]


def draw_measure_batches(num_images: int, batches: int, *key: Key) -> list[list[int]]:
    """Positions of batches of 32 to measure on, without replacement, at most all images.

    Keyed apart from training, so that measuring moves no training batch.
    """
    return draw_batches(num_images, batches * MEASURE_BATCH, MEASURE_BATCH, *key)


def draw_batches(num_images: int, wanted: int, size: int, *key: Key) -> list[list[int]]:
    """As `draw_measure_batches`: positions of at most `wanted` images, in batches of `size`."""
    order = torch.randperm(num_images, generator=generator(*key, "measure"), device="cpu")
    return [part.tolist() for part in torch.split(order[:wanted], size)]
