"""Some of the damage that `tests/faults/damage.py` does."""

import random

import pytest

from faults import small
from faults.damage import DamagedCheckpoints


@pytest.fixture
def place():
    with small.make_place() as folder:
        yield small.Path(folder)


def test_no_damaged_checkpoint_is_loaded(place):
    found = DamagedCheckpoints(place, small.make_images(place), random.Random(0)).try_many(42)
    assert found["checkpoints detected"] == 42, found
    assert found["flips that safetensors alone detects"].startswith("0 of")
