"""Some of the claims of `tests/faults/claims.py`."""

from faults.claims import claim_all, jump_clocks, wake_zombies


def test_no_claim_is_doubled_or_lost():
    found = claim_all(1500, 3, seed=0)
    assert found["claims"] >= 1500
    assert (found["claims doubled"], found["runs lost"]) == (0, 0)


def test_what_a_sleeper_writes_is_refused():
    found = wake_zombies(5, seed=0)
    assert found["zombies refused"] == 5, found
    assert found["of them trainings"] == 1


def test_the_wall_clock_decides_nothing():
    assert jump_clocks(5, seed=0)["clocks wrong"] == 0
