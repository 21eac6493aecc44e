"""The soak in small, and that it would see what grows."""

import os

import pytest

from faults import small
from faults.soak import judge, memory, soak


def samples(**grows):
    """A hundred of them; what is named grows by so much a run."""
    usual = {
        "sweeper's memory": 4e8, "reader's memory": 4e8, "sweeper's descriptors": 12, "reader's descriptors": 10,
    }  # fmt: skip
    return [
        {name: value + grows.get(name, 0) * run for name, value in usual.items()}
        | {"runs": run, "bytes": 5000 * run + grows.get("bytes", 0) * run**2}
        | {f"seconds of {name}": 1e-3 * run + grows.get(name, 0) * run**4 for name in ("status", "report")}
        for run in range(10, 1010, 10)
    ]


def test_runs_and_reads_side_by_side():
    with small.make_place() as place:
        found = soak(small.Path(place), 8)
    assert len(found) > 1
    assert found[-1]["runs"] > found[0]["runs"]


def test_what_is_flat_is_flat():
    figures, passed = judge(samples(**{"sweeper's memory": 1000}))  # what the results of the runs take
    assert passed
    assert figures["not flat"] == []


@pytest.mark.parametrize(
    ("name", "slope"),
    [
        ("sweeper's memory", 1e5),
        ("reader's memory", 1e5),
        ("sweeper's descriptors", 0.01),
        ("reader's descriptors", 1),
        ("bytes", 5),
        ("report", 1e-9),
        ("status", 1e-9),
    ],
)
def test_what_grows_is_seen(name, slope):
    figures, passed = judge(samples(**{name: slope}))
    assert not passed
    assert [name in each for each in figures["not flat"]] == [True]


def test_a_process_that_has_ended_has_no_memory_to_speak_of():
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # ended, and not waited for yet
    with pytest.raises(ProcessLookupError):
        memory(child)
    os.waitpid(child, 0)
    assert memory(os.getpid()) > 1e6
