"""One derivation of a run's status: every combination of facts, and the sentence for each status."""

import itertools
import json

import pytest

from dspreg.errors import IntegrityError
from dspreg.runs.leases import LeaseInfo
from dspreg.runs.status import Failure, RunState, RunStatus, derive_state, describe_state, read_failure

LIVE = LeaseInfo("run", "0 elsewhere 1 2", 120, 500.0)
EXPIRED = LeaseInfo("run", "0 elsewhere 1 2", 120, -1.0)
FAILURES = {
    "none": None,
    "diverged": Failure("the loss is not finite"),
    "failed": Failure("no images", attempts=2),
    "cancelled": Failure("dspreg retry takes it up again", attempts=2, cancelled=True),
}


def expected(begun, finished, failure, lease, damage):
    """The same rule, as a list of cases from the strongest fact to the weakest."""
    cases = [
        (damage, "damaged"),
        (finished, "finished"),
        (failure == "cancelled", "cancelled"),
        (failure == "diverged", "failed"),
        (lease is LIVE, "running"),
        (failure == "failed", "failed"),
        (begun, "stopped"),
        (True, "not started"),
    ]
    return next(status for holds, status in cases if holds)


def test_every_combination_of_facts():
    seen = set()
    for begun, finished, failure, lease, damage in itertools.product(
        (False, True), (False, True), FAILURES, (None, LIVE, EXPIRED), ("", "a file is missing")
    ):
        state = derive_state(
            begun=begun, finished=finished, failure=FAILURES[failure], lease=lease, damage=damage, step=100, steps=301
        )
        assert state.status == expected(begun, finished, failure, lease, damage)
        seen.add(state.status)
    assert seen == set(RunStatus)


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ({}, "not started"),
        ({"begun": True}, "stopped before its first record"),
        ({"begun": True, "step": 100, "steps": 5001}, "stopped at step 100 of 5,001"),
        ({"lease": LIVE}, "running at step 120 (held by a sweeper)"),
        ({"lease": LIVE, "begun": True, "step": 60, "steps": 301}, "running at step 120 of 301 (held by a sweeper)"),
        ({"lease": LIVE, "begun": True, "step": 180, "steps": 301}, "running at step 180 of 301 (held by a sweeper)"),
        ({"finished": True, "begun": True}, "finished"),
        ({"failure": FAILURES["diverged"]}, "failed: the loss is not finite"),
        ({"failure": FAILURES["failed"]}, "failed after 2 attempts: no images"),
        ({"failure": Failure("no images", attempts=1)}, "failed after 1 attempt: no images"),
        ({"failure": FAILURES["cancelled"]}, "cancelled: dspreg retry takes it up again"),
        ({"damage": "a file is missing"}, "damaged: a file is missing"),
    ],
)
def test_the_sentence_for_each_status(facts, sentence):
    assert describe_state(derive_state(**facts)) == sentence


@pytest.mark.parametrize(
    ("state", "final", "summary"),
    [
        (RunState(RunStatus.NOT_STARTED), False, "waiting"),
        (RunState(RunStatus.STOPPED), False, "waiting"),
        (RunState(RunStatus.RUNNING), False, "running"),
        (RunState(RunStatus.RUNNING, "no images", attempts=3), False, "running"),
        (RunState(RunStatus.FINISHED), True, "finished"),
        (RunState(RunStatus.FAILED, "no images", attempts=2), False, "waiting"),
        (RunState(RunStatus.FAILED, "no images", attempts=3), True, "failed"),
        (RunState(RunStatus.FAILED, "the loss is not finite"), True, "failed"),
        (RunState(RunStatus.CANCELLED), True, "cancelled"),
        (RunState(RunStatus.DAMAGED), True, "failed"),
    ],
)
def test_what_a_sweep_of_three_attempts_does_with_it(state, final, summary):
    assert (state.is_final(3), state.summary(3)) == (final, summary)


def test_a_failure_record(tmp_path):
    path = tmp_path / "failure.json"
    assert read_failure(path) is None
    path.write_text(json.dumps({"step": 3, "reason": "the loss is not finite"}))
    assert read_failure(path) == ("the loss is not finite", 0, False, {"step": 3, "reason": "the loss is not finite"})
    path.write_text(json.dumps({"reason": "no images", "attempts": 2, "cancelled": True}))
    assert read_failure(path)[:3] == ("no images", 2, True)
    for damaged in ("", "{", "[]", "null", '{"attempts": 1}', '{"reason": "x", "attempts": "many"}'):
        path.write_text(damaged)
        with pytest.raises(IntegrityError, match=r"failure\.json(: attempts is 'many'| can't be read)"):
            read_failure(path)


def test_a_failure_that_is_removed_while_it_is_read_is_none(tmp_path, monkeypatch):
    from dspreg.runs import status as run_status

    def read_too_late(path):
        path.unlink()
        raise IntegrityError(f"{path} can't be read")

    path = tmp_path / "failure.json"
    path.write_text("{}")
    monkeypatch.setattr(run_status, "read_json", read_too_late)
    assert read_failure(path) is None
