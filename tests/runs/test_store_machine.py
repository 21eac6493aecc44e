"""Sequences of events on a store, drawn by Hypothesis; DSPREG_EXAMPLES=500 draws more."""

import os
from contextlib import nullcontext

import pytest

from dspreg.runs.leases import Leases
from dspreg.runs.store import RunStore
from faults.store_machine import run_machine

EXAMPLES = int(os.environ.get("DSPREG_EXAMPLES", "50"))


def test_the_invariants_hold_after_every_event():
    run_machine(EXAMPLES, steps=50)


MISTAKES = {
    "no fence": (Leases, "guard", lambda self, lease: nullcontext()),
    "failures are not kept": (RunStore, "fail", lambda self, run, error, *, fence=nullcontext: None),
    "cancelled runs are claimed": (RunStore, "cancel", lambda self, run: None),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_breaks_them(mistake, monkeypatch):
    monkeypatch.setattr(*MISTAKES[mistake])
    with pytest.raises(AssertionError):
        run_machine(100, steps=50, seed=0, shrink=False)
