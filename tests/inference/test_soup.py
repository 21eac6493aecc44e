"""Soups against means by numpy and choices by a naive loop; folders that everything reads; and what is refused."""

import hashlib
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import dspreg
from dspreg.cli import main
from dspreg.errors import ConfigError, DataError, IntegrityError
from dspreg.inference import soup_folder
from dspreg.inference.export import export
from dspreg.inference.soup_candidates import MixedBatches
from dspreg.inference.soup_members import average_tensors, interpolate_tensors, read_member, tensors_at_start
from dspreg.runs.folder import RunFolder
from dspreg.training.evaluate import tallies
from dspreg.training.experiment import prepare_experiment
from dspreg.training.model import tensors_of
from dspreg.training.stored_model import read_model_file
from helpers.small_runs import CLASSES, DOMAINS, EXECUTION, photos, trained

pytestmark = pytest.mark.filterwarnings("ignore::dspreg.Notice")
BATCH_NORM = {"model": "test_resnet", "image_size": 24, "frozen_bn": False}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Runs that differ in what search draws, in their method, and in more than may be."""
    place = tmp_path_factory.mktemp("soup")
    folder = photos(place / "photos", each=20)
    for name, settings in {
        "a": {"lr": 1e-3},
        "b": {"lr": 3e-3},
        "c": {"lr": 3e-2},
        "coral": {"algorithm": "CORAL"},
        "ema": {"algorithm": "EMA(decay=0.5)"},
        "arm": {"algorithm": "ARM(width=4)"},
        "trial1": {"trial": 1},
        "dusk": {"targets": ("dusk",)},
        "size": {"image_size": 32},
        "norm1": BATCH_NORM,
        "norm2": {**BATCH_NORM, "lr": 1e-2},
    }.items():
        trained(folder, place / name, **{"steps": 6, "evaluate_every": 3, **settings})
    return place


def runs(place, *names):
    return [place / name for name in names]


def tensors(run, which="selected"):
    return read_model_file(run / f"{which}.safetensors")[1]


def average(place, out, *names, **options):
    return dspreg.average_runs(runs(place, *names), out, execution=EXECUTION, **options)


def same(one, two):
    return one.keys() == two.keys() and all(torch.equal(t, two[name]) for name, t in one.items())


def test_a_soup_of_equal_members_is_the_member_to_the_bit(place, tmp_path):
    for n in range(3):
        shutil.copytree(place / "b", tmp_path / f"copy{n}")
    copies = [tmp_path / f"copy{n}" for n in range(3)]
    for name, greedy in (("uniform", False), ("greedy", True)):
        found = dspreg.average_runs(copies, tmp_path / name, greedy=greedy, execution=EXECUTION)
        assert same(tensors(tmp_path / name), tensors(place / "b"))
        assert [each["accepted"] for each in found["soup"]["members"]] == [True] * 3
        then = RunFolder(place / "b").result()["selected"]
        assert (found["selected"]["validation"], then["validation"]) == (pytest.approx(then["validation"]),) * 2


def test_the_mean_is_that_of_numpy(place, tmp_path):
    average(place, tmp_path / "soup", "a", "b", "c", which="last")
    members = [tensors(place / name, "last") for name in "abc"]
    for name, ours in tensors(tmp_path / "soup").items():
        expected = np.mean([each[name].numpy().astype(np.float64) for each in members], axis=0)
        np.testing.assert_array_equal(ours.numpy(), expected.astype(np.float32))
    assert not same(tensors(tmp_path / "soup"), members[0])


def test_tensors_that_are_no_weights_are_those_of_the_first():
    one, two = {"n": torch.tensor(3), "w": torch.tensor([1.0])}, {"n": torch.tensor(5), "w": torch.tensor([2.0])}
    assert average_tensors([one, two]) == {"n": torch.tensor(3), "w": torch.tensor([1.5])}
    assert interpolate_tensors(one, two, 0.25) == {"n": torch.tensor(5), "w": torch.tensor([1.25])}


def naive_validation(place, state):
    """The mean over dawn and dusk of the accuracy on images that trial 0 holds out, image by image."""
    given = json.loads((place / "a" / "run.json").read_text())
    experiment = prepare_experiment(given["settings"] | {"dataset": given["where"]["dataset"]}, EXECUTION)
    net = experiment.algorithm().net.eval()
    net.load_state_dict(state)
    shares = []
    for name in ("dawn", "dusk"):
        right = 0
        for i in range(len(experiment.splits[name][1])):
            x, y = experiment.part(name, "out", experiment.transform("none")).batch([i])
            right += int(net(experiment.transform("none").normalise(x)).argmax()) == int(y)
        shares.append(right / len(experiment.splits[name][1]))
    return sum(shares) / 2


def test_greedy_is_the_naive_loop(place, tmp_path):
    found = average(place, tmp_path / "soup", "a", "b", "c", "coral", greedy=True)
    members = {name: tensors(place / name) for name in ("a", "b", "c", "coral")}
    alone = {name: naive_validation(place, state) for name, state in members.items()}
    kept, best = [], -1.0
    for name in sorted(members, key=alone.get, reverse=True):
        taken = [members[each] for each in (*kept, name)]
        mean = {n: torch.stack([each[n].double() for each in taken]).mean(0).float() for n in taken[0]}
        score = naive_validation(place, mean)
        if score >= best:
            kept, best = [*kept, name], score
    noted = dict(zip(members, found["soup"]["members"], strict=True))
    assert {name for name, each in noted.items() if each["accepted"]} == set(kept)
    assert {name: each["validation"] for name, each in noted.items()} == pytest.approx(alone)
    assert found["selected"]["validation"] == pytest.approx(best)


def test_the_target_chooses_nothing(place, tmp_path, monkeypatch):
    """No image of it is looked at before the choice is made."""
    first = average(place, tmp_path / "one", "a", "b", "c", greedy=True)
    seen = []

    def watched(algorithm, parts, **options):
        seen.append({part.domain for part in parts})
        return tallies(algorithm, parts, **options)

    monkeypatch.setattr("dspreg.inference.soup_candidates.tallies", watched)
    second = average(place, tmp_path / "two", "a", "b", "c", greedy=True)
    assert [each for each in seen[:-1] if "noon" in each] == []
    assert seen[-1] == set(DOMAINS)  # the record of what was chosen
    assert first["soup"] == second["soup"]


def test_averaged_weights_of_a_member_are_what_counts(place, tmp_path):
    """EMA's file holds the trained weights, too; a soup takes those that predict."""
    average(place, tmp_path / "soup", "ema", "a")
    model, _ = dspreg.load(place / "ema")
    mean = {n: (t.double() + tensors(place / "a")[n].double()) / 2 for n, t in model.algorithm.net.state_dict().items()}
    made = tensors(tmp_path / "soup")
    assert all(torch.equal(made[name], value.float()) for name, value in mean.items())
    with pytest.raises(ConfigError, match=r"arm was trained with ARM\(width=4\), whose prediction is not that of the"):
        average(place, tmp_path / "x", "a", "arm")
    average(place, tmp_path / "arms", "arm", "arm")  # of one spec all is averaged
    made, arm = tensors(tmp_path / "arms"), tensors(place / "arm")
    assert made.keys() == arm.keys()
    assert all(torch.equal(t, arm[name]) for name, t in made.items() if "running" not in name and "num_b" not in name)


