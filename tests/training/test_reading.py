"""How images are read, from the training through everything that uses its run."""

import dataclasses
import itertools
import json
import shutil
import warnings

import numpy as np
import pytest
import torch
from PIL import Image

import dspreg
from dspreg import Notice
from dspreg.config.reading import OWN_READING, Reading
from dspreg.data.channel_statistics import channel_statistics
from dspreg.training.experiment import prepare_experiment
from dspreg.training.stored_model import read_model_file
from helpers.images import put
from helpers.kinds import exif, file_of, noise, tiff

SMALL = {
    "targets": ("c",), "algorithm": "ERM", "model": "small-cnn", "image_size": 16, "steps": 3, "batch_size": 3,
    "evaluate_every": 2,
}  # fmt: skip
DOMAINBEDS = {"exif": False, "alpha": "drop", "window": "none", "shrink": False}
QUICK = dspreg.Execution(device="cpu", cache="none", profile="never", threads=1, workers=0, fold_bn="never")


@pytest.fixture(autouse=True)
def quiet(tmp_path, monkeypatch):
    monkeypatch.setenv("DSPREG_CACHE", str(tmp_path / "user-cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        yield


def folder_of(root, make, extension):
    for n, (domain, label, i) in enumerate(itertools.product("abc", ("x", "y"), range(5))):
        put(root / domain / label / f"{i}.{extension}", make(n))
    return root


@pytest.fixture
def glass(tmp_path):
    """Transparent images on their side."""
    return folder_of(tmp_path / "glass", lambda n: file_of(noise(9, 14, 4, seed=n), "PNG", exif=exif(6)), "png")


@pytest.fixture
def spectra(tmp_path):
    def make(n):
        planes = noise(4, 20, 24, seed=n, dtype=np.uint16, top=1_000)
        planes[1] //= 4
        return tiff(planes)

    return folder_of(tmp_path / "spectra", make, "tif")


def train(folder, out, **options):
    return dspreg.train({**SMALL, "dataset": f"folder:{folder}", **options}, QUICK, out)


def test_a_run_says_how_its_images_are_read_and_all_that_uses_it_reads_them_so(glass, tmp_path):
    run = tmp_path / "run"
    train(glass, run, alpha="black", resize="pad")
    settings = json.loads((run / "run.json").read_text())["settings"]
    said = {name: settings.get(name) for name in (*DOMAINBEDS, "channels", "resize")}
    assert said == {"exif": True, "alpha": "black", "window": "auto", "shrink": True, "channels": None, "resize": "pad"}
    assert "turned as EXIF says, on black where transparent" in (run / "README.md").read_text()
    assert "padded with black to 16 × 16" in (run / "README.md").read_text()

    model, transform = dspreg.load(run)
    assert (transform.reading, transform.resize) == (Reading(True, "black", "auto", 3, 32), "pad")
    file = glass / "c" / "x" / "0.png"
    rgba = np.rot90(noise(9, 14, 4, seed=20), -1)  # as it was seen: 14 high, 9 wide
    colour = np.rint(rgba[..., :3] * (rgba[..., 3:] / 255)).astype(np.uint8)
    square = np.zeros((14, 14, 3), np.uint8)
    square[:, 2:11] = colour
    expected = np.asarray(Image.fromarray(square).resize((16, 16), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    shown = transform.pixels(Image.open(file)).numpy()
    assert np.abs(shown.astype(int) - expected).max() <= 1

    (predicted,) = dspreg.predict(run, file, device="cpu")
    logits = model(transform(Image.open(file))[None])
    assert predicted.probabilities == pytest.approx(logits.double().softmax(1)[0].tolist(), abs=1e-6)
    evaluated = dspreg.evaluate(run, domains=["c"], device="cpu", workers=0)
    right = 0
    for label, name in enumerate(("x", "y")):
        for i in range(5):
            with Image.open(glass / "c" / name / f"{i}.png") as image:
                right += int(model(transform(image)[None]).argmax()) == label
    assert evaluated.domains[0].scores.accuracy == right / 10
    exported = dspreg.export(run, "safetensors")
    assert exported.difference < 1e-6


def test_models_of_benchmarks_say_nothing_new(glass, tmp_path):
    """Files of runs with DomainBed's reading are what they were, to the byte."""
    train(glass, tmp_path / "run", **DOMAINBEDS)
    how, _ = read_model_file(tmp_path / "run" / "selected.safetensors")
    assert set(how) == {"algorithm", "model", "image_size", "dropout", "frozen_bn", "mean", "std", "classes", "domains",
                        "step"}  # fmt: skip
    settings = json.loads((tmp_path / "run" / "run.json").read_text())["settings"]
    assert not {*DOMAINBEDS, "channels", "resize"} & settings.keys()
    assert settings["augment"] is True
    assert dspreg.load(tmp_path / "run")[1].reading == Reading()


def test_a_run_of_an_earlier_version_goes_on_with_its_pixels(glass, tmp_path):
    """Begun with DomainBed's reading, which is what its record says by saying nothing; resumed with nothing said."""
    begun, whole = tmp_path / "begun", tmp_path / "whole"
    train(glass, whole, **DOMAINBEDS)

    calls = 0

    def stop():
        nonlocal calls
        calls += 1
        if (begun / "checkpoints").exists() and any((begun / "checkpoints").iterdir()):
            raise dspreg.errors.Preempted("enough")

    given = {**SMALL, "dataset": f"folder:{glass}"}
    with pytest.raises(dspreg.errors.Preempted):
        dspreg.train({**given, **DOMAINBEDS}, QUICK, begun, pause=stop)
    assert not (begun / "result.json").exists()
    dspreg.train(given, QUICK, begun)
    assert calls
    for name in ("selected.safetensors", "last.safetensors"):
        assert (begun / name).read_bytes() == (whole / name).read_bytes()
    train(glass, tmp_path / "new")
    assert (tmp_path / "new" / "last.safetensors").read_bytes() != (whole / "last.safetensors").read_bytes()


def test_four_channels_are_trained_on_normalised_by_the_sources(spectra, tmp_path):
    given = {**SMALL, "dataset": f"folder:{spectra}", "channels": 4, "window": "0:1000"}
    experiment = prepare_experiment(given, QUICK)
    assert experiment.settings.augment == "light"
    values = [[] for _ in range(4)]
    for name in ("a", "b"):
        images, inside = experiment.images[name], experiment.splits[name][0]
        for i in inside:
            for channel, band in enumerate(images.image(i).split()):
                small = np.asarray(band.resize((16, 16), Image.Resampling.BILINEAR), np.float64)
                values[channel].append(small / 255)
    mean, std = zip(*((np.mean(v), np.std(v)) for v in values), strict=True)
    assert experiment.backbone.mean == pytest.approx(mean, abs=1e-12)
    assert experiment.backbone.std == pytest.approx(std, abs=1e-12)

    run = tmp_path / "run"
    dspreg.train(given, QUICK, run)
    model, transform = dspreg.load(run)
    assert transform.mean == pytest.approx(mean, abs=1e-12)
    (predicted,) = dspreg.predict(run, spectra / "c" / "x" / "0.tif", device="cpu")
    assert not predicted.fault
    assert len(dspreg.evaluate(run, device="cpu", workers=0).domains) == 3
    for format in ("safetensors", "torch.export"):
        assert dspreg.export(run, format).difference < 1e-5
    assert next(model.parameters()).shape[1] == 4
    shutil.rmtree(spectra / "c")
    for label, i in itertools.product("xy", range(4)):
        put(spectra / "c" / label / f"{i}.tif", tiff(noise(4, 5, 5, dtype=np.uint16)))
    unchecked = dataclasses.replace(QUICK, check_images="never")  # the target's images are all one
    assert prepare_experiment(given, unchecked).backbone.mean == experiment.backbone.mean  # the target says nothing


def test_statistics_are_those_of_numpy_and_a_constant_channel_stays_at_zero():
    x = torch.from_numpy(noise(7, 3, 5, 6))
    x[:, 2] = 9
    mean, std = channel_statistics([x[:2], x[2:]])
    values = x.double().numpy() / 255
    assert mean == pytest.approx(values.mean((0, 2, 3)), abs=1e-15)
    assert std[:2] == pytest.approx(values.std((0, 2, 3))[:2], abs=1e-15)
    assert std[2] == 1


def test_a_timm_network_reads_one_channel_with_weights_for_rgb_added_up(tmp_path):
    from safetensors.torch import save_file

    from dspreg.networks.pretrained import make_backbone

    made = make_backbone("test_resnet", weights="none", image_size=32)
    torch.manual_seed(0)
    net = made.make()
    save_file(net.model.state_dict(), tmp_path / "w.safetensors")
    grey = make_backbone("test_resnet", weights=str(tmp_path / "w.safetensors"), image_size=32, channels=1).make()
    x = torch.rand(2, 1, 32, 32)
    torch.testing.assert_close(grey.eval()(x), net.eval()(x.expand(-1, 3, -1, -1)), rtol=1e-4, atol=1e-5)


def test_a_bad_reading_is_told_before_anything_is_trained(spectra, tmp_path):
    with pytest.raises(dspreg.DataError, match=r"30 images of spectra can't be used:\n.*--channels 4 reads them"):
        train(spectra, tmp_path / "run")
    with pytest.raises(dspreg.DataError, match="it has 4 channels, which can't be read as 5 channels"):
        train(spectra, tmp_path / "run", channels=5)
    with pytest.raises(dspreg.ConfigError, match="augment=augmix changes colours"):
        train(spectra, tmp_path / "run", channels=4, augment="augmix")
    with pytest.raises(dspreg.ConfigError, match="no module 'no_such_changes'"):
        train(spectra, tmp_path / "run", channels=4, augment="no_such_changes.f")
    assert not (tmp_path / "run" / "run.json").exists()


def test_default_readings_are_said_once():
    assert Reading(True, "white", "auto") == OWN_READING
