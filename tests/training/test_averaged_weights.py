"""Averages of weights through the trainer: resumed to the bit, and used as what they predict."""

import json

import pytest
import torch
from safetensors.torch import load_file

import dspreg
from dspreg.cli import main
from dspreg.errors import Preempted
from dspreg.inference.export import export
from dspreg.training import train
from dspreg.training.stored_model import read_model_file
from dspreg.vectors import theta
from helpers import tiny

pytestmark = pytest.mark.filterwarnings("ignore::dspreg.Notice")
PENALTY = "DSPReg(weight=0.05, refresh_steps=5, measure_batches=1, engine='momentum')"
SPECS = [
    f"GroupDRO+{PENALTY}+SWA(start=6)",
    f"EMA(decay=0.7)+{PENALTY}",
    "ARM(width=4)+SWA(start=3)",
    f"MTL+{PENALTY}+EMA(decay=0.7)",
    f"SWAD(n_converge=2, n_tolerance=2, bn_batches=2)+{PENALTY}",
    f"{PENALTY}+SWAD(n_converge=1, n_tolerance=3, bn_batches=2)",
    "SAGM+ERMPlusPlus(linear_steps=3, start=5)",
]


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return tiny.make_images(tmp_path_factory.mktemp("images") / "woods")


@pytest.fixture(scope="module", params=SPECS)
def whole(request, images, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    train(tiny.settings(images, algorithm=request.param), tiny.execution(), out)
    return request.param, out, tiny.ending(out)


@pytest.mark.parametrize("moments", [(12, 4), (31,)])
def test_stopped_anywhere_it_ends_in_the_same_bits(whole, images, tmp_path, moments):
    spec, _, expected = whole
    how = tiny.settings(images, algorithm=spec)
    for moment in moments:
        with pytest.raises(Preempted):
            train(how, tiny.execution(), tmp_path / "run", pause=tiny.stop_at(moment))
    train(how, tiny.execution(), tmp_path / "run")
    assert tiny.ending(tmp_path / "run") == expected


def test_a_loaded_network_has_the_mean_in_it(whole):
    _, out, _ = whole
    _, tensors = read_model_file(out / "last.safetensors")
    (start,) = {name[: name.index("mean.") + 5] for name in tensors if name.startswith("stack.") and "mean." in name}
    model, _ = dspreg.load(out, "last")
    for name, value in theta(model.algorithm.net).items():
        assert torch.equal(value, tensors[start + name])
    assert any(not torch.equal(tensors[start + name], tensors[name]) for name in theta(model.algorithm.net))


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """SWA over a training of its own, and the same training without it."""
    runs = tmp_path_factory.mktemp("digits")
    for name, spec in (("averaged", "SWA(start=4)"), ("plain", "ERM")):
        how = {"dataset": "digits", "targets": ("print",), "algorithm": spec, "steps": 13, "batch_size": 8}
        how |= {"evaluate_every": 100, "augment_validation": False}
        train(how, dspreg.Execution(threads=1, profile="always"), runs / name)
    return runs


def test_every_export_has_the_averaged_weights(digits, tmp_path):
    model, _ = dspreg.load(digits / "averaged", "last")
    plain, _ = dspreg.load(digits / "plain", "last")
    x = torch.rand(3, 3, 28, 28, generator=torch.Generator().manual_seed(0))
    assert not torch.allclose(model(x), plain(x), rtol=1e-3)
    for format, ending in (("safetensors", ".safetensors"), ("torch.export", ".pt2")):
        made = export(digits / "averaged", format, tmp_path / f"a{ending}", which="last")
        assert made.difference <= 1e-6  # of the logits of the loaded run, which are those it was trained to
    written = load_file(tmp_path / "a.safetensors").values()
    expected = theta(model.algorithm.net).values()
    assert len(written) == len(expected)
    assert all(any(torch.equal(t, each) for each in expected) for t in written)


def test_measure_takes_the_average_and_says_so(digits, capsys, tmp_path):
    words = ["--which", "last", "--images", "32", "--no-null", "--json"]
    assert main(["measure", "--model", str(digits / "averaged"), *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["settings"]["about"]["averaged_steps"] == 9
    assert main(["measure", "--model", str(digits / "plain"), *words]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert "averaged_steps" not in plain["settings"]["about"]
    assert [row["c"] for row in found["layers"]] != [row["c"] for row in plain["layers"]]
    page = tmp_path / "page.html"
    assert main(["measure", "--model", str(digits / "averaged"), *words[:-1], "--html", str(page)]) == 0
    assert "weights averaged over 9 steps" in capsys.readouterr().out
    assert "averaged over 9 steps" in page.read_text()


def test_profiles_of_the_training_are_of_the_weights_that_are_trained(digits):
    for when in ("start", "end"):
        one, two = (
            dspreg.Profile.load(digits / name / "profiles" / f"{when}.safetensors") for name in ("averaged", "plain")
        )
        assert torch.equal(one.c.flat(), two.c.flat())
