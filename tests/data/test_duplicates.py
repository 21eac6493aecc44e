"""Nearly equal images: the same pairs as comparing all with all, bit by bit, and the same in a hundred thousand."""

import io

import numpy as np
import pytest
from PIL import Image

from dspreg.data import duplicates
from dspreg.data.duplicates import ALIKE, DISTANCE, connect, difference_hashes, grey_copy, near_pairs
from helpers.images import picture


def naive_hash(copy):
    """Bit by bit, from the first pixel on."""
    bits = 0
    for y in range(8):
        row = [sum(int(copy[2 * y + a, 2 * x + b]) for a in (0, 1) for b in (0, 1)) for x in range(9)]
        for x in range(8):
            bits = 2 * bits + (row[x + 1] > row[x])
    return bits


def naive_pairs(copies):
    hashes, found = [naive_hash(copy) for copy in copies], []
    for i in range(len(copies)):
        for j in range(i + 1, len(copies)):
            near = bin(hashes[i] ^ hashes[j]).count("1") <= DISTANCE and copies[i].std() and copies[j].std()
            if near and np.corrcoef(copies[i].ravel(), copies[j].ravel())[0, 1] >= ALIKE:
                found.append((i, j))
    return found


def crowd(seed, number):
    """Smooth pictures, some with a little noise on them, some flat, some on white like drawings."""
    random = np.random.default_rng(seed)
    made = []
    for _ in range(number):
        kind = random.integers(4)
        if made and kind == 0:
            noisy = made[random.integers(len(made))] + random.normal(0, random.choice([0.5, 3, 10]), (16, 18))
            made.append(noisy)
        elif kind == 1:
            drawing = np.full((16, 18), 255.0)
            drawing[random.integers(16), random.integers(18)] = random.integers(255)
            made.append(drawing)
        elif kind == 2 and random.random() < 0.1:
            made.append(np.full((16, 18), float(random.integers(255))))
        else:
            made.append(np.asarray(picture(int(random.integers(10**6)), (18, 16), "L"), float))
    return np.array(made).clip(0, 255).astype(np.uint8)


@pytest.mark.parametrize("seed", range(6))
def test_the_pairs_are_those_of_comparing_all_with_all(seed):
    copies = crowd(seed, 150)
    assert difference_hashes(copies).tolist() == [naive_hash(copy) for copy in copies]
    expected = naive_pairs(copies)
    assert expected
    assert near_pairs(copies) == (expected, 0)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_few_images(number):
    copies = np.repeat(crowd(1, 1), number, axis=0)
    assert near_pairs(copies) == ([(0, 1)] if number == 2 else [], 0)


def saved_again(image, quality=75):
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return Image.open(file)


def test_what_people_do_to_images_is_seen_through():
    random = np.random.default_rng(0)
    for seed in range(30):
        noise = Image.fromarray(random.integers(0, 256, (9, 12, 3), np.uint8)).resize(
            (240, 180), Image.Resampling.BICUBIC
        )
        same = [
            saved_again(noise), saved_again(noise, 40), noise.resize((120, 90), Image.Resampling.LANCZOS),
            noise.point(lambda p: min(255, int(p * 1.05))), noise.convert("RGBA"),
        ]  # fmt: skip
        copies = np.array([grey_copy(each) for each in (noise, *same, picture(seed, (240, 180)))])
        pairs, _ = near_pairs(copies)
        assert {j for i, j in pairs if i == 0} == {1, 2, 3, 4, 5}


def test_a_hundred_thousand_images_with_planted_pairs():
    """Every planted pair is found; comparing all with all would be five thousand million comparisons."""
    random = np.random.default_rng(0)
    number = 100_000
    copies = random.integers(0, 256, (number, 16, 18), np.uint8)
    twins = {(i, number - 1 - i) for i in range(300)}
    for i, j in twins:
        copies[j] = (copies[i].astype(int) + random.integers(-2, 3, (16, 18))).clip(0, 255)
    far = {(i, j) for i, j in twins if bin(naive_hash(copies[i]) ^ naive_hash(copies[j])).count("1") > DISTANCE}
    pairs, crowded = near_pairs(copies)
    assert set(pairs) == twins - far
    assert len(far) < 30
    assert crowded == 0


def test_where_very_many_look_alike_to_the_hash_it_is_counted(monkeypatch):
    monkeypatch.setattr(duplicates, "LARGEST", 10)
    monkeypatch.setattr(duplicates, "WINDOW", 3)
    copies = np.repeat(crowd(3, 1), 30, axis=0)
    pairs, crowded = near_pairs(copies)
    assert crowded == 30
    assert connect(pairs) == [list(range(30))]


def test_groups_are_what_is_connected():
    assert connect([(5, 7), (1, 2), (2, 9), (3, 9), (7, 8)]) == [[1, 2, 3, 9], [5, 7, 8]]
    assert connect([]) == []
