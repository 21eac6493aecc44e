"""The target is invisible: whatever is done to it, not one training-side bit moves."""

import shutil

import numpy as np
import pytest
from PIL import Image

from dspreg.runs.folder import RunFolder
from dspreg.training import train
from dspreg.training.experiment import Experiment
from helpers import tiny

pytestmark = pytest.mark.filterwarnings("ignore::dspreg.Notice")
TARGET = "elm"


def noise(root):
    """Other pixels, and labels at random: every image moves to another class."""
    random = np.random.default_rng(1)
    paths = sorted((root / TARGET).rglob("*.png"))
    shutil.rmtree(root / TARGET)
    for i, _ in enumerate(paths):
        folder = root / TARGET / tiny.CLASSES[random.integers(3)]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (17, 23, 3), dtype=np.uint8)).save(folder / f"{i}.png")


def halved(root):
    for path in sorted((root / TARGET).rglob("*.png"))[::2]:
        path.unlink()


def doubled(root):
    for path in sorted((root / TARGET).rglob("*.png")):
        shutil.copy(path, path.with_name("again_" + path.name))


def poisoned(root):
    """All one class, all white, of absurd shapes."""
    shutil.rmtree(root / TARGET)
    (root / TARGET / "cat").mkdir(parents=True)
    for i in range(12):
        Image.new("RGB", (1 + 40 * i, 3), "white").save(root / TARGET / "cat" / f"{i}.png")


def training_side(out):
    """All of a run but what is measured on the target, and the fingerprints and sizes of its data."""
    found = tiny.ending(out)
    for record in [*found["records"], found["result"]["selected"], found["result"]["last"]]:
        del record["accuracy"][TARGET]
    del found["files"]["README.md"]  # it states the target's accuracy
    del found["result"]["run"]  # the id is of all data, the target's too
    description = RunFolder(out).description()
    for part in ("sizes", "fingerprints"):
        del description["data"][part][TARGET]
    found["description"] = {k: v for k, v in description.items() if k not in ("id", "where")}
    return found


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("seen")
    train(tiny.settings(tiny.make_images(folder / "woods")), tiny.execution(profile="always"), folder / "run")
    return training_side(folder / "run")


@pytest.mark.parametrize("change", [noise, halved, doubled, poisoned])
def test_no_training_side_bit_moves(seen, tmp_path, change):
    root = tiny.make_images(tmp_path / "woods")
    change(root)
    train(tiny.settings(root), tiny.execution(profile="always"), tmp_path / "run")
    found = training_side(tmp_path / "run")
    assert found["description"] == seen["description"]
    assert found == seen


def test_the_target_itself_was_changed(tmp_path):
    root = tiny.make_images(tmp_path / "woods")
    train(tiny.settings(root), tiny.execution(), tmp_path / "a")
    noise(root)
    train(tiny.settings(root), tiny.execution(), tmp_path / "b")
    a, b = (tiny.ending(tmp_path / name)["records"] for name in "ab")
    assert [r["accuracy"][TARGET] for r in a] != [r["accuracy"][TARGET] for r in b]


def test_a_planted_leak_is_caught(seen, tmp_path, monkeypatch):
    """An epoch as long as all domains together, the mistake of DomainBed's column of epochs."""

    def leaking(self):
        images = sum(len(inside) for inside, _ in self.splits.values())
        return max(1, images // (self.settings.batch_size * len(self.sources)))

    monkeypatch.setattr(Experiment, "epoch", property(leaking))
    root = tiny.make_images(tmp_path / "woods")
    ends = []
    for name, change in (("whole", lambda root: None), ("doubled", doubled)):
        change(root)
        settings = tiny.settings(root, algorithm="DSPReg(weight=0.05, refresh_epochs=1, measure_batches=1)")
        train(settings, tiny.execution(), tmp_path / name)
        ends.append(training_side(tmp_path / name))
    assert ends[0] != ends[1]
