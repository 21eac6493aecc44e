"""What commands import before they say something: torch alone takes seconds."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import dspreg
from helpers.small_runs import photos, trained

HEAVY = (
    "torch", "torchvision", "timm", "numpy", "PIL", "pandas", "matplotlib", "sklearn", "scipy", "rich", "ray",
    "torch._dynamo", "shtab",
)  # fmt: skip
PROGRAM = """
import json, sys
from dspreg.cli import main
try:
    code = main(sys.argv[2:])
except SystemExit as stop:
    code = stop.code or 0
print("\\n" + json.dumps([code, [name for name in json.loads(sys.argv[1]) if name in sys.modules]]))
"""


def call(*arguments, folder):
    """Exit code, which heavy packages were imported, and what stood on stderr, of a command in a fresh process."""
    command = [sys.executable, "-c", PROGRAM, json.dumps(HEAVY), *map(str, arguments)]
    environment = {**os.environ, "HOME": str(folder), "PYTHONPATH": str(Path(dspreg.__file__).parents[1])}
    ended = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder, env=environment)
    code, imported = json.loads(ended.stdout.splitlines()[-1])
    return code, set(imported), ended.stderr


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with images of three domains, and a run of one step on them."""
    folder = tmp_path_factory.mktemp("start")
    trained(photos(folder / "photos", classes=("cat", "owl"), each=6), folder / "run", steps=1)
    (folder / "unfinished").mkdir()
    (folder / "unfinished" / "run.json").write_bytes((folder / "run" / "run.json").read_bytes())
    return folder


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("--help", 0, ""),
        ("train --help", 0, ""),
        ("train --wrong 1", 2, "unrecognised: --wrong"),
        ("train --dataset folder:missing --target a --out b", 3, "missing does not exist"),
        ("train --dataset folder:photos --target site-1 --out b", 2, "Unknown domain 'site-1'"),
        ("train --dataset PACS --root missing --target sketch --out b", 3, "PACS was not found"),
        ("predict missing photos", 2, "missing holds no run"),
        ("predict run missing.jpg", 3, "'missing.jpg' does not exist"),
        ("predict run photos --which 7", 2, "kept no model '7'"),
        ("evaluate missing", 2, "missing holds no run"),
        ("evaluate unfinished", 2, "unfinished is not finished"),
        ("evaluate run --dataset folder:missing", 3, "missing does not exist"),
        ("export missing --format onnx", 2, "missing holds no run"),
        ("measure --model runs/missing", 2, "there is no folder runs/missing"),
        ("measure --model unfinished", 2, "unfinished is not finished"),
        ("report missing", 2, "missing"),
        ("status missing", 2, "missing"),
    ],
)
def test_help_and_mistakes_are_said_without_torch(place, command, code, said):
    ended, imported, stderr = call(*command.split(), folder=place)
    assert (ended, said in stderr) == (code, True), stderr
    assert not imported & {"torch", "torchvision", "timm", "pandas", "matplotlib", "sklearn", "scipy", "ray"}


def test_the_check_sees_what_is_imported(place):
    code, imported, _ = call("predict", "run", "photos/dusk/owl/0.png", folder=place)
    assert code == 0
    assert {"torch", "PIL"} <= imported
    assert not imported & {"timm", "pandas", "matplotlib", "sklearn", "scipy", "ray", "torch._dynamo"}


def test_a_training_imports_no_more_than_it_needs(place, tmp_path):
    options = "--dataset folder:photos --target dusk --algorithm ERM --model small-cnn --weights none --image-size 16"
    options += f" --steps 1 --batch-size 4 --workers 0 --threads 1 --out {tmp_path / 'run'}"
    code, imported, _ = call("train", *options.split(), folder=place)
    assert code == 0
    assert "torch" in imported
    assert not imported & {"timm", "pandas", "matplotlib", "sklearn", "scipy", "ray", "torch._dynamo"}


def test_a_network_of_timm_is_trained_and_predicts_without_torchs_compiler(place, tmp_path):
    """It takes longer to import than timm and torchvision."""
    options = "--dataset folder:photos --target dusk --algorithm ERM --model test_resnet --weights none --image-size 32"
    options += f" --steps 1 --batch-size 4 --workers 0 --threads 1 --out {tmp_path / 'run'}"
    for command in ("train", *options.split()), ("predict", str(tmp_path / "run"), "photos/dusk/owl/0.png"):
        code, imported, _ = call(*command, folder=place)
        assert code == 0
        assert {"torch", "timm"} <= imported
        assert "torch._dynamo" not in imported
