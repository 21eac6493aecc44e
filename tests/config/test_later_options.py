"""An option that came later: records of runs that have what all runs had before leave it out, and are read as such."""

import dataclasses
from dataclasses import MISSING
from types import SimpleNamespace

import pytest

from dspreg.config import train_config
from dspreg.config.options import Option
from dspreg.config.reading import Reading
from dspreg.config.train_config import TRAIN_OPTIONS, TrainConfig, complete_record, resolve_config
from dspreg.errors import ConfigError
from dspreg.runs.run import Run

DIGITS = SimpleNamespace(
    name="digits", steps=301, evaluate_every=50, image_size=28, channels=3, small=True, own=False, tensors=False
)
UNSAID = {"exif": False, "alpha": "drop", "window": "none", "channels": 3, "resize": "squash", "shrink": False}
PHOTOS = SimpleNamespace(
    name="photos", steps=5_001, evaluate_every=300, image_size=224, channels=3, small=False, own=True, tensors=False
)
BENCHMARK = SimpleNamespace(**{**vars(PHOTOS), "name": "PACS", "own": False})


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


# How images are read.


def test_benchmarks_say_nothing_of_how_images_are_read_and_are_read_as_they_were():
    made = resolve_config(TrainConfig(dataset="PACS"), BENCHMARK)
    assert not UNSAID.keys() & made.to_record().keys()
    assert made.reading == Reading()
    assert made.resize == "squash"


def test_images_of_ones_own_say_how_they_are_read():
    record = resolve_config(TrainConfig(dataset="folder:photos"), PHOTOS).to_record()
    said = {name: record[name] for name in UNSAID.keys() & record.keys()}
    assert said == {"exif": True, "alpha": "white", "window": "auto", "shrink": True}
    assert TrainConfig.from_record(record).reading == Reading(True, "white", "auto", 3, 448)


def test_a_run_that_was_begun_before_goes_on_with_pixels_as_they_were():
    begun = {"dataset": "photos", "augment": True}
    made = resolve_config(TrainConfig(dataset="folder:photos"), PHOTOS, begun)
    assert made.reading == Reading()
    assert not UNSAID.keys() & made.to_record().keys()


# What was true or false: which augmentation.


@pytest.mark.parametrize(("then", "now"), [(True, "domainbed"), (False, "none")])
def test_records_have_true_and_false_where_they_had_them(then, now):
    """The id of a run is a hash of its record: of what was true it must stay that of true."""
    made = resolve_config(TrainConfig(dataset="PACS", augment=now), BENCHMARK)
    assert made.augment == now
    assert made.to_record()["augment"] is then
    assert TrainConfig.from_record(made.to_record()) == made
    assert TrainConfig(dataset="PACS", augment=then) == TrainConfig(dataset="PACS", augment=now)
    assert complete_record({"augment": then})["augment"] == now


@pytest.mark.parametrize("name", ["light", "trivial", "augmix", "mine.change"])
def test_other_augmentations_are_recorded_by_name_and_validate_on_plain_images(name):
    made = resolve_config(TrainConfig(dataset="PACS", augment=name), BENCHMARK)
    assert made.to_record()["augment"] == name
    assert made.augment_validation is False
    assert dataclasses.replace(made, augment_validation=True).validation_augment == name


def test_plan_ids_are_those_of_true_and_false():
    given = {"dataset": "PACS", "targets": ("sketch",), "algorithm": "ERM"}
    ids = {}
    for value in (True, False, "domainbed", "none", "light"):
        run = Run(**given, options={"augment": value})
        ids[value] = run.id
        assert Run.from_json(run.to_json()) == run
    assert ids["domainbed"] == ids[True] != ids[False] == ids["none"] != ids["light"]
    assert ids[False] == "1d323185de6a2ed2"  # as of the version in which it was false
    assert ids[True] == "11d08c9916b14d0b"


@pytest.mark.parametrize("value", [0, 1, "true", "heavy", [], {}, "a b.c"])
def test_what_is_no_augmentation_is_refused(value):
    with pytest.raises(ConfigError, match="wanted domainbed, none, light, trivial, augmix or a function of yours"):
        TrainConfig(dataset="PACS", augment=value)


@pytest.mark.parametrize("value", ["", "5", "5:5", "9:1", "nan:1", "0:inf", "1:2:3", "a:b"])
def test_what_is_no_window_is_refused(value):
    with pytest.raises(ConfigError, match=r"wanted auto, percentile, MIN:MAX"):
        TrainConfig(dataset="PACS", window=value)
    assert TrainConfig(dataset="PACS", window="-1e3:4.5e2").window == "-1e3:4.5e2"


def test_colours_are_changed_of_colour_images_only():
    with pytest.raises(ConfigError, match="augment=trivial changes colours, and images of 5 channels have none"):
        resolve_config(TrainConfig(dataset="folder:photos", channels=5, augment="trivial"), PHOTOS)
    assert resolve_config(TrainConfig(dataset="folder:photos", channels=5), PHOTOS).augment == "light"
