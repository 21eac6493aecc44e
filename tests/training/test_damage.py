"""Files of a run that change before it is finished: made again to the bit, or named; never taken for truth."""

import json
import random
import shutil
import warnings

import pytest

from dspreg.errors import IntegrityError, Notice, Preempted
from dspreg.runs.folder import RunFolder
from dspreg.training import train
from dspreg.training.callbacks import Callback
from dspreg.training.serialization import pack, unpack
from dspreg.training.state import State
from helpers import tiny

pytestmark = pytest.mark.filterwarnings("ignore::dspreg.Notice")
HOW = {"keep": "all", "profile": "auto", "save_every": 3, "domainbed_records": True}
ALGORITHM = "GroupDRO+DSPReg(weight=0.01, refresh_steps=2, measure_batches=1)"
START, MODELS = "profiles/start.safetensors", "models/step-{:08d}.safetensors"


class Stop(Callback):
    """Stops after a number of steps, without a checkpoint of that moment: as a crash does."""

    def __init__(self, steps):
        self.left = steps

    def on_step_end(self, step, log):
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return tiny.make_images(tmp_path_factory.mktemp("images") / "woods", per_class=5)


def run(images, out, *callbacks, **changes):
    settings = tiny.settings(images, steps=8, evaluate_every=2, algorithm=ALGORITHM)
    return train(settings, tiny.execution(**HOW | changes), out, callbacks=callbacks)


@pytest.fixture(scope="module")
def undisturbed(images, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "alone"
    run(images, out)
    return ending(out)


@pytest.fixture(scope="module")
def crashed(images, tmp_path_factory):
    """After six steps: models of steps 0, 2 and 4; checkpoints of 3 and 5 steps, or so."""
    out = tmp_path_factory.mktemp("crashed") / "run"
    with pytest.raises(KeyboardInterrupt):
        run(images, out, Stop(6))
    assert sorted(p.name for p in (out / "models").iterdir()) == [MODELS.format(t).split("/")[1] for t in (0, 2, 4)]
    assert len(list((out / "checkpoints").iterdir())) == 2
    return out


@pytest.fixture
def copy(crashed, tmp_path):
    shutil.copytree(crashed, tmp_path / "run")
    return tmp_path / "run"


def ending(out):
    """All that is the same in two runs; results.jsonl has DomainBed's times of steps in it."""
    found = tiny.ending(out)
    assert found["files"].pop("results.jsonl")
    return found


def flip(path, seed=0):
    data = bytearray(path.read_bytes())
    bit = random.Random(seed).randrange(8 * len(data))
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def said_by(act):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        act()
    texts = [str(each.message) for each in said if issubclass(each.category, Notice)]
    return [text for text in texts if "/run" in text]  # the others are of the method


def test_left_alone_it_ends_the_same_and_says_nothing(images, copy, undisturbed):
    assert said_by(lambda: run(images, copy)) == []
    assert ending(copy) == undisturbed
    assert {START, "profiles/end.safetensors", MODELS.format(7)} <= undisturbed["files"].keys()


@pytest.mark.parametrize("how", ["flipped", "removed"])
def test_c_before_training_is_measured_again(images, copy, undisturbed, how):
    flip(copy / START) if how == "flipped" else (copy / START).unlink()
    (said,) = said_by(lambda: run(images, copy))
    assert START in said
    assert said.endswith("; it is measured again")
    assert ending(copy) == undisturbed


def test_a_model_that_the_checkpoint_before_does_not_know_is_made_again(images, copy, undisturbed):
    flip(copy / MODELS.format(4))
    (said,) = said_by(lambda: run(images, copy))
    assert MODELS.format(4) in said
    assert said.endswith("trying the checkpoint before it")
    assert ending(copy) == undisturbed


def test_an_older_model_is_named_and_the_run_goes_on_without_it_once_it_is_removed(images, copy, undisturbed):
    name = MODELS.format(0)
    flip(copy / name)
    damaged = (copy / name).read_bytes()
    with pytest.raises(IntegrityError, match=rf"{name} is damaged .* put it back from a copy, or remove it to go on"):
        run(images, copy)
    assert (copy / name).read_bytes() == damaged
    (copy / name).unlink()
    (said,) = said_by(lambda: run(images, copy))
    assert said.endswith("is missing; the run goes on without this model")
    found = ending(copy)
    assert name not in RunFolder(copy).result()["files"]
    assert found["files"] == {n: sha for n, sha in undisturbed["files"].items() if n != name}


@pytest.mark.parametrize("name", ["records.jsonl", "refreshes.jsonl"])
def test_lines_come_back_from_the_checkpoint(images, copy, undisturbed, name):
    data = (copy / name).read_bytes()
    (copy / name).write_bytes(data[:9] + b"?" + data[10:])
    said = said_by(lambda: run(images, copy))
    assert len(said) == 1
    assert f"{name} is not what it was" in said[0]
    assert ending(copy) == undisturbed


def test_what_run_json_carries_beside_its_id_comes_back_too(images, copy, undisturbed):
    described = json.loads((copy / "run.json").read_text())
    described["where"] |= {"environments": [{"torch": "0.0"}], "thrEads": 7}
    (copy / "run.json").write_text(json.dumps(described))
    run(images, copy)
    assert RunFolder(copy).result()["environments"] == []
    assert "thrEads" not in RunFolder(copy).description()["where"]
    assert ending(copy) == undisturbed


@pytest.mark.parametrize(
    "name", ["selected.safetensors", "results.jsonl", "profiles/end.safetensors", START, "run.json"]
)
def test_damage_between_writing_and_the_end_is_named_and_mended_by_the_next_start(
    images, copy, undisturbed, monkeypatch, name
):
    finish = RunFolder.finish

    def damaging(folder, outcome):
        flip(folder / name)
        finish(folder, outcome)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "finish", damaging)
        with pytest.raises(IntegrityError, match=rf"{name}.*"):
            run(images, copy)
    assert not (copy / "result.json").exists()
    if name == "run.json":
        return  # what decides the result is verified by its id, and is not made again
    run(images, copy)
    assert ending(copy) == undisturbed