@pytest.mark.parametrize(
    ("other", "message"),
    [("dusk", r"differ in targets: \['noon'\] and \['dusk'\]"), ("size", "differ in image_size: 28 and 32")],
)
def test_runs_that_are_not_alike_are_refused_by_name(place, tmp_path, other, message):
    with pytest.raises(ConfigError, match=message):
        average(place, tmp_path / "x", "a", other)
    assert not (tmp_path / "x").exists()


def test_runs_of_other_images_are_refused(place, tmp_path):
    shutil.copytree(place / "photos", tmp_path / "photos")
    Image.new("RGB", (16, 16), "red").save(tmp_path / "photos" / "dusk" / "cat" / "0.png")
    trained(tmp_path / "photos", tmp_path / "other", steps=6, evaluate_every=3)
    with pytest.raises(ConfigError, match=r"differ in the images of 'dusk' \(fingerprint\)"):
        dspreg.average_runs([place / "a", tmp_path / "other"], tmp_path / "x", execution=EXECUTION)
    with pytest.raises(DataError, match="has not the images of the domain 'dusk'"):
        average(place, tmp_path / "x", "a", "b", dataset=f"folder:{tmp_path / 'photos'}")


def test_trials_hold_out_different_images(place, tmp_path):
    """A choice is refused; a mean of all is scored on what both held out, here and by evaluate."""
    with pytest.raises(ConfigError, match=r"of the trials 0, 1, each with a split of its own.*--uniform"):
        average(place, tmp_path / "x", "a", "trial1", greedy=True)
    with pytest.warns(dspreg.Notice, match="scores are on the images that all of them held out"):
        average(place, tmp_path / "soup", "a", "trial1")
    described = json.loads((tmp_path / "soup" / "run.json").read_text())
    splits = []
    for trial in (0, 1):
        given = described["settings"] | {"dataset": described["where"]["dataset"], "trial": trial}
        splits.append(prepare_experiment(given, EXECUTION).splits)
    both = {name: set(splits[0][name][1]) & set(splits[1][name][1]) for name in ("dawn", "dusk")}
    assert {name: described["data"]["sizes"][name]["out"] for name in both} == {n: len(p) for n, p in both.items()}
    found = dspreg.evaluate(tmp_path / "soup", device="cpu")
    assert {each.domain: each.scores.images for each in found.domains if each.domain in both} == {
        name: len(positions) for name, positions in both.items()
    }


