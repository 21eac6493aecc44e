"""Some of the hundred bad inputs; `python tests/faults/bad_inputs.py` has them all."""

import pytest

from faults.bad_inputs import ROWS, SOME, Answer, answer, furnish


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    made = tmp_path_factory.mktemp("place")
    furnish(made)
    return made


def test_there_are_a_hundred():
    assert len(ROWS) == len({typed for typed, _, _ in ROWS}) == 100


@pytest.mark.parametrize(("typed", "code", "words"), ROWS[SOME], ids=[typed for typed, _, _ in ROWS[SOME]])
def test_a_bad_input_is_answered_well(place, typed, code, words):
    found = answer(typed, place)
    assert found.verdict(code, words) == "well", found


def test_a_command_that_is_right_is_no_bad_input(place):
    """Verdicts can be bad."""
    assert answer("data list", place).verdict(2, ()) == "bad"


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (Answer("x", 2, "dspreg: x is wrong", ()), "well"),
        (Answer("x", 2, "dspreg: wrong", ()), "weak"),
        (Answer("x", 1, "dspreg: x is wrong", ()), "bad"),
        (Answer("x", None, "dspreg: x is wrong", ()), "bad"),
        (Answer("x", 2, "dspreg: x\nTraceback", ()), "bad"),
        (Answer("x", 2, "dspreg: x is wrong", ("x",)), "bad"),
    ],
)
def test_verdicts(found, verdict):
    assert found.verdict(2, ("x",)) == verdict
