"""An option that came later: records of runs that have what all runs had before leave it out, and are read as such."""

import dataclasses
from dataclasses import MISSING
from types import SimpleNamespace

import pytest

from dspreg.config import train_config
from dspreg.config.options import Option
from dspreg.config.train_config import TRAIN_OPTIONS, TrainConfig, complete_record, resolve_config

DIGITS = SimpleNamespace(name="digits", steps=301, evaluate_every=50, image_size=28, small=True, own=False)


@pytest.fixture
def later(monkeypatch):
    """`holdout`, as if it had come later and had been 0.5 in all runs before."""
    changed: dict[str, Option] = {**TRAIN_OPTIONS, "holdout": dataclasses.replace(TRAIN_OPTIONS["holdout"], before=0.5)}
    monkeypatch.setattr(train_config, "TRAIN_OPTIONS", changed)


def test_a_record_leaves_it_out_only_where_it_is_what_it_was(later):
    assert "holdout" not in resolve_config(TrainConfig(dataset="digits", holdout=0.5), DIGITS).to_record()
    assert resolve_config(TrainConfig(dataset="digits"), DIGITS).to_record()["holdout"] == 0.2


def test_a_record_that_leaves_it_out_is_read_with_what_it_was(later):
    made = resolve_config(TrainConfig(dataset="digits", holdout=0.5), DIGITS)
    assert TrainConfig.from_record(made.to_record()) == made
    found = complete_record({"lr": 1.0})
    assert found.keys() - {"lr", "holdout"} == {n for n, each in TRAIN_OPTIONS.items() if each.before is not MISSING}
    assert (found["lr"], found["holdout"]) == (1.0, 0.5)


def test_what_is_left_open_goes_on_as_it_was_begun(later):
    config = TrainConfig(dataset="digits")
    assert resolve_config(config, DIGITS, begun={"dataset": "digits"}).holdout == 0.5
    assert resolve_config(config, DIGITS, begun={"dataset": "digits", "holdout": 0.3}).holdout == 0.3
    assert resolve_config(TrainConfig(dataset="digits", holdout=0.1), DIGITS, begun={}).holdout == 0.1  # and is refused
