"""Which images of a domain are for training ("in") and which are held out ("out"), as in DomainBed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from dspreg.domainbed.seeds import seed_hash
from dspreg.errors import ConfigError


def split(num_images: int, trial: int, position: int, holdout: float = 0.2) -> tuple[list[int], list[int]]:
    """Positions of the "in" and of the "out" images of one domain.

    The first ⌊holdout · N⌋ of the shuffled positions are held out. The shuffle is DomainBed's, number
    for number, so that results can be compared image by image. It doesn't balance classes.

    Args:
        num_images: N, all images of the domain.
        trial: Another trial is another split.
        position: Of the domain in `DomainDataset.domains`.
        holdout: Fraction held out.

    Returns:
        (in, out), together every position 0 … N-1 once.
    """
    _check(holdout)
    keys = list(range(num_images))
    # The legacy generator, and a list: a Generator, or shuffling an array, gives another order.
    np.random.RandomState(seed_hash(trial, position)).shuffle(keys)
    num_out = int(num_images * holdout)
    return keys[num_out:], keys[:num_out]


def split_stratified(
    labels: Sequence[int], trial: int, position: int, holdout: float = 0.2
) -> tuple[list[int], list[int]]:
    """The same, with every class split by itself: ⌊holdout · N_class⌋ of each are held out.

    One shuffle, DomainBed's, decides; a class too small for one held-out image is trained on whole.
    """
    _check(holdout)
    order = split(len(labels), trial, position, 0.0)[0]
    quota = {label: int(count * holdout) for label, count in Counter(labels).items()}
    out: list[int] = []
    for place in order:
        if quota[labels[place]]:
            quota[labels[place]] -= 1
            out.append(place)
    held = set(out)
    return [place for place in order if place not in held], out


def steps_per_epoch(in_sizes: Iterable[int], images_per_step: int) -> int:
    """Steps until about every source image has been used once, at least 1.

        max(1, ⌊Σ N_in / images per step⌋)

    Sources only, because a length that depends on the target would leak: the target's size would
    decide how long a warm-up lasts or where a checkpoint lies.

    Args:
        in_sizes: Size of the "in" split of every source domain.
        images_per_step: Over all source domains, e.g. 3 · 32.
    """
    return max(1, sum(in_sizes) // images_per_step)


def _check(holdout: float) -> None:
    if not 0 <= holdout <= 1:
        raise ConfigError(f"holdout is the fraction of images held out, between 0 and 1, but got {holdout}. Try 0.2.")
