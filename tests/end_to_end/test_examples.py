"""Examples do what their first lines say."""

import importlib
import os
import re
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn
from torchvision.transforms.functional import pil_to_tensor

from dspreg.data.registry import open_dataset
from dspreg.networks import Network, SmallCNN
from dspreg.testing import check_algorithm, check_dataset

ROOT = Path(__file__).parents[2]


def run(*arguments, code=0):
    done = subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == code, done.stderr
    return done.stderr + done.stdout


def test_measure_sensitivity_tells_the_two_parameters_apart():
    rows = [line.split() for line in run("examples/measure_sensitivity.py").splitlines()]
    assert len(rows) == 6
    for _, name, _, c, _, null, *_ in rows:
        assert float(c) == pytest.approx(0.707 if name == "specific" else 0.0, abs=0.12)
        assert float(null) < 0.3


@pytest.fixture
def examples_importable(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "examples")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "examples"), prepend=os.pathsep)


@pytest.mark.usefixtures("examples_importable")
def test_an_algorithm_of_ones_own_is_short_keeps_the_laws_and_trains(tmp_path):
    assert check_algorithm("my_algorithm.LogitNorm") is None
    assert len((ROOT / "examples/my_algorithm.py").read_text().splitlines()) < 25
    spec = "my_algorithm.LogitNorm(weight=0.05)+DSPReg(measure_batches=2)"
    said = run("-m", "dspreg.cli", "train", "--dataset", "digits", "--target", "print", "--steps", 2,
               "--algorithm", spec, "--profile", "never", "--out", tmp_path / "run")  # fmt: skip
    assert "unseen print" in said
    assert "my_algorithm.LogitNorm" in run("-m", "dspreg.cli", "algorithms", "my_algorithm.LogitNorm")


@pytest.mark.usefixtures("examples_importable")
def test_a_data_set_of_ones_own_is_short_keeps_the_laws_and_trains(tmp_path):
    check_dataset(open_dataset("my_dataset.Turned", None, None))
    assert len((ROOT / "examples/my_dataset.py").read_text().splitlines()) < 25
    said = run("-m", "dspreg.cli", "train", "--dataset", "my_dataset.Turned", "--target", "45", "--steps", 2,
               "--algorithm", "ERM", "--out", tmp_path / "run")  # fmt: skip
    assert "unseen 45" in said


def test_own_loop():
    rows = [line.split() for line in run("examples/own_loop.py").splitlines()]
    assert [row[1] for row in rows] == ["0:", "20:", "40:"]
    mean_c = [float(row[6].rstrip(",")) for row in rows]
    assert mean_c[0] == 1  # not measured yet
    assert 0.2 < mean_c[1] < 1.42 > mean_c[2] > 0.2
    assert all(float(row[-1].rstrip("%")) > 1 for row in rows)


@pytest.mark.parametrize(("example", "steps"), [("lightning", 60), ("accelerate", 60), ("transformers", 30)])
def test_other_trainers_give_the_numbers_of_a_plain_loop(example, steps):
    *_, last = run(f"examples/with_{example}.py").splitlines()
    assert last.endswith(f" {steps} steps, largest difference to the plain loop 0")


def test_freeze_or_prune_says_what_its_table_says():
    said = run("examples/freeze_or_prune.py", "--seeds", "2", "--steps", "12", "--more", "2", "--target", "sign")
    lines = said.splitlines()
    assert sum("904 of 9,034 parameters; mean c" in line for line in lines) == 2  # a tenth
    start = next(i for i, line in enumerate(lines) if line.startswith("accuracy in %"))
    assert lines[start].split()[-4:] == ["handwritten", "outline", "print", "sign"]  # the target last
    table = {line[:30].strip(): [float(x) for x in line.split()[-4:]] for line in lines[start + 1 : start + 8]}
    assert len(table) == 7
    assert table["largest c set to 0"] != table["random ones set to 0"] != table["as it was trained"]
    told = re.findall(r"- (.+), against (.+), on (.+): ([+-][\d.]+) \(", said)
    assert len(told) == 10
    for one, other, where, points in told:
        domains = [3] if where == "sign" else [0, 1, 2]
        wanted = sum(table[one][d] - table[other][d] for d in domains) / len(domains)
        assert float(points) == pytest.approx(wanted, abs=0.16)  # three roundings
    assert "nothing here is about other networks" in said


