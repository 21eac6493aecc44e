"""`dspreg paper` as it is typed; two items really run, at the smoke scale."""

import json
import os
import re
import signal

import pytest

from dspreg.cli import main
from dspreg.runs.store import RunStore


def typed(*words):
    return main(["paper", *map(str, words)])


def test_a_list_of_what_there_is(capsys):
    assert typed() == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: re.split(r" {2,}", line) for line in lines[:14]}
    assert rows["item"][2:] == ["runs: paper", "small", "smoke"]
    assert rows["main"][1:] == ["Table 1: means of five data sets", "26,400", "1,320", "40"]
    assert rows["components"][2:] == ["48", "80", "8"]
    assert rows["overhead"][2:] == ["timed", "timed", "timed"]
    assert "  overhead    2.9 → 2.8 steps/s, 22.9 → 24.3 GB" in lines


def test_an_item_without_a_scale_is_explained(capsys):
    assert typed("interval") == 0
    said = capsys.readouterr().out
    assert said.startswith("dspreg paper interval: Figure 2a: how often c is measured")
    assert "Cost: 4 variants × 4 targets × 3 trials = 48 runs" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["component", "--scale", "smoke"], "no item 'component'. Did you mean 'components'?"),
        (["components", "--scale", "smoke"], "Add --store DIR"),
        (["components", "--scale", "smoke", "--engine", "exat", "--dry-run"], "'exat'"),
        (["components", "--scale", "smoke", "--set", "algorithm=ERM", "--dry-run"], "--set algorithm: the item sets"),
        (["components", "--scale", "smoke", "--set", "stepz=3", "--dry-run"], "Did you mean 'steps'?"),
        (["components", "--scale", "smoke", "--trials", "0", "--dry-run"], "--trials '0'; wanted a whole number"),
        (
            ["maps", "--scale", "smoke", "--draws", "2", "--dry-run"],
            "--draws: a map compares one training",
        ),
        (["overhead", "--scale", "smoke", "--engine", "exat"], "'exat'"),
        (
            ["components", "--scale", "smoke", "--store", "new", "--device", "abacus"],
            "'abacus'; wanted auto, cpu",
        ),
        (["components", "--scale", "smoke", "--show"], "--show: of which runs? Add the --store DIR"),
        (["components", "--scale", "smoke", "--show", "--store", "new"], "new is no store of runs"),
        (["components", "--scale", "smoke", "--show", "--dry-run", "--store", "new"], "--show or --dry-run, not both"),
        (["components", "--store", "new"], "at which scale? Add --scale paper, small or smoke"),
        (["--scale", "smoke"], "which item? There are: main, "),
        (["overhead", "--scale", "smoke", "--store", "new"], "--store: overhead measures anew and keeps nothing"),
        (["overhead", "--scale", "smoke", "--trials", "2"], "--trials: overhead measures anew and keeps nothing"),
    ],
)
def test_what_is_refused_before_anything_is_run(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert typed(*words) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("more", [["--dry-run"], ["--show"], []])
def test_a_folder_of_something_else_is_no_store(more, capsys, tmp_path):
    (tmp_path / "letters").write_text("dear")
    assert typed("components", "--scale", "smoke", "--store", tmp_path, *more) == 2
    assert "no store of runs" in capsys.readouterr().err
    assert typed("components", "--scale", "smoke", "--store", tmp_path / "letters", *more) == 2
    assert [p.name for p in tmp_path.iterdir()] == ["letters"]


def test_pictures_can_not_go_into_a_file(capsys, tmp_path):
    (tmp_path / "file").write_text("dear")
    words = ["components", "--scale", "smoke", "--store", tmp_path / "store", "--figures", tmp_path / "file"]
    assert typed(*words) == 2
    assert "--figures" in capsys.readouterr().err
    assert not (tmp_path / "store").exists()


def test_no_picture_of_nothing(capsys, tmp_path):
    RunStore(tmp_path / "store").make()
    words = ["interval", "--scale", "smoke", "--store", tmp_path / "store", "--show", "--figures", tmp_path / "new"]
    assert typed(*words) == 0
    assert "no picture: no mean is there yet" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_overhead_stops_when_it_is_told_to(capsys, monkeypatch):
    from dspreg.paper import overhead

    def block(self, length, pause):
        os.kill(os.getpid(), signal.SIGINT)
        pause()
        raise AssertionError("it went on")

    monkeypatch.setattr(overhead.TimedVariant, "block", block)
    assert typed("overhead", "--scale", "smoke") == 130
    assert "stopp" in capsys.readouterr().err


def test_data_that_are_missing_are_said_once(capsys, tmp_path):
    """And not three times by each of 40 runs."""
    assert typed("dynamic", "--scale", "small", "--root", tmp_path, "--store", tmp_path / "store") == 3
    assert capsys.readouterr().err.count("PACS was not found") == 1
    assert not (tmp_path / "store").exists()


def test_dry_runs(capsys, tmp_path):
    assert typed("strength", "--scale", "small", "--engine", "lookahead", "--trials", 2, "--dry-run") == 0
    rows = [re.split(r" {2,}", line) for line in capsys.readouterr().out.splitlines()]
    assert sum(row[0] == "PACS" for row in rows) == 8
    assert ["all", "64"] in [row[:2] for row in rows]
    assert typed("overhead", "--scale", "small", "--dry-run") == 0
    assert "9 variants (ERM, exact, finite_difference, gauss_newton, " in capsys.readouterr().out


def test_components_at_the_smoke_scale(capsys, tmp_path):
    """λ = 0 is ERM; what is printed is what the store holds; again, and nothing is trained."""
    command = ["components", "--scale", "smoke", "--store", tmp_path / "store", "--jobs", 0, "--format", "json"]
    assert typed(*command, "--figures", tmp_path / "pictures") == 0
    said = capsys.readouterr()
    assert said.err.count("[") == 8
    found = {table["name"]: table for table in json.loads(said.out)["tables"]}
    assert list(found) == ["components: scale", "components", "components: differences"]
    assert "NOT THE PAPER'S SCALE" in found["components: scale"]["title"]
    store = RunStore(tmp_path / "store")
    rows = {row["row"]: row["cells"] for row in found["components"]["rows"] if row["source"] == "ours"}
    assert [rows[name]["refreshes"]["text"] for name in rows] == ["3", "0", "0", "3"]
    assert [rows[name]["planned"]["text"] for name in rows] == ["3", "0", "0", "3"]
    assert {cells["runs"]["text"] for cells in rows.values()} == {"2/2"}
    for run in store.planned_runs():
        if run.algorithm == "DSPReg(weight=0.0)":
            accuracy = store.status(run).result["selected"]["accuracy"][run.targets[0]]["in"]
            assert rows["λ = 0"][run.targets[0]]["value"] == pytest.approx(100 * accuracy)
    assert {row["cells"]["verdict"]["text"] for row in found["components: differences"]["rows"]} == {
        "none: fewer than 5 pairs"
    }
    assert (tmp_path / "pictures/components.png").stat().st_size > 5_000
    assert not list(tmp_path.rglob("*.safetensors"))  # tables need no models

    assert typed(*command) == 0
    again = capsys.readouterr()
    assert again.out == said.out
    assert again.err.count(", as before") == 8
    assert typed("dynamic", "--scale", "smoke", "--store", tmp_path / "store", "--show", "--format", "json") == 0
    shared = json.loads(capsys.readouterr().out)["tables"][1]["rows"]
    assert [row["cells"]["runs"]["text"] for row in shared if row["source"] == "ours"] == ["2/2", "0/2"]


def test_maps_at_the_smoke_scale(capsys, tmp_path):
    command = ["maps", "--scale", "smoke", "--store", tmp_path / "store", "--jobs", 0, "--format", "json"]
    assert typed(*command, "--figures", tmp_path / "pictures") == 0
    found = json.loads(capsys.readouterr().out)["tables"]
    rows = {row["row"]: row["cells"] for row in found[1]["rows"]}
    assert list(rows) == ["before", "after ERM", "after DSP-Reg"]
    assert "featurizer.layers.6, convolution 3, the last there is, in place of the 13th" in found[1]["title"]

    from dspreg.sensitivity import Profile

    store = RunStore(tmp_path / "store")
    erm, ours = ((store.folder(run) / "profiles") for run in store.planned_runs())
    samples = []
    for label, path in (("before", erm / "start"), ("after ERM", erm / "end"), ("after DSP-Reg", ours / "end")):
        profile = Profile.load(path.with_suffix(".safetensors"))
        samples.append(profile.settings["domains"])
        by_hand = [float(part["featurizer.layers.6.weight"][profile.mean["featurizer.layers.6.weight"] > 0].mean())
                   for part in (profile.c, profile.null)]  # fmt: skip
        assert [rows[label][name]["value"] for name in ("layer: mean c", "null")] == pytest.approx(by_hand, rel=1e-5)
    assert samples[0] == samples[1] == samples[2]  # fewer images have a higher floor
    assert rows["after DSP-Reg"]["refreshes"]["text"] == rows["after DSP-Reg"]["planned"]["text"] == "3"
    differences = {row["row"]: row["cells"]["difference"]["value"] for row in found[2]["rows"]}
    excess = {label: rows[label]["c − null"]["value"] for label in rows}
    assert differences["after DSP-Reg − before"] == pytest.approx(excess["after DSP-Reg"] - excess["before"])
    assert differences["after DSP-Reg − after ERM"] == pytest.approx(excess["after DSP-Reg"] - excess["after ERM"])
    assert "no verdict" in found[2]["notes"][-1]
    assert (tmp_path / "pictures/maps.png").stat().st_size > 20_000
