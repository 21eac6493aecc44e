"""Images that are nearly the same: saved again, at another size or another quality, or a little brighter.

Candidates are found by a difference hash (dHash), whose bits say where an image of 9 × 8 pixels gets brighter from left
to right, and kept if small grey copies of the two agree. The hash alone takes most drawings on white for one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from dspreg.data.bands import Bands, Picture

WIDTH, HEIGHT = 18, 16  # of the grey copies
DISTANCE = 4  # bits in which two hashes may differ: 99 of 100 JPEGs of PACS at half the size, or at quality 30
BANDS = DISTANCE + 1  # so many bits can't spoil all bands, so that one is equal
ALIKE = 0.98  # least correlation of the copies
LARGEST = 2_000  # images with an equal band that are all compared with each other
WINDOW = 200  # of more, each is compared with so many neighbours
TOGETHER = 1 << 14  # pairs
ONES = np.array([number.bit_count() for number in range(1 << 16)], np.uint8)  # numpy counts bits itself from 2.0 on


def grey_copy(image: Picture) -> NDArray[np.uint8]:
    """(16, 18), each pixel the mean of what it covers; of many channels the first one's."""
    from PIL import Image as Pillow

    grey = image.split()[0] if isinstance(image, Bands) else image.convert("L")
    return np.asarray(grey.resize((WIDTH, HEIGHT), Pillow.Resampling.BOX))


def difference_hashes(copies: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """dHash of each of the copies (N, 16, 18): 64 bits, 1 where of 9 × 8 pixels the right neighbour is brighter."""
    number = len(copies)
    small = copies.reshape(number, HEIGHT // 2, 2, WIDTH // 2, 2).sum((2, 4), dtype=np.int32)
    bits = (small[:, :, 1:] > small[:, :, :-1]).reshape(number, 64)
    return np.packbits(bits, axis=1).view(">u8")[:, 0].astype(np.uint64)


def near_pairs(copies: NDArray[np.uint8]) -> tuple[list[tuple[int, int]], int]:
    """Pairs (i < j) of nearly equal images, in order; and how many images were compared with some neighbours only.

    Pairs are looked for where one of five parts of the hash is equal, which it must be where they differ in four bits.

    Args:
        copies: (N, 16, 18), of `grey_copy`.
    """
    hashes = difference_hashes(copies)
    found: set[int] = set()
    crowded: set[int] = set()
    for band in np.array_split(np.arange(64, dtype=np.uint64), BANDS):
        keys = (hashes >> band[0]) & np.uint64((1 << len(band)) - 1)
        order = np.lexsort((hashes, keys))
        starts = np.flatnonzero(np.diff(keys[order], prepend=keys[order][:1] - np.uint64(1)))
        for members in np.split(order, starts[1:]) if len(order) else ():
            if len(members) > LARGEST:
                crowded.update(members.tolist())
            for i, j in _candidates(members, hashes):
                kept = _alike(copies, i, j)
                low, high = np.minimum(i, j)[kept], np.maximum(i, j)[kept]
                found.update((low * len(copies) + high).tolist())
    return [divmod(pair, len(copies)) for pair in sorted(found)], len(crowded)


def connect(pairs: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Groups of what is connected by pairs, each in order, by their first members."""
    parent: dict[int, int] = {}

    def root(i: int) -> int:
        while parent.setdefault(i, i) != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    for i, j in pairs:
        a, b = root(i), root(j)
        parent[max(a, b)] = min(a, b)
    groups: dict[int, list[int]] = defaultdict(list)
    for i in sorted(parent):
        groups[root(i)].append(i)
    return [groups[first] for first in sorted(groups)]


def _candidates(
    members: NDArray[np.intp], hashes: NDArray[np.uint64]
) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Pairs of members whose hashes are near, many at a time."""
    number = len(members)
    reach = number - 1 if number <= LARGEST else WINDOW
    here = hashes[members]
    left: list[NDArray[np.intp]] = []
    right: list[NDArray[np.intp]] = []
    for step in range(1, reach + 1):
        at = np.flatnonzero(_bits(here[step:] ^ here[:-step]) <= DISTANCE)
        left.append(members[at])
        right.append(members[at + step])
        if step == reach or sum(map(len, left)) > TOGETHER:
            yield np.concatenate(left), np.concatenate(right)
            left, right = [], []


def _bits(values: NDArray[np.uint64]) -> NDArray[np.intp]:
    """How many bits of each are 1."""
    counted: NDArray[np.intp] = ONES[values[:, None].view(np.uint16)].sum(1)
    return counted


def _alike(copies: NDArray[np.uint8], i: NDArray[np.intp], j: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Of which pairs the copies are correlated. What is of one grey is correlated with nothing."""
    found = np.zeros(len(i), bool)
    for start in range(0, len(i), TOGETHER):
        part = slice(start, start + TOGETHER)
        a, b = (copies[at[part]].reshape(len(at[part]), -1).astype(np.float32) for at in (i, j))
        a, b = a - a.mean(1, keepdims=True), b - b.mean(1, keepdims=True)
        length = np.sqrt((a * a).sum(1) * (b * b).sum(1))
        found[part] = (length > 0) & ((a * b).sum(1) >= ALIKE * length)
    return found