def test_what_is_frozen_stays_and_what_is_cut_is_zero(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "examples")
    import freeze_or_prune as example

    data, _ = example.images("sign", 0)
    net = Network(features := SmallCNN(width=16), nn.Linear(features.width, 10))
    mask = {name: torch.rand(p.shape) < 0.3 for name, p in net.named_parameters()}
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    example.train(net, data, range(3), mask)
    for name, p in net.named_parameters():
        assert torch.equal(p[mask[name]], before[name][mask[name]])
        assert not torch.equal(p[~mask[name]], before[name][~mask[name]])
    drawn = example.at_random(mask, 1)
    assert {name: int(m.sum()) for name, m in drawn.items()} == {name: int(m.sum()) for name, m in mask.items()}
    s = {name: torch.rand(p.shape) for name, p in net.named_parameters()}
    least = example.least_sensitive(mask, s)
    for name, m in mask.items():
        assert torch.equal(s[name][least[name]].sort().values, s[name].flatten().sort().values[: int(m.sum())])
    example.cut(net, mask)
    for name, p in net.named_parameters():
        assert not p[mask[name]].any()


@pytest.mark.parametrize(
    ("example", "measured", "figure"),
    [("segmentation", 2, 0.4), ("text", 2, 0.6), ("signals", 2, 0.6)],
)
def test_recipes_for_other_tasks_measure_c_and_learn_something(example, measured, figure):
    *rows, last = [line for line in run(f"examples/{example}.py").splitlines() if re.match("step|.* unseen", line)]
    found = [re.search(r"mean c ([\d.]+), under random domain labels ([\d.]+)", row) for row in rows]
    assert len(found) == measured
    assert all(0 < float(row[1]) <= 2**0.5 and 0 < float(row[2]) <= 2**0.5 for row in found)
    assert float(last.split()[-1]) > figure  # of the domain that was never seen; by chance 0.1, 0.5 and 0


@pytest.mark.usefixtures("examples_importable")
def test_a_data_set_of_numbers_and_its_network_train_by_the_command(tmp_path):
    check_dataset(open_dataset("signals.Machines", None, None))
    said = run("-m", "dspreg.cli", "train", "--dataset", "signals.Machines", "--model", "signals.Encoder", "--target",
               "press", "--algorithm", "ERM", "--steps", 3, "--out", tmp_path / "run")  # fmt: skip
    assert re.search(r"unseen press R² -?[\d.]+; held-out sources R² -?[\d.]+, selected at step", said)


@pytest.mark.usefixtures("examples_importable")
@pytest.mark.parametrize("objects", [False, True])
def test_made_sites_differ_share_no_image_and_keep_the_truth_of_the_inbox_apart(objects, tmp_path, monkeypatch):
    several_sites = importlib.import_module("several_sites")
    more = []
    if objects:
        for n in range(30):
            path = tmp_path / "pictures" / ("cup" if n % 2 else "pen") / f"{n}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (50, 40), (200, 8 * n, 200)).save(path)
        more = ["--objects", str(tmp_path / "pictures")]
    photos, inbox = tmp_path / "photos", tmp_path / "inbox"
    monkeypatch.setattr(sys, "argv", ["several_sites.py", str(photos), str(inbox), "--images", "6", *more])
    several_sites.main()
    made = sorted(path.relative_to(photos) for path in photos.glob("*/*/*.png"))
    assert [sum(path.parts[0] == site for path in made) for site in "ABCD"] == [6] * 4
    assert {path.parts[1] for path in made} <= ({"cup", "pen"} if objects else set("0123456789"))
    pixels = {}
    for path in made:
        with Image.open(photos / path) as image:
            pixels[path] = pil_to_tensor(image).double()
    assert {tuple(each.shape) for each in pixels.values()} == ({(3, 96, 96)} if objects else {(3, 32, 32)})
    assert len({each.numpy().tobytes() for each in pixels.values()}) == len(made)
    colours = {site: torch.stack([each.mean((1, 2)) for path, each in pixels.items() if path.parts[0] == site]).mean(0)
               for site in "ABCD"}  # fmt: skip
    for a, b in combinations("ABCD", 2):
        assert (colours[a] - colours[b]).abs().max() > 4
    truth = inbox.with_suffix(".csv").read_text().splitlines()[1:]
    assert [line.partition(",")[0] for line in truth] == sorted(path.name for path in inbox.iterdir())
    assert len(truth) == 6
