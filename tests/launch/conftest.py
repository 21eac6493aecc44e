"""What tests of all launchers start from."""

import pytest

from dspreg.runs.store import RunStore
from helpers.small_runs import photos


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return photos(tmp_path_factory.mktemp("images") / "photos")


@pytest.fixture
def store(tmp_path):
    made = RunStore(tmp_path / "store")
    made.make()
    return made
