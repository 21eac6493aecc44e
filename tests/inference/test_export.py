"""Exported files, read without dspreg, against the run."""

import json
import os
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn

import dspreg
from dspreg.errors import ConfigError, IntegrityError
from dspreg.inference import export as exporting
from dspreg.inference import export_formats
from dspreg.inference.export import export
from dspreg.inference.weight_layouts import layouts
from dspreg.networks import Network
from dspreg.runs.folder import RunFolder
from helpers.small_runs import bits, photos, trained

NO_ONNX = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
needs_onnx = pytest.mark.skipif(bool(NO_ONNX), reason=f"not installed: {', '.join(NO_ONNX)} (extra onnx)")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return photos(tmp_path_factory.mktemp("data") / "photos", each=6)


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    return trained(folder, tmp_path_factory.mktemp("run") / "run", steps=1)


@pytest.fixture(scope="module")
def timm_run(folder, tmp_path_factory):
    return trained(folder, tmp_path_factory.mktemp("run") / "timm", steps=1, model="test_resnet", image_size=32)


def expected(run, x):
    with torch.no_grad():
        return dspreg.load(run)[0](x)


def made_by(code, path):
    """What the code given to people leaves as `model`, run where dspreg can't be imported."""
    hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "dspreg"}
    sys.modules["dspreg"] = None
    try:
        names = {}
        exec(code.replace("FILE", str(path)), names)
        return names["model"]
    finally:
        del sys.modules["dspreg"]
        sys.modules.update(hidden)


@pytest.mark.parametrize(("which_run", "size"), [("run", 28), ("timm_run", 32)])
def test_safetensors_is_loaded_by_the_code_it_carries(request, tmp_path, which_run, size):
    run = request.getfixturevalue(which_run)
    made = export(run, "safetensors", tmp_path / "weights.safetensors")
    assert made.difference <= 1e-6
    with safe_open(made.path, "pt") as file:
        told = json.loads(file.metadata()["dspreg"])
    assert told["classes"] == ["cat", "dog", "owl"]
    assert told["image_size"] == size
    assert told["run"] == RunFolder(run).description()["id"]
    x = torch.rand(3, 3, size, size)
    with torch.no_grad():
        found = made_by(told["load"], made.path)(x)
    torch.testing.assert_close(found, expected(run, x), rtol=1e-6, atol=1e-6)


def test_weights_of_timm_networks_have_timms_names(timm_run):
    made = export(timm_run, "safetensors")
    assert made.path == timm_run / "exported" / "selected.safetensors"
    with safe_open(made.path, "pt") as file:
        names = set(file.keys())
    assert {"fc.weight", "fc.bias", "bn1.running_mean"} <= names
    assert "timm.create_model('test_resnet', num_classes=3)" in made.code
    assert RunFolder(timm_run).result() is not None  # files beside those of the run are no damage


@pytest.mark.parametrize(
    ("name", "size", "head"),
    [("test_vit", 32, "head."), ("test_convnext", 64, "head.fc."), ("test_efficientnet", 64, "classifier.")],
)
def test_layouts_give_the_logits_of_the_network(name, size, head):
    torch.manual_seed(0)
    features = dspreg.networks.pretrained.make_backbone(name, weights="none", image_size=size).make()
    net = Network(features, nn.Linear(features.width, 3)).eval()
    x = torch.rand(2, 3, size, size)
    found = list(layouts(net, name, size))
    assert len(found) == 2
    assert any(key.startswith(head) for key in found[0].tensors)
    for layout in found:
        fresh = layout.fresh()
        fresh.load_state_dict(layout.tensors)
        with torch.no_grad():
            torch.testing.assert_close(fresh.eval()(x), net(x), rtol=1e-6, atol=1e-6)


def test_a_network_that_others_cannot_build_is_refused():
    net = Network(nn.Flatten(), nn.Sequential(nn.Linear(12, 3)))
    with pytest.raises(ConfigError, match="made of Flatten and Sequential"):
        list(layouts(net, "mine", 2))