def test_where_nothing_was_held_out_by_all_it_is_refused(place, tmp_path):
    folder = photos(tmp_path / "few", each=4)
    for trial in range(4):
        trained(folder, tmp_path / f"t{trial}", trial=trial)
    with pytest.raises(DataError, match=r"no image of the domain .* was held out by all members"):
        dspreg.average_runs([tmp_path / f"t{n}" for n in range(4)], tmp_path / "x", execution=EXECUTION)
    assert not (tmp_path / "x").exists()


# Between the start and the run.


@pytest.mark.parametrize("name", ["b", "ema", "arm", "norm1"])
def test_the_start_is_that_of_the_training_to_the_bit(place, name):
    given = json.loads((place / name / "run.json").read_text())
    experiment = prepare_experiment(given["settings"] | {"dataset": given["where"]["dataset"]}, EXECUTION)
    ours = tensors_at_start(read_member(place / name))
    assert same(ours, tensors_of(experiment.algorithm()))


def test_alphas_are_records_of_which_source_validation_selects(place, tmp_path):
    alphas = [0.0, 0.25, 1.0]
    found = dspreg.interpolate_to_start(place / "b", tmp_path / "soup", alphas, execution=EXECUTION)
    start, end = tensors_at_start(read_member(place / "b")), tensors(place / "b")
    records = RunFolder(tmp_path / "soup").contents().records
    assert [(each["step"], each["log"]["alpha"]) for each in records] == [(3, 0.0), (4, 0.25), (5, 1.0)]
    best = max(records, key=lambda each: each["validation"])
    assert found["selected"]["step"] == best["step"]
    for record, alpha in zip(records, alphas, strict=True):
        _, made = read_model_file(tmp_path / "soup" / "models" / f"step-{record['step']:08d}.safetensors")
        for name, t in made.items():
            expected = (1 - alpha) * start[name].numpy().astype(float) + alpha * end[name].numpy().astype(float)
            np.testing.assert_array_equal(t.numpy(), expected.astype(np.float32))
        assert dspreg.load(tmp_path / "soup", str(record["step"]))[0].classes == CLASSES
    assert same(tensors(tmp_path / "soup", "last"), end)


def test_other_weights_than_those_it_started_from_are_refused(place, tmp_path):
    dspreg.export(place / "c", "safetensors", tmp_path / "c.safetensors")
    with pytest.raises((IntegrityError, ConfigError)):
        dspreg.interpolate_to_start(place / "b", tmp_path / "x", weights=str(tmp_path / "c.safetensors"))
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("alphas", [(), (1.5,), (float("nan"),), (0.5, 0.5)])
def test_wrong_alphas_are_refused(place, tmp_path, alphas):
    with pytest.raises(ConfigError, match="alpha"):
        dspreg.interpolate_to_start(place / "b", tmp_path / "x", alphas)


# Batch norm.


