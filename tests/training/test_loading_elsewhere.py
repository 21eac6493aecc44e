"""What was trained predicts the same after it was saved and loaded in a new process, for every method."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dspreg.training import loop, train
from helpers import tiny
from helpers.stacking import ACTING, LAYERS

pytestmark = pytest.mark.filterwarnings("ignore::dspreg.Notice")
ROOT = Path(__file__).parents[2]
STACKS = [
    "ARM(width=4)+CORAL+DSPReg(refresh_steps=1, measure_batches=1)",
    "MTL+Mixup+SAM",
    "weight_averaging.SWA(start=1)+DSPReg(refresh_steps=1, measure_batches=1)",
    "DSPReg(refresh_steps=1, measure_batches=1)+weight_averaging.SWA(start=1)",
    "ARM(width=4)+weight_averaging.SWA(start=1)",
    "helpers.averaging.Staged(start=1)+helpers.averaging.Late(start=0)",
    "helpers.averaging.Copied+helpers.averaging.Chosen(start=0)",
]
PROGRAM = """
import json, sys, torch, dspreg
from safetensors.torch import load_file, save_file
folder, runs = sys.argv[1], json.loads(sys.argv[2])
torch.set_num_threads(1)
x = load_file(f"{folder}/images.safetensors")["x"]
trust = ("weight_averaging", "helpers")
with torch.no_grad():
    loaded = {run: dspreg.load(f"{folder}/{run}", "last", trust=trust)[0](x) for run in runs}
save_file(loaded, f"{folder}/loaded.safetensors")
"""


def test_every_method_predicts_the_same_in_a_new_process(tmp_path, monkeypatch):
    from safetensors.torch import load_file, save_file

    monkeypatch.syspath_prepend(ROOT / "examples")
    images = tiny.make_images(tmp_path / "woods")
    x = torch.rand(5, 3, 24, 24, generator=torch.Generator().manual_seed(1))
    trained, finish = [], loop.finish_run

    def finished(experiment, state, *rest):
        trained.append(state.algorithm)
        return finish(experiment, state, *rest)

    monkeypatch.setattr(loop, "finish_run", finished)
    specs = ["ERM", *(ACTING.get(name, name) for name in LAYERS), *STACKS]
    expected = {}
    for i, spec in enumerate(specs):
        how = {"algorithm": spec, "steps": 3, "evaluate_every": 2}
        train(tiny.settings(images, **how), tiny.execution(), tmp_path / str(i))
        with torch.no_grad():
            expected[str(i)] = trained.pop().eval().predict(x)
    save_file({"x": x}, tmp_path / "images.safetensors")
    path = [str(ROOT / "src"), str(ROOT / "examples"), str(ROOT / "tests")]
    program = f"import sys; sys.path[:0] = {path!r}\n{PROGRAM}"
    given = [sys.executable, "-c", program, str(tmp_path), json.dumps([*expected])]
    done = subprocess.run(given, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    loaded = load_file(tmp_path / "loaded.safetensors")
    different = [spec for i, spec in enumerate(specs) if not torch.equal(loaded[str(i)], expected[str(i)])]
    assert different == []
    assert (
        len({tuple(each.flatten().tolist()) for each in expected.values()}) > len(specs) - 4
    )  # they are not one method