def test_a_stack_that_predicts_by_more_than_its_network(run, tmp_path, monkeypatch):
    monkeypatch.setattr(dspreg.ERM, "predict", lambda self, x: self.net(x) + self.net(x.flip(-1)))
    with pytest.raises(ConfigError, match="ERM predicts by more than its network"):
        export(run, "safetensors", tmp_path / "a.safetensors")
    made = export(run, "torch.export", tmp_path / "a.pt2")  # what goes through `predict` is kept here
    x = torch.rand(4, 3, 28, 28)
    torch.testing.assert_close(torch.export.load(made.path).module()(x), expected(run, x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("which_run", ["run", "timm_run"])
def test_torch_export(request, tmp_path, which_run):
    run, size = request.getfixturevalue(which_run), {"run": 28, "timm_run": 32}[which_run]
    made = export(run, "torch.export", tmp_path / "model.pt2")
    assert made.difference <= 1e-6
    extra = {"dspreg.json": ""}
    program = torch.export.load(made.path, extra_files=extra).module()
    assert json.loads(extra["dspreg.json"])["classes"] == ["cat", "dog", "owl"]
    for n in (1, 3, 8):
        x = torch.rand(n, 3, size, size)
        torch.testing.assert_close(program(x), expected(run, x), rtol=1e-6, atol=1e-6)


def test_normalising_inside(run, tmp_path):
    made = export(run, "torch.export", normalise=True)
    assert made.path.name == "selected-normalising.pt2"
    _, transform = dspreg.load(run)
    pixels = torch.randint(0, 256, (2, 3, 28, 28), dtype=torch.uint8)
    found = torch.export.load(made.path).module()(pixels / 255)
    torch.testing.assert_close(found, expected(run, transform.normalise(pixels)), rtol=1e-5, atol=1e-6)
    with pytest.raises(ConfigError, match="no program that could normalise"):
        export(run, "safetensors", normalise=True)


@needs_onnx
def test_onnx(timm_run, tmp_path):
    import onnx
    import onnxruntime

    made = export(timm_run, "onnx", tmp_path / "model.onnx", normalise=True)
    assert made.difference <= 1e-4
    proto = onnx.load(made.path)
    onnx.checker.check_model(proto)
    told = json.loads({entry.key: entry.value for entry in proto.metadata_props}["dspreg"])
    assert told["classes"] == ["cat", "dog", "owl"]
    session = onnxruntime.InferenceSession(made.path, providers=["CPUExecutionProvider"])
    _, transform = dspreg.load(timm_run)
    for n in (1, 3, 8):
        pixels = torch.randint(0, 256, (n, 3, 32, 32), dtype=torch.uint8)
        found = session.run(None, {"images": (pixels / 255).numpy()})[0]
        logits = expected(timm_run, transform.normalise(pixels)).numpy()
        np.testing.assert_allclose(found, logits, atol=1e-4 * abs(logits).max())


def test_onnx_packages_that_are_missing_are_named(run, monkeypatch):
    monkeypatch.setattr(export_formats, "find_spec", lambda name: None if name == "onnxscript" else name)
    with pytest.raises(ConfigError, match=r"needs onnxscript: pip install 'dspreg\[onnx\]'"):
        export(run, "onnx")


@pytest.mark.parametrize("wrong", [1.001, float("nan")])
def test_a_file_with_other_logits_is_not_kept(run, tmp_path, monkeypatch, wrong):
    before = tmp_path / "a.safetensors"
    before.write_bytes(b"an older file")

    def damaged(path):
        return {name: t * wrong for name, t in loader(path).items()}

    loader = export_formats.load_file
    monkeypatch.setattr(export_formats, "load_file", damaged)
    with pytest.raises(IntegrityError, match="does not give the logits of the run"):
        export(run, "safetensors", before)
    assert os.listdir(tmp_path) == ["a.safetensors"]
    assert before.read_bytes() == b"an older file"


def test_a_file_that_can_not_be_read_back_is_not_kept(run, tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "write", lambda path, data: path.write_bytes(data[: len(data) // 2]))
    with pytest.raises(IntegrityError, match="can't be read back"):
        export(run, "torch.export", tmp_path / "a.pt2")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("format", "out", "says"), [("onxx", None, "wanted safetensors"), ("onnx", "a.pt2", "ends in")]
)
def test_wrong_options(run, format, out, says):
    if NO_ONNX and format == "onnx":
        pytest.skip(f"not installed: {', '.join(NO_ONNX)}")
    with pytest.raises(ConfigError, match=says):
        export(run, format, out)


def test_exporting_leaves_the_run_as_it_was(run, tmp_path, monkeypatch):
    files = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    kept = []
    built = exporting.load_model_file
    monkeypatch.setattr(exporting, "load_model_file", lambda *path, **how: kept.append(built(*path, **how)) or kept[-1])
    fresh, random = bits(dspreg.load(run)[0]), torch.get_rng_state()
    export(run, "safetensors", tmp_path / "a.safetensors")
    export(run, "torch.export", tmp_path / "a.pt2")
    assert [bits(model) for model, _ in kept] == [fresh, fresh]
    assert torch.equal(torch.get_rng_state(), random)
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == files
