"""A few of `make kills`, which runs thirty."""

from faults.kill import kill_runs


def test_killed_runs_end_in_the_same_bits():
    figures, passed = kill_runs(runs=10, seed=1, full=10)
    assert passed, figures
    assert figures["bit-identical"] == 10
    assert figures["kills"] >= 20
    assert sum(n > 0 for n in figures["kills by phase"].values()) >= 7