def test_a_checkpoint_of_an_earlier_version_is_resumed_and_says_what_it_cannot_verify(images, tmp_path, monkeypatch):
    """Bits are those of a run left alone, also where the earlier version resumes what this one saved."""
    whole = State.pack

    def without(state):
        return {name: value for name, value in whole(state).items() if name not in ("lines", "files", "where")}

    with monkeypatch.context() as patch:
        patch.setattr(State, "pack", without)
        with pytest.raises(KeyboardInterrupt):
            run(images, tmp_path / "run", Stop(6))
    (said,) = said_by(lambda: run(images, tmp_path / "run"))
    assert "saved by an earlier version" in said
    assert all(name in said for name in (START, MODELS.format(0), MODELS.format(2), MODELS.format(4)))
    assert RunFolder(tmp_path / "run").result() is not None


def test_every_file_written_so_far_is_vouched_for_by_the_newest_checkpoint(crashed):
    newest = max((crashed / "checkpoints").iterdir())
    saved, _ = unpack(newest.read_bytes(), "it")
    assert sorted(saved["files"]) == [MODELS.format(t) for t in (0, 2, 4)] + [START]
    assert saved["lines"]["records"].numpy().tobytes() == (crashed / "records.jsonl").read_bytes()
    assert pack(saved)


def test_a_preempted_run_vouches_for_its_files_too(images, tmp_path, undisturbed):
    settings, taken = tiny.settings(images, steps=8, evaluate_every=2, algorithm=ALGORITHM), []

    def pause():
        if len(taken) == 2:
            raise Preempted("stopped by the test")

    count = Callback()
    count.on_step_end = lambda step, log: taken.append(step)
    with pytest.raises(Preempted):
        train(settings, tiny.execution(**HOW), tmp_path / "run", callbacks=[count], pause=pause)
    flip(tmp_path / "run" / START)
    (said,) = said_by(lambda: run(images, tmp_path / "run"))
    assert said.endswith("; it is measured again")
    assert ending(tmp_path / "run") == undisturbed
