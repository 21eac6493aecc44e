"""Memory layout and folded batch norm: chosen once, recorded where they are not what they always were, and kept."""

import pytest
import torch
from safetensors.torch import load_file

from dspreg import ConfigError, Execution, TrainConfig
from dspreg.errors import Notice, Preempted
from dspreg.launch.launcher import sweep
from dspreg.networks import make_backbone
from dspreg.protocol.leave_one_out import leave_one_out
from dspreg.runs.folder import RunFolder
from dspreg.runs.store import RunStore
from dspreg.training import fastest, train
from dspreg.training.evaluate import Tally, tallies
from dspreg.training.execution import environment
from dspreg.training.experiment import prepare_experiment
from helpers import tiny
from helpers.accelerators import Waits

FROZEN = {"frozen_bn": True, "algorithm": "ERM", "steps": 6, "evaluate_every": 3}
OLD = {"layout": "channels-first", "fold_bn": "never"}


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return tiny.make_images(tmp_path_factory.mktemp("images") / "woods")


@pytest.fixture(autouse=True)
def nothing_remembered(tmp_path, monkeypatch):
    monkeypatch.setenv("DSPREG_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def probed(monkeypatch):
    """Networks that were probed, of which each is faster on channels-last images."""
    asked = []

    def probe(model, image_size, *_):
        asked.append((model, image_size))
        return 0.5

    monkeypatch.setattr(fastest, "probe_layouts", probe)
    return asked


def recorded(out):
    found = RunFolder(out).description()["environment"]
    return found.get("layout"), found.get("batch_norm")


def test_a_run_says_how_it_was_computed(images, tmp_path):
    train(tiny.settings(images, **FROZEN), tiny.execution(), tmp_path / "new")
    train(tiny.settings(images, **FROZEN), tiny.execution(**OLD), tmp_path / "old")
    assert recorded(tmp_path / "new") == (None, "folded")
    assert recorded(tmp_path / "old") == (None, None)
    new, old = (list(RunFolder(tmp_path / name).records) for name in ("new", "old"))
    assert [each["accuracy"] for each in new] == [each["accuracy"] for each in old]
    assert new[-1]["log"]["loss"] == pytest.approx(old[-1]["log"]["loss"], rel=1e-4)
    weights = [load_file(tmp_path / name / "last.safetensors") for name in ("new", "old")]
    assert any(not torch.equal(weights[0][name], weights[1][name]) for name in weights[0])  # it was folded


@pytest.mark.parametrize("change", [{"frozen_bn": False}, {"model": "small-cnn"}, {"model": "test_vit"}])
def test_where_there_is_nothing_to_fold_the_environment_is_as_before(images, tmp_path, change):
    settings = tiny.settings(images, **FROZEN | change | {"image_size": 32, "steps": 1})
    train(settings, tiny.execution(), tmp_path / "new")
    train(settings, tiny.execution(**OLD), tmp_path / "old")
    assert recorded(tmp_path / "new") == (None, None)
    ids = {RunFolder(tmp_path / name).description()["id"] for name in ("new", "old")}
    assert len(ids) == 1


@pytest.mark.parametrize("begun", [OLD, {"layout": "channels-last", "fold_bn": "always"}])
@pytest.mark.filterwarnings("ignore::dspreg.Notice")
def test_a_run_is_finished_as_it_was_begun(images, tmp_path, monkeypatch, begun):
    settings = tiny.settings(images, **FROZEN, image_size=64)
    train(settings, tiny.execution(**begun), tmp_path / "whole")
    with pytest.raises(Preempted):
        train(settings, tiny.execution(**begun), tmp_path / "run", pause=tiny.stop_at(8))
    monkeypatch.setattr(fastest, "probe_layouts", lambda *_: pytest.fail("probed"))
    train(settings, tiny.execution(), tmp_path / "run")
    assert tiny.ending(tmp_path / "run") == tiny.ending(tmp_path / "whole")
    train(settings, tiny.execution(), tmp_path / "run")  # finished: nothing to choose either


@pytest.mark.filterwarnings("ignore::dspreg.Notice")
def test_another_choice_is_refused_unless_it_is_allowed(images, tmp_path):
    settings = tiny.settings(images, **FROZEN)
    with pytest.raises(Preempted):
        train(settings, tiny.execution(), tmp_path / "run", pause=tiny.stop_at(8))
    with pytest.raises(ConfigError, match=r"environment\.batch_norm: 'folded' → None"):
        train(settings, tiny.execution(fold_bn="never"), tmp_path / "run")
    changed = tiny.execution(fold_bn="never", allow_changed_environment=True)
    assert train(settings, changed, tmp_path / "run")["last"]["step"] == 5


def test_the_probe_decides_for_large_images(images, tmp_path, probed):
    with pytest.warns(Notice, match=r"--layout auto is channels-last here: test_resnet at 64 pixels takes 0\.50 of"):
        train(tiny.settings(images, **FROZEN | {"steps": 1}, image_size=64), tiny.execution(), tmp_path / "large")
    train(tiny.settings(images, **FROZEN | {"steps": 1}, image_size=32), tiny.execution(), tmp_path / "small")
    assert probed == [("test_resnet", 64)]
    assert recorded(tmp_path / "large") == ("channels-last", "folded")
    assert recorded(tmp_path / "small") == (None, "folded")


@pytest.mark.filterwarnings("ignore::dspreg.Notice")
def test_a_sweep_decides_once_and_as_it_did_before(images, tmp_path, probed, monkeypatch):
    options = {
        k: v for k, v in tiny.settings(images, **FROZEN, image_size=64).items() if k not in ("targets", "dataset")
    }
    options |= {"steps": 1}
    spec = options.pop("algorithm")
    runs = list(
        leave_one_out({f"folder:{images}": tiny.DOMAINS}, [spec], trials=1, draws=1, only="training", options=options)
    )
    sweep(runs[:2], tmp_path / "store", execution=tiny.execution())
    assert len(probed) == 1
    monkeypatch.setattr(fastest, "probe_layouts", lambda *_: 1.5)  # the machine is busy with something else now
    monkeypatch.setenv("DSPREG_CACHE", str(tmp_path / "another"))
    sweep(runs, tmp_path / "store", execution=tiny.execution())
    store = RunStore(tmp_path / "store")
    assert {recorded(store.folder(run).path) for run in runs} == {("channels-last", "folded")}


def test_a_probe_is_remembered_for_what_it_measured(tmp_path, probed, monkeypatch):
    asked = ("test_resnet", 64, True, True, 1)
    assert [fastest.layout_share(*asked) for _ in range(2)] == [0.5, 0.5]
    assert len(probed) == 1
    fastest.layout_share("test_resnet", 64, True, True, 2)  # other threads
    monkeypatch.setattr(fastest, "_processor", lambda: "another")
    fastest.layout_share(*asked)
    assert len(probed) == 3
    assert len(list((tmp_path / "cache" / "layouts").iterdir())) == 3


@pytest.mark.parametrize("content", [b"", b"{}", b'{"share": 0.1}', b'{"asked": 1, "share": "0.1"}', b"[1]", b"1"])
def test_a_damaged_memory_is_probed_again(tmp_path, probed, content):
    asked = ("test_resnet", 64, True, True, 1)
    fastest.layout_share(*asked)
    (file,) = (tmp_path / "cache" / "layouts").iterdir()
    file.write_bytes(content)
    assert fastest.layout_share(*asked) == 0.5
    assert len(probed) == 2


def test_a_cache_that_cant_be_written_costs_a_probe_only(tmp_path, probed, monkeypatch):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("DSPREG_CACHE", str(tmp_path / "file"))
    assert [fastest.layout_share("test_resnet", 64, True, True, 1) for _ in range(2)] == [0.5, 0.5]
    assert len(probed) == 2


def test_the_probe_itself():
    before = torch.random.get_rng_state(), torch.get_num_threads()
    assert 0.1 < fastest.probe_layouts("test_resnet", 64, True, True, 1) < 10
    assert fastest.probe_layouts("test_vit", 160, True, True, 1) == 1
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert torch.get_num_threads() == before[1]


@pytest.mark.parametrize(
    ("execution", "folds", "layout"),
    [
        (Execution(device="cpu"), "always", "channels-last"),
        (Execution(device="cpu", precision="bf16"), "never", "channels-last"),
        (Execution(device="cuda"), "never", "channels-first"),
        (Execution(device="cuda", layout="channels-last", fold_bn="always"), "always", "channels-last"),
        (Execution(device="cpu", layout="channels-first", fold_bn="never"), "never", "channels-first"),
    ],
)
@pytest.mark.filterwarnings("ignore::dspreg.Notice")
def test_what_auto_is(probed, execution, folds, layout):
    config = TrainConfig(dataset="x", model="test_resnet", image_size=64, frozen_bn=True)
    backbone = make_backbone("test_resnet", weights="none", image_size=64)
    found = fastest.choose_layout(fastest.choose_folding(execution, config, backbone), config, 1)
    assert (found.fold_bn, found.layout) == (folds, layout)
    if execution.device == "cpu":
        said = environment(found)
        assert said.get("layout") == (layout if layout == "channels-last" else None)


def test_no_batch_of_an_evaluation_waits_for_the_device(images, monkeypatch):
    """All counts and losses are read at once, and are those of a loop that reads every batch."""
    experiment = prepare_experiment(tiny.settings(images, **FROZEN, augment=False), tiny.execution())
    algorithm = experiment.algorithm()
    parts = [part for _, _, part in experiment.evaluation_parts(last=True)]
    reads = []
    counting = Tally.counting

    def watched(self, logits, y, **how):
        with Waits(logits, y, self.correct, self.cross_entropy) as mode:
            found = counting(self, logits, y, **how)
        reads.extend(mode.found)
        return found

    monkeypatch.setattr(Tally, "counting", watched)
    found = tallies(algorithm, parts, size=5, losses=True)
    assert reads == []
    with torch.no_grad():
        for part, tally in zip(parts, found, strict=True):
            right, loss = 0, 0.0
            for place in range(len(part)):
                x, y = part.batch([place])
                logits = algorithm.net.eval()(part.transform.normalise(x))
                right += int(logits.argmax()) == int(y)
                loss -= float(logits.double().log_softmax(1)[0, int(y)])
            assert (tally.correct, tally.total) == (right, len(part))
            assert isinstance(tally.correct, int)
            assert tally.cross_entropy == pytest.approx(loss, rel=1e-5)
            assert tally.finite is True
