"""Classes of single images."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import dspreg
from dspreg.config.reading import Reading
from dspreg.errors import ConfigError, DataError, Notice
from dspreg.inference.predict import Prediction, image_files, predict_files
from helpers.small_runs import bits, photos, trained


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = photos(tmp_path_factory.mktemp("data") / "photos")
    return folder, trained(folder, tmp_path_factory.mktemp("run") / "run")


def test_probabilities_are_those_of_each_image_alone(world):
    folder, run = world
    model, transform = dspreg.load(run)
    files = image_files([folder / "noon"])
    assert len(files) == 36
    found = predict_files(model, transform, files, batch=7)
    assert [each.path for each in found] == files
    for path, each in zip(files, found, strict=True):
        with torch.no_grad():
            logits = model(transform(Image.open(path).convert("RGB"))[None])[0].double().numpy()
        expected = np.exp(logits) / np.exp(logits).sum()
        np.testing.assert_allclose(each.probabilities, expected, rtol=1e-5)
        assert each.best() == int(expected.argmax())
        assert each.best(1) == int(expected.argsort()[-2])


@pytest.mark.parametrize("batch", [1, 5, 36])
def test_batches_change_no_more_than_the_rounding(world, batch):
    folder, run = world
    model, transform = dspreg.load(run)
    files = image_files([folder / "dawn"])
    whole = predict_files(model, transform, files, batch=36)
    other = predict_files(model, transform, files[::-1], batch=batch)[::-1]
    for a, b in zip(whole, other, strict=True):
        np.testing.assert_allclose(a.probabilities, b.probabilities, rtol=1e-5)


def test_predicting_leaves_the_model_as_it_was(world):
    folder, run = world
    model, transform = dspreg.load(run)
    model.train()
    before, random = bits(model), torch.get_rng_state()
    predict_files(model, transform, image_files([folder / "dawn" / "cat"]))
    assert bits(model) == before
    assert torch.equal(torch.get_rng_state(), random)


def test_a_bad_image_costs_only_its_own_answer(world, tmp_path):
    _, run = world
    model, transform = dspreg.load(run)
    good = photos(tmp_path / "more", each=1) / "dawn" / "cat" / "0.png"
    files = [tmp_path / "page.jpg", good, tmp_path / "empty.png", tmp_path / "half.png", tmp_path / "nowhere.png"]
    files[0].write_text("<html>404")
    files[2].touch()
    files[3].write_bytes(good.read_bytes()[:200])
    files[4].symlink_to(tmp_path / "gone.png")
    found = predict_files(model, transform, image_files(files), batch=2)
    assert [bool(each.fault) for each in found] == [True, False, True, True, True]
    assert [bool(each.probabilities) for each in found] == [False, True, False, False, False]
    assert "HTML page" in found[0].fault
    assert "empty" in found[2].fault
    assert "'" in found[4].fault
    assert "missing" in found[4].fault


def test_outputs_that_are_not_numbers_are_a_fault(world):
    folder, run = world
    model, transform = dspreg.load(run)
    with torch.no_grad():
        next(iter(model.parameters())).fill_(float("nan"))
    found = predict_files(model, transform, image_files([folder / "dawn" / "cat"]))
    assert all("not finite" in each.fault and not each.probabilities for each in found)


def test_of_equal_probabilities_the_first_class_is_best():
    assert [Prediction(Path("x"), (0.2, 0.4, 0.4)).best(rank) for rank in range(3)] == [1, 2, 0]


def test_folders_are_walked_and_sorted(world):
    folder, _ = world
    files = image_files([folder / "noon", folder / "dawn" / "owl" / "3.png"])
    assert files[:-1] == sorted((folder / "noon").rglob("*.png"), key=str)
    assert files[-1].name == "3.png"


@pytest.mark.parametrize(
    ("given", "kind", "says"),
    [
        ([], DataError, "no images are given"),
        (["nowhere.png"], DataError, "'nowhere.png' does not exist"),
        (["a\x1b[31m.png"], DataError, r"'a\\x1b\[31m.png' does not exist"),
        (["empty"], DataError, "no image is below the folder 'empty'"),
        (["one.png", "./one.png"], ConfigError, "'one.png' given twice"),
        (["one.png", "."], ConfigError, "'one.png' given twice"),
        (["one.png", "link.png"], ConfigError, "'link.png' given twice"),
    ],
)
def test_what_is_given_must_be_images_each_once(tmp_path, monkeypatch, given, kind, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    Image.new("RGB", (4, 4)).save("one.png")
    if "link.png" in given:
        Path("link.png").symlink_to("one.png")
    with pytest.raises(kind, match=says):
        image_files(given)


def test_images_of_other_kinds_are_told_of(tmp_path):
    Image.new("RGB", (4, 4)).save(tmp_path / "one.png")
    (tmp_path / "two.TIFF").touch()
    (tmp_path / "three.JXL").touch()
    with pytest.warns(Notice, match=r"1 image below .* not read \(.jxl\)"):
        assert [path.name for path in image_files([tmp_path])] == ["one.png", "two.TIFF"]
    with pytest.warns(Notice, match=r"2 images below .* not read \(.jxl, .tiff\)"):  # of a run that read no TIFF
        assert [path.name for path in image_files([tmp_path], Reading().kinds)] == ["one.png"]