def test_running_statistics_are_taken_anew_from_training_images(place, tmp_path):
    """Against two passes of torch by hand: the mean over batches of a batch norm's inputs, at the averaged weights."""
    average(place, tmp_path / "soup", "norm1", "norm2")
    model, _ = dspreg.load(tmp_path / "soup")
    given = json.loads((place / "norm1" / "run.json").read_text())
    experiment = prepare_experiment(given["settings"] | {"dataset": given["where"]["dataset"]}, EXECUTION)
    parts = [experiment.part(name, "in", experiment.transform("none")) for name in ("dawn", "dusk")]
    batches = MixedBatches(parts, experiment.settings.batch_size)
    name, norm = next((n, m) for n, m in model.named_modules() if isinstance(m, torch.nn.BatchNorm2d))
    seen = []
    norm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach().clone()))
    with torch.no_grad():
        for n in range(len(batches)):
            model(parts[0].transform.normalise(batches[n][0]))
    mean = torch.stack([x.mean((0, 2, 3)) for x in seen]).mean(0)
    variance = torch.stack([x.transpose(0, 1).flatten(1).var(1) for x in seen]).mean(0)
    torch.testing.assert_close(norm.running_mean, mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(norm.running_var, variance, rtol=1e-4, atol=1e-5)
    old = average_tensors([tensors(place / each) for each in ("norm1", "norm2")])
    key = next(each for each in old if each.endswith("running_mean") and name.endswith(each.rpartition(".")[0]))
    assert not torch.allclose(old[key], norm.running_mean, rtol=1e-2)


# A run like any other.


def test_everything_reads_it(place, tmp_path, capsys):
    out = tmp_path / "runs" / "soup"
    names = [str(place / each) for each in "ab"]
    assert main(["soup", *names, "--uniform", "--threads", "1", "--out", str(out)]) == 0
    assert "2 of 2 runs averaged; validation" in capsys.readouterr().out
    assert main(["evaluate", str(out)]) == 0
    assert main(["predict", str(out), str(place / "photos" / "noon" / "cat" / "0.png")]) == 0
    assert main(["measure", "--model", str(out), "--images", "8", "--no-null"]) == 0
    assert main(["report", str(tmp_path / "runs")]) == 0
    assert "ERM, uniform soup of 2" in capsys.readouterr().out
    assert export(out, "torch.export", tmp_path / "soup.pt2").difference <= 1e-6
    (found,) = dspreg.load_runs(tmp_path / "runs")
    assert found.finished
    described = json.loads((out / "run.json").read_text())
    for each, name in zip(described["soup"]["members"], "ab", strict=True):
        result = RunFolder(place / name).result()
        assert each["run"] == result["run"]
        assert each["sha256"] == result["files"]["selected.safetensors"]


def test_the_same_again_changes_nothing_and_others_are_refused(place, tmp_path, capsys):
    out = tmp_path / "soup"
    average(place, out, "a", "b")
    before = {p.name: p.read_bytes() for p in out.iterdir()}
    average(place, out, "a", "b")
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before
    with pytest.raises(ConfigError, match=r"holds another training:\n.*soup\.members\[1\]\.run: \w{8}… → \w{8}…"):
        average(place, out, "a", "c")
    with pytest.raises(ConfigError, match="is one of the runs"):
        average(place, place / "a", "a", "b")
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before


@pytest.mark.parametrize("at", range(6))
def test_killed_anywhere_it_is_unfinished_and_the_same_command_finishes_it(place, tmp_path, monkeypatch, capsys, at):
    average(place, tmp_path / "whole", "a", "b")
    writes = iter(range(100))

    class Killed(RunFolder):
        def write(self, name, data):
            if next(writes) == at:
                raise KeyboardInterrupt
            super().write(name, data)

    monkeypatch.setattr(soup_folder, "RunFolder", Killed)
    out = tmp_path / "soup"
    if at < 5:  # run.json, two models, README.md, result.json
        with pytest.raises(KeyboardInterrupt):
            average(place, out, "a", "b")
        if at == 0:
            assert not out.exists()
        else:
            assert main(["predict", str(out), str(place / "photos")]) == 2
            assert "is not finished" in capsys.readouterr().err
    monkeypatch.undo()
    average(place, out, "a", "b")
    for name in ("selected.safetensors", "last.safetensors", "README.md"):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_stopped_while_it_computes_there_is_nothing(place, tmp_path, monkeypatch):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("dspreg.inference.soup_candidates.tallies", stopped)
    with pytest.raises(KeyboardInterrupt):
        average(place, tmp_path / "soup", "a", "b")
    assert list(tmp_path.iterdir()) == []


def test_exit_codes(place, tmp_path, capsys):
    a, b, out = str(place / "a"), str(place / "b"), str(tmp_path / "x")
    for words, code, says in (
        ([a, b, "--out", out], 2, "one of the arguments --uniform --greedy --toward is required"),
        ([a, b, "--toward", "start", "--alpha", "0.5", "--out", out], 2, "takes one run; 2 are given"),
        ([a, "--toward", "start", "--out", out], 2, "needs --alpha"),
        ([a, "--uniform", "--alpha", "0.5", "--out", out], 2, "--alpha goes with --toward start"),
        ([a, "--toward", "start", "--alpha", "2", "--out", out], 2, "wanted a number from 0 to 1"),
        ([a, str(place / "dusk"), "--uniform", "--out", out], 2, "differ in targets"),
        ([a, str(tmp_path / "none"), "--uniform", "--out", out], 2, "holds no run"),
        ([a, b, "--uniform", "--dataset", f"folder:{tmp_path}", "--out", out], 3, ""),
    ):
        try:
            found = main(["soup", *words])
        except SystemExit as stop:
            found = stop.code
        assert found == code, words
        assert says in capsys.readouterr().err
    shutil.copytree(place / "b", tmp_path / "damaged")
    (tmp_path / "damaged" / "selected.safetensors").write_bytes(b"nothing")
    assert main(["soup", a, str(tmp_path / "damaged"), "--uniform", "--out", out]) == 4
    assert not (tmp_path / "x").exists()


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """Two runs that start from published weights, and the file of these."""
    file = Path(os.environ.get("DSPREG_WEIGHTS", "unset"))
    file = file / "tf_efficientnet_lite0.safetensors" if file.is_dir() else file
    if not file.is_file():
        pytest.skip("needs DSPREG_WEIGHTS: tf_efficientnet_lite0.safetensors, or the folder it is in")
    place = tmp_path_factory.mktemp("pretrained")
    folder = photos(place / "photos", each=10)
    usual = {"model": "tf_efficientnet_lite0", "weights": str(file), "image_size": 64, "steps": 2, "frozen_bn": True}
    for name, lr in (("a", 1e-4), ("b", 1e-3)):
        trained(folder, place / name, **usual, lr=lr)
    return place, file


def test_soups_of_runs_from_published_weights(pretrained, tmp_path, capsys):
    """The mean is that of the members, of which none stands at the start; way back to the start is the file itself."""
    place, file = pretrained
    published = load_file(file)
    average(place, tmp_path / "mean", "a", "b", greedy=False)
    a, b, mean = tensors(place / "a"), tensors(place / "b"), tensors(tmp_path / "mean")
    moved = 0
    for name, value in mean.items():
        if value.is_floating_point():
            expected = (a[name].double().numpy() + b[name].double().numpy()) / 2
            np.testing.assert_allclose(value.numpy(), expected, rtol=1e-6, atol=1e-9)
            moved += not torch.equal(a[name], b[name])
    assert moved > 100

    start = tensors_at_start(read_member(place / "a"))
    bodies = {name.removeprefix("featurizer.model."): t for name, t in start.items() if "classifier" not in name}
    shared = bodies.keys() & published.keys()
    assert len(shared) > 250
    assert all(torch.equal(bodies[name], published[name]) for name in shared)
    dspreg.interpolate_to_start(place / "a", tmp_path / "half", alphas=[0.5], execution=EXECUTION)
    half = tensors(tmp_path / "half")
    for name in ("featurizer.model.conv_stem.weight", "classifier.weight"):
        np.testing.assert_allclose(half[name].numpy(), (start[name] + a[name]).numpy() / 2, rtol=1e-5, atol=1e-8)
    described = RunFolder(tmp_path / "mean").description()
    assert described["weights"]["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert main(["evaluate", str(tmp_path / "mean"), "--workers", "0"]) == 0
    assert "noon" in capsys.readouterr().out
