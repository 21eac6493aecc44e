"""What tests of all launchers start from."""

import pytest
from helpers.small_runs import photos

from dspreg.runs.store import RunStore


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return photos(tmp_path_factory.mktemp("images") / "photos")


@pytest.fixture
def store(tmp_path):
    made = RunStore(tmp_path / "store")
    made.make()
    return made
