"""Some of the cases of `tests/faults/environment.py`."""

import pytest

from faults.environment import run_cases


@pytest.mark.parametrize("kind", ["a disk of", "descriptors", "SIGTERM after"])
def test_what_hinders_is_said_and_loses_nothing(kind, capfd):
    figures, passed = run_cases(4, seed=1, only=kind)
    assert passed, figures
    assert figures["cases"] + len(figures.get("left out, they need root", [])) >= 3
