"""The mutants that are quick to catch; `tests/faults/mutants.py` has all twelve."""

import pytest

from faults.mutants import MUTANTS, run_check

QUICK = ("M1", "M4", "M8", "M10", "M11", "M12")


@pytest.mark.parametrize("mutant", [each for each in MUTANTS if each.number in QUICK], ids=lambda each: each.number)
def test_a_mistake_is_caught(mutant):
    with mutant.mutate():
        assert run_check(mutant.check)


def test_there_are_twelve():
    assert [each.number for each in MUTANTS] == [f"M{n}" for n in range(1, 13)]
