"""Which images of a domain are for training ("in") and which are held out ("out").

Three rules: DomainBed's, by position; the same class by class; and, for one's own images, class by class with groups
that stay together and parts that are given.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from dspreg.data.annotations import TEST, TRAIN, VALIDATION, Annotations
from dspreg.domainbed.seeds import seed_hash
from dspreg.errors import ConfigError

PASSES = 20  # over all groups; three or four find none that would do better on the other side


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


def split_grouped(
    labels: Sequence[int], annotations: Annotations, trial: int, position: int, holdout: float = 0.2
) -> tuple[list[int], list[int]]:
    """⌊holdout · N⌋ images are held out, of every class its share; no group is torn apart; given parts are kept to.

    Train is "in", val is "out", test is neither (`positions_of_test`). Where nothing is for validation, it is drawn
    from what is for training. A domain with nothing to train on can be a target alone, and is split as if no part were
    given; one of a single group is split as if it had none.

    Args:
        labels: Of the domain's images.
        annotations: Of the same images.
        trial: Another trial is another split, but for the parts that are given.
        position: Of the domain in `DomainDataset.domains`.
        holdout: Fraction of every class that is held out, as nearly as whole groups allow; 0: nothing is, and "val" is
            trained on, too.
    """
    _check(holdout)
    order = split(len(labels), trial, position, 0.0)[0]
    parts = parts_of(annotations, len(labels))
    if not any(part in (TRAIN, "") for part in parts):
        parts = [""] * len(labels)
    fixed = {place for place in order if parts[place] == TEST or (parts[place] == VALIDATION and holdout)}
    out = [place for place in order if parts[place] == VALIDATION and holdout]
    free = [place for place in order if place not in fixed and (not out or parts[place] == "")]
    held = set(_hold_out(free, labels, annotations.groups, holdout)) | set(out)
    test = {place for place in order if parts[place] == TEST}
    return (
        [place for place in order if place not in held and place not in test],
        [place for place in order if place in held],
    )


def parts_of(annotations: Annotations, number: int) -> list[str]:
    """The part of every image; an image of which nothing is said goes where others of its group go."""
    if annotations.parts is None:
        return [""] * number
    of_group = {
        group: part for group, part in zip(annotations.groups or (), annotations.parts, strict=False) if group and part
    }
    groups = annotations.groups or ("",) * number
    return [part or of_group.get(group, "") for part, group in zip(annotations.parts, groups, strict=True)]


def positions_of_test(annotations: Annotations, number: int) -> list[int]:
    """The images that are neither trained on nor validated with, in their order."""
    return [place for place, part in enumerate(parts_of(annotations, number)) if part == TEST]


def _hold_out(free: Sequence[int], labels: Sequence[int], groups: Sequence[str] | None, holdout: float) -> list[int]:
    """Which of the `free` images are held out, by whole groups, near `holdout` of every class.

    In the order of `free`, a group changes sides if that brings the held-out shares of the classes nearer to `holdout`
    (least squares), and leaves something of each of its classes to train on; again, until none does.
    """
    counts = Counter(labels[place] for place in free)
    if groups is None or len({groups[place] or place for place in free}) < 2:
        quota = _quotas(counts, holdout)
        out = []
        for place in free:
            if quota[labels[place]]:
                quota[labels[place]] -= 1
                out.append(place)
        return out
    members: dict[str | int, list[int]] = defaultdict(list)
    for place in free:
        members[groups[place] or place].append(place)
    sizes = {group: Counter(labels[place] for place in places) for group, places in members.items()}
    held: set[str | int] = set()
    taken: Counter[int] = Counter()

    def gain(group: str | int) -> float:
        """By how much the squared distance falls when the group changes sides."""
        sign = -1 if group in held else 1
        if sign == 1 and any(taken[label] + n >= counts[label] for label, n in sizes[group].items()):
            return -math.inf
        far = {label: taken[label] - holdout * counts[label] for label in sizes[group]}
        return sum((far[c] ** 2 - (far[c] + sign * n) ** 2) / counts[c] ** 2 for c, n in sizes[group].items())

    def change_sides(group: str | int) -> None:
        if group in held:
            held.remove(group)
            taken.subtract(sizes[group])
        else:
            held.add(group)
            taken.update(sizes[group])

    for _ in range(PASSES):
        moved = 0
        for group in members:
            if gain(group) > 1e-12:  # not for the rounding of a sum
                change_sides(group)
                moved += 1
        if not moved:
            break
    if not held and holdout > 0:  # all are large: the least bad one
        best = max(members, key=gain)
        change_sides(best if gain(best) > -math.inf else min(members, key=lambda group: len(members[group])))
    return [place for group in members if group in held for place in members[group]]


def _quotas(counts: Mapping[int, int], holdout: float) -> dict[int, int]:
    """How many of each class are held out: ⌊holdout · N⌋ in all, and at least one if there are two.

    What is left after rounding down goes to the classes with the largest remainders, and of equal ones to the first;
    one of each class is trained on.
    """
    quota = {label: int(count * holdout) for label, count in counts.items()}
    number = sum(counts.values())
    total = max(int(number * holdout), min(1, number // 2)) if holdout else 0
    by_remainder = sorted(counts, key=lambda label: quota[label] - counts[label] * holdout)  # stable
    for label in by_remainder:
        if sum(quota.values()) < total and quota[label] + 1 < counts[label]:
            quota[label] += 1
    return quota


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
