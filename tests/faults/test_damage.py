"""Some of the damage that `tests/faults/damage.py` does."""

import random

import pytest

from faults import small
from faults.damage import DamagedCheckpoints, Flips


@pytest.fixture
def place():
    with small.make_place() as folder:
        yield small.Path(folder)


def test_no_damaged_checkpoint_is_loaded(place):
    found = DamagedCheckpoints(place, small.make_images(place), random.Random(0)).try_many(42)
    assert found["checkpoints detected"] == 42, found
    assert found["flips that safetensors alone detects"].startswith("0 of")


def test_no_flipped_bit_is_taken_for_truth(place):
    found = Flips(place, small.make_images(place), random.Random(1)).flip_many(24)
    assert found["silent"] == 0, found
    assert found["another error than ours"] == 0, found
    assert found["of finished runs"]["detected"] > 6
    assert found["of unfinished runs"]["detected"] > 6
