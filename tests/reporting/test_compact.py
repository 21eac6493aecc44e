"""Runs in the form a report keeps: every number as it was, and what is equal kept once."""

import json
import random
import tracemalloc

import pytest

from dspreg.protocol.selection import RULES, RunResult
from dspreg.reporting.compact import Compactor
from dspreg.reporting.conditions import group_runs
from dspreg.reporting.load import read_runs
from helpers.runs import single, write_run

DOMAINS = ("ash", "birch", "cedar")


def record(step, *, last=False, loss=True, seed=0):
    r = random.Random(f"{seed} {step}")
    accuracy = {name: {"out": r.random(), "in": r.random()} if last else {"out": r.random()} for name in DOMAINS[1:]}
    found = {"step": step, "accuracy": {"ash": {"in": r.random()}, **accuracy}, "validation": r.random()}
    return {**found, "log": {"loss": r.random()}} if loss else found


def result(records, **more):
    given = {"dataset": "trees", "algorithm": "ERM", "domains": DOMAINS, "targets": ("ash",), **more}
    return RunResult(records=records, **given)


@pytest.mark.parametrize(
    "records",
    [
        [],
        [record(0)],
        [record(0, loss=False), record(100), record(200, last=True)],  # no two of one shape
        [{**record(0), "accuracy": {}}, record(1)],
    ],
    ids=["none", "one", "three shapes", "an empty one"],
)
def test_records_come_back_to_the_last_bit(records):
    found = Compactor().compact(result(records)).records
    assert [dict(each) for each in found] == records
    assert len(found) == len(records)
    assert found[-2:] == records[-2:]
    assert [*found] == [*found]  # as often as one likes
    if records:
        assert found[-1] == records[-1]
        assert [*found[-1]["accuracy"]] == [*records[-1]["accuracy"]]  # the order of domains, too


def test_what_no_report_looks_at_is_left_out():
    (each,) = Compactor().compact(result([{**record(0), "seconds": {"step_seconds": 1.0}, "epoch": 3}])).records
    assert each.keys() == {"step", "accuracy", "validation", "log"}


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_chooses_as_from_the_records_themselves(rule):
    runs = [
        result([record(s, last=s == 600, seed=seed) for s in range(0, 601, 100)], draw=seed, id=str(seed))
        for seed in range(5)
    ]
    compactor = Compactor()
    assert RULES[rule](map(compactor.compact, runs), "ash") == RULES[rule](runs, "ash")


def test_conditions_that_only_look_equal_are_not_shared():
    values = [1, 1.0, True, "1", 0.0, -0.0, None]
    compactor = Compactor()
    found = [compactor.compact(result([], conditions={"x": value})).conditions["x"] for value in values]
    assert list(map(repr, found)) == list(map(repr, values))
    first, second = (compactor.compact(result([], conditions={"x": json.loads("12345")})) for _ in range(2))
    assert first.conditions is second.conditions


def test_rows_are_those_of_runs_that_share_nothing():
    def make(n):
        conditions = {"steps": 100 + n % 2, "device": "cpu"}
        return result([], conditions=conditions, options={"lr": n // 2}, trial=n, id=str(n))

    def runs(keep):
        return [keep(make(n)) for n in range(8)]

    apart, shared = group_runs(runs(lambda run: run)), group_runs(runs(Compactor().compact))
    assert {key: [run.id for run in found] for key, found in shared.items()} == {
        key: [run.id for run in found] for key, found in apart.items()
    }
    assert len(shared) == 8  # two numbers of steps, four learning rates


def test_a_hundred_more_runs_take_a_few_kilobytes_each(tmp_path):
    records = [single(step, "ash", 0.5, step / 1000) for step in range(0, 300, 10)]
    for trial in range(110):
        write_run(tmp_path / f"{trial:03}", records, trial=trial, finish=True)
    tracemalloc.start()
    try:
        small, _ = read_runs(tmp_path)
        kept = tracemalloc.get_traced_memory()[0] / len(small)
        tracemalloc.reset_peak()
        del small
        whole, _ = read_runs(tmp_path, whole=True)
        all_of_it = tracemalloc.get_traced_memory()[0] / len(whole)
    finally:
        tracemalloc.stop()
    assert kept < 5_000  # bytes of a run of 30 records, of which 30 · 6 numbers of 8 bytes
    assert kept < all_of_it / 4
