"""What is planned, and what a plan refuses to be taken for."""

import json
import math

import pytest

from dspreg import ConfigError, Execution, IntegrityError, leave_one_out
from dspreg.sites.asked import Asked, parse_budget
from dspreg.sites.check import fingerprints, open_sites, remarks
from dspreg.sites.choose import make_plan
from dspreg.sites.plan import FILE, Plan, compares_domains, method_name
from helpers import tiny

OPTIONS = {"model": "small-cnn", "image_size": 16, "batch_size": 4, "steps": 8, "evaluate_every": 4}


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return tiny.make_images(tmp_path_factory.mktemp("images") / "woods")


def plan(**changes):
    made = {
        "dataset": "folder:woods", "name": "woods", "fingerprints": dict.fromkeys(tiny.DOMAINS, "0" * 64),
        "classes": tiny.CLASSES, "methods": ("SWA", "Agreement+SWA"), "options": OPTIONS, "trials": 2,
        "seconds": {"SWA": 1.0, "Agreement+SWA": 2.0},
        "notes": ("a", "b"), "asked": {},
    }  # fmt: skip
    return Plan(**{**made, **changes})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2h", 7200), ("90min", 5400), ("1h30min", 5400), ("45 s", 45), ("1.5h", 5400), ("2 days", 172_800)],
)
def test_a_budget_is_a_time(text, seconds):
    assert parse_budget(text) == seconds


@pytest.mark.parametrize("text", ["", "2", "h", "2 weeks", "-1h", "0s", "2h x", "nan min"])
def test_a_budget_that_is_none_is_refused(text):
    with pytest.raises(ConfigError, match=r"--budget .*2h, 90min"):
        parse_budget(text)


def test_the_runs_are_those_of_an_ordinary_sweep():
    every = list(
        leave_one_out({"folder:woods": tiny.DOMAINS}, ["SWA"], trials=1, draws=1, options=OPTIONS, name="woods")
    )
    found = plan()
    assert [r.id for r in every if len(r.targets) == 2] == [r.id for r in found.pair_runs("SWA")]
    assert len(found.pair_runs("SWA")) == math.comb(4, 2)
    held_out = {(r.algorithm, r.targets, r.trial) for r in found.held_out_runs()}
    assert held_out == {(m, (s,), t) for m in found.methods for s in tiny.DOMAINS for t in range(2)}
    assert {r.id for r in every if len(r.targets) == 1} <= {r.id for r in found.held_out_runs()}


def test_a_plan_is_read_as_it_was_written(tmp_path):
    assert Plan.load(tmp_path / "none") is None
    plan().save(tmp_path)
    assert Plan.load(tmp_path) == plan()
    value = json.loads((tmp_path / FILE).read_text())
    del value["methods"]
    (tmp_path / FILE).write_text(json.dumps(value))
    with pytest.raises(IntegrityError, match="damaged"):
        Plan.load(tmp_path)
    (tmp_path / FILE).write_text(json.dumps({"format": "other"}))
    with pytest.raises(IntegrityError, match=r"dspreg\.estimate/1"):
        Plan.load(tmp_path)
    (tmp_path / FILE).unlink()
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is not empty"):
        Plan.load(tmp_path)


def test_other_images_and_other_wishes_are_another_plan(images):
    data = open_sites(f"folder:{images}")
    prints = fingerprints(data)
    begun = plan(fingerprints=prints, asked=Asked(methods=("SWA",), budget=60.0).to_json())
    begun.require(data, prints, Asked())
    begun.require(data, prints, Asked(methods=("SWA",)))
    with pytest.raises(ConfigError, match="begun with --methods SWA, not ERM"):
        begun.require(data, prints, Asked(methods=("ERM",)))
    with pytest.raises(ConfigError, match="begun with --steps left open, not 7"):
        begun.require(data, prints, Asked(steps=7))
    with pytest.raises(ConfigError, match="other images at ash"):
        begun.require(data, {**prints, "ash": "1" * 64}, Asked())
    fewer = {name: value for name, value in prints.items() if name != "elm"}
    with pytest.raises(ConfigError, match="sites gone elm"):
        begun.require(data, fewer, Asked())


def test_a_budget_is_told_as_the_time_it_is(images):
    data = open_sites(f"folder:{images}")
    prints = fingerprints(data)
    begun = plan(fingerprints=prints, asked=Asked(budget=5400.0).to_json())
    with pytest.raises(ConfigError, match=r"begun with --budget 90 min, not 30 min\. Leave it out"):
        begun.require(data, prints, Asked(budget=1800.0))
    begun.require(data, prints, Asked(budget=5400.0))
    with pytest.raises(ConfigError, match=r"begun with lr left open, not 0\.1"):
        begun.require(data, prints, Asked(options={"lr": 0.1}))


def test_what_fits_is_chosen_and_what_does_not_is_told(images):
    data = open_sites(f"folder:{images}")
    prints, said = fingerprints(data), []
    execution = Execution(threads=1, workers=0, device="cpu")
    asked = Asked(methods=("SWA",), budget=1e6, steps=70, trials=2, options={"batch_size": 4})
    found = make_plan(data, prints, f"folder:{images}", asked, execution, say=said.append)
    assert found.options["model"] == "small-cnn"  # images of 20 pixels
    assert (found.options["steps"], found.options["batch_size"], found.trials) == (70, 4, 2)
    assert found.methods == ("SWA",)
    assert found.seconds["SWA"] > 0
    assert list(found.notes) == said
    assert "8 trainings with a site held out, 1 on all sites" in said[-1]
    with pytest.raises(ConfigError, match=r"has no room for the least.* Give --budget \d+min"):
        make_plan(data, prints, f"folder:{images}", Asked(methods=("SWA",), budget=0.5), execution)


def test_methods_in_words():
    assert method_name("SWA") == "ERM with averaged weights"
    assert method_name("Agreement+SWA") == "Agreement with averaged weights"
    assert method_name("ERM") == "ERM"
    assert method_name("CORAL(weight=2.0)") == "CORAL(weight=2.0)"
    assert compares_domains("Agreement+SWA")
    assert not compares_domains("SWA")


def test_what_makes_the_answer_worse_is_said(tmp_path):
    root = tiny.make_images(tmp_path / "woods", per_class=3)
    assert [each for each in remarks(open_sites(f"folder:{root}")) if "few images" not in each] == []
    (root / "elm" / "cat" / "copy.png").write_bytes((root / "ash" / "cat" / "00.png").read_bytes())
    (root / "birch" / "owl").mkdir()
    (root / "birch" / "owl" / "a.png").write_bytes((root / "birch" / "cat" / "00.png").read_bytes())
    found = remarks(open_sites(f"folder:{root}"))
    assert any("class 'owl' is at one site alone, 'birch'" in each for each in found)
    assert any(
        "1 image is at several sites, byte for byte, e.g. ash/cat/00.png = elm/cat/copy.png" in each for each in found
    )
    assert any("'ash' (9 images)" in each for each in found)


def test_weights_that_cannot_be_had_are_done_without(images):
    data, said = open_sites(f"folder:{images}"), []
    options = {"batch_size": 2, "weights": "default"}
    asked = Asked(methods=("SWA",), budget=1e6, steps=60, trials=1, image_size=16, options=options)
    execution = Execution(threads=1, workers=0, device="cpu")
    made = make_plan(data, fingerprints(data), f"folder:{images}", asked, execution, say=said.append)
    assert made.options["model"] == "small-cnn"
    assert any("no pretrained network can be had" in each for each in said)


def test_the_final_training_sees_every_image_unless_its_method_decides_by_some():
    made = plan(options={**OPTIONS, "select_by": "balanced"})
    assert made.final_options("SWA") == {**OPTIONS, "holdout": 0.0}
    assert made.final_options("SWAD") == {**OPTIONS, "select_by": "balanced"}
    assert made.metric == "balanced"
    assert plan(options={**OPTIONS, "holdout": 0.4}).final_options("SWA")["holdout"] == 0.0
    assert plan().metric == "accuracy"
