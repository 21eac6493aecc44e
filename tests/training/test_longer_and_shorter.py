"""Trainings that end early, hold nothing out, begin with another run's weights, or go on after their end."""

import json
import shutil

import pytest
import torch

import dspreg
from dspreg.algorithms.stack import Stack
from dspreg.config.train_config import Execution, TrainConfig, resolve_config
from dspreg.config.trained_part import named_by_contents
from dspreg.data import Folder
from dspreg.errors import ConfigError, DataError, IntegrityError, Notice, Preempted
from dspreg.io.atomic_files import sha256_of_file
from dspreg.runs.folder import KEPT_CHECKPOINT, RunFolder
from dspreg.training import prolong as prolonging
from dspreg.training import train
from dspreg.training.remarks import training_remarks
from helpers.small_runs import EXECUTION, photos, trained
from helpers.tiny import ending, execution, make_images, settings, stop_at


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("tiny") / "trees")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return photos(tmp_path_factory.mktemp("data") / "photos")


def tensors(run, which="selected"):
    model, _ = dspreg.load(run, which)
    return model.algorithm.net.state_dict()


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# --patience


def test_it_stops_when_so_many_evaluations_were_no_better(folder, tmp_path):
    """Against the records of the same training without patience."""
    given = {"steps": 40, "evaluate_every": 2, "lr": 1e-2}
    whole = list(RunFolder(trained(folder, tmp_path / "whole", **given)).records)
    best, since, end = -1.0, 0, None
    for each in whole:
        since = 0 if each["validation"] > best else since + 1
        best = max(best, each["validation"])
        if since == 3:
            end = each["step"]
            break
    assert end is not None, "this training never stalls: the test needs another seed"
    run = RunFolder(trained(folder, tmp_path / "patient", **given, patience=3))
    short = list(run.records)
    assert short[-1]["step"] == end < 39
    assert [r["accuracy"] for r in short] == [r["accuracy"] for r in whole[: len(short)]]
    result = run.result()
    assert result["last"]["step"] == end
    assert result["selected"]["validation"] == best
    assert any(f"stopped after step {end} of 40" in each for each in result["remarks"])
    assert f"of 0 … {end}" in (run / "README.md").read_text()


@pytest.mark.parametrize("patience", [0, 3])
def test_layers_are_not_told_of_the_last_evaluation(folder, tmp_path, monkeypatch, patience):
    """What they would change then, the model that was evaluated and is saved does not have."""
    told = []
    monkeypatch.setattr(Stack, "report_validation", lambda self, validation: told.append(validation.step))
    run = trained(folder, tmp_path / "run", steps=40, evaluate_every=2, lr=1e-2, patience=patience)
    records = list(RunFolder(run).records)
    assert (records[-1]["step"] < 39) == bool(patience)
    assert told == [each["step"] for each in records[:-1]]


def test_one_that_was_interrupted_stops_at_the_same_step(folder, tmp_path):
    given = {"steps": 40, "evaluate_every": 2, "lr": 1e-2, "patience": 3, "dataset": f"folder:{folder}"}
    whole = ending(trained(folder, tmp_path / "whole", **given))
    base = {"targets": ("noon",), "algorithm": "ERM", "model": "small-cnn", "weights": "none", "image_size": 28,
            "batch_size": 4, "augment": False, "augment_validation": False}  # fmt: skip
    for moment in (6, 9, 4):
        with pytest.raises(Preempted):
            train(base | given, EXECUTION, tmp_path / "again", pause=stop_at(moment))
    train(base | given, EXECUTION, tmp_path / "again")
    assert ending(tmp_path / "again") == whole


def test_it_is_part_of_the_identity_and_old_runs_keep_theirs():
    config = TrainConfig(dataset="digits", algorithm="ERM")
    assert not {"patience", "select_by", "init"} & config.to_record().keys()
    assert TrainConfig(dataset="digits", algorithm="ERM", patience=2).to_record()["patience"] == 2
    runs = [dspreg.Run(dataset="digits", targets=("print",), algorithm="ERM", options=o) for o in ({}, {"patience": 0})]
    assert runs[0].id == runs[1].id
    assert runs[0].id != dspreg.Run(dataset="digits", targets=("print",), algorithm="ERM", options={"patience": 1}).id


# --select-by


def test_the_step_is_selected_by_it_and_the_records_have_it(folder, tmp_path):
    run = RunFolder(trained(folder, tmp_path / "run", steps=12, evaluate_every=2, select_by="log-loss"))
    records = list(run.records)
    losses = [sum(r["metrics"][d]["log-loss"] for d in ("dawn", "dusk")) / 2 for r in records]
    assert run.result()["selected"]["step"] == records[losses.index(min(losses))]["step"]
    assert set(records[0]["metrics"]) == {"dawn", "dusk"}  # never the target
    table = dspreg.report(tmp_path / "run", selection="training")
    assert table.tables[0].rows


def test_recorded_figures_are_those_of_evaluate(folder, tmp_path):
    run = trained(folder, tmp_path / "run", steps=3, evaluate_every=5, select_by="macro-f1")
    recorded = list(RunFolder(run).records)[-1]["metrics"]
    for each in dspreg.evaluate(run, which="last").domains[:2]:
        assert each.figures["macro-f1"] == pytest.approx(recorded[each.domain]["macro-f1"], rel=1e-12)
        assert each.figures["log-loss"] == pytest.approx(recorded[each.domain]["log-loss"], rel=1e-5)


def test_training_itself_is_the_same(folder, tmp_path):
    one = trained(folder, tmp_path / "one", steps=5)
    other = trained(folder, tmp_path / "other", steps=5, select_by="worst-domain")
    assert same(tensors(one, "last"), tensors(other, "last"))


def test_a_metric_that_no_source_has_is_told_before_anything_is_trained(tmp_path):
    folder = photos(tmp_path / "one", classes=("cat", "dog"), each=6)
    for domain in ("dawn", "dusk"):  # sources of one class each; the target's two do not help
        shutil.rmtree(folder / domain / ("dog" if domain == "dawn" else "cat"))
    with pytest.warns(Notice), pytest.raises(DataError, match="select_by=auroc needs held-out images of two classes"):
        trained(folder, tmp_path / "run", select_by="auroc")
    assert not (tmp_path / "run").exists()


# --holdout 0


def test_all_images_are_trained_on_and_the_last_step_is_selected(folder, tmp_path):
    run = trained(folder, tmp_path / "final", steps=6, evaluate_every=2, holdout=0.0, targets=())
    described, result = RunFolder(run).description(), RunFolder(run).result()
    assert described["data"]["sizes"] == {name: {"in": 36, "out": 0} for name in ("dawn", "dusk", "noon")}
    assert result["selected"] == result["last"] == {"step": 5, "validation": None, "accuracy": {}}
    assert same(tensors(run), tensors(run, "last"))
    card = (run / "README.md").read_text()
    assert "trained on all images of the sources" in card
    assert dspreg.predict(run, folder / "noon" / "cat" / "0.png")[0].label in ("cat", "dog", "owl")


def test_a_target_is_still_reported_and_the_tables_say_what_is_missing(folder, tmp_path):
    run = trained(folder, tmp_path / "runs" / "a", steps=3, holdout=0.0)
    accuracy = RunFolder(run).result()["last"]["accuracy"]
    assert accuracy.keys() == {"noon"}
    found = {each.domain: each for each in dspreg.evaluate(run).domains}
    assert found["noon"].scores.accuracy == accuracy["noon"]["in"]  # of all its images
    assert found.keys() == {"noon"}  # of the sources nothing was held out
    assert "trained on all images of the sources" in str(dspreg.report(tmp_path / "runs"))
    assert len(dspreg.load_runs(tmp_path / "runs")) == 1


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ({"patience": 2}, "patience=2 need held-out images"),
        ({"select_by": "auroc"}, "select_by=auroc need held-out images"),
        ({"algorithm": "SWAD"}, "SWAD decides by held-out images"),
        ({"algorithm": "ERM+SWAD"}, "SWAD decides by held-out images"),
    ],
)
def test_what_needs_held_out_images_is_refused_by_name(folder, tmp_path, what, says):
    with pytest.raises(ConfigError, match=says):
        trained(folder, tmp_path / "run", holdout=0.0, **what)
    assert not (tmp_path / "run").exists()


def test_soups_and_calibration_of_it_are_refused_by_name(folder, tmp_path):
    run = trained(folder, tmp_path / "a", holdout=0.0)
    with pytest.raises(ConfigError, match="holdout"):
        dspreg.average_runs([run, trained(folder, tmp_path / "b", holdout=0.0, lr=2e-3)], tmp_path / "soup")
    with pytest.raises(ConfigError, match="held no images out"):
        dspreg.calibrate(run)


# --init


def test_it_starts_with_the_weights_that_the_run_predicts_with(folder, tmp_path):
    """At a learning rate too small to move a weight, the weights of the averaged run are those of the new one."""
    first = trained(folder, tmp_path / "first", steps=6, algorithm="SWA(start=2)")
    second = trained(folder, tmp_path / "second", steps=1, init=str(first), lr=1e-30)
    assert same(tensors(first), tensors(second))
    described = RunFolder(second).description()
    assert described["settings"]["init"] == named_by_contents(sha256_of_file(first / "selected.safetensors"))
    assert described["where"]["init"] == str(first)


def test_another_place_is_the_same_run_and_another_run_is_not(folder, tmp_path):
    first = trained(folder, tmp_path / "first")
    shutil.copytree(first, tmp_path / "copy")
    run = trained(folder, tmp_path / "second", init=str(first))
    assert trained(folder, run, init=str(tmp_path / "copy")) == run  # verified and left as it is
    other = trained(folder, tmp_path / "other", trial=1)
    with pytest.raises(ConfigError, match=r"settings.init"):
        trained(folder, run, init=str(other))


def test_layers_that_remember_the_start_remember_this_one(folder, tmp_path):
    """L2SP pulls towards the start; so strongly, that nothing else moves."""
    first = trained(folder, tmp_path / "first", steps=6)
    run = trained(folder, tmp_path / "run", steps=1, init=str(first), algorithm="L2SP(alpha=1.0)", lr=1e-30)
    assert same(tensors(first), tensors(run))


def test_other_classes_begin_with_a_classifier_of_their_own(folder, tmp_path):
    first = trained(folder, tmp_path / "first", steps=3)
    fewer = photos(tmp_path / "fewer", classes=("bee", "cat"))
    with pytest.warns(Notice, match="knows other classes: the classifier starts anew"):
        run = trained(fewer, tmp_path / "run", steps=1, init=str(first), lr=1e-30)
    ours, theirs = tensors(run), tensors(first)
    assert all(torch.equal(ours[n], theirs[n]) for n in ours if n.startswith("featurizer."))
    assert ours["classifier.weight"].shape == (2, theirs["classifier.weight"].shape[1])


def test_another_network_no_run_and_an_unfinished_one_are_refused(folder, tmp_path):
    first = trained(folder, tmp_path / "first")
    with pytest.raises(ConfigError, match="add --image-size 28"):
        trained(folder, tmp_path / "a", init=str(first), image_size=32)
    with pytest.raises(ConfigError, match="add --model small-cnn"):
        trained(folder, tmp_path / "a", init=str(first), model="test_resnet")
    with pytest.raises(ConfigError, match="holds no run"):
        trained(folder, tmp_path / "a", init=str(tmp_path / "nowhere"))
    (first / "result.json").unlink()
    with pytest.raises(ConfigError, match="is not finished"):
        trained(folder, tmp_path / "a", init=str(first))
    assert not (tmp_path / "a").exists()


def test_a_run_that_saw_the_target_is_no_start(folder, tmp_path):
    first = trained(folder, tmp_path / "first", targets=("dawn",))
    with pytest.raises(ConfigError, match=r"was trained on 'noon'.*held out here"):
        trained(folder, tmp_path / "a", init=str(first))
    with pytest.raises(ConfigError, match="was trained on 'noon'"):  # by its images, and not by its name
        trained(shutil.copytree(folder, tmp_path / "moved"), tmp_path / "a", init=str(first))
    assert not (tmp_path / "a" / "run.json").exists()


def test_a_linear_probe_is_of_the_features_that_it_starts_with(folder, tmp_path):
    """At a learning rate of nearly 0 it predicts what the run predicts, image by image."""
    first = trained(folder, tmp_path / "first", steps=6, lr=1e-2)
    run = trained(folder, tmp_path / "probe", steps=1, init=str(first), train="head", lr=1e-30)
    assert same(tensors(first), tensors(run))
    ours, theirs = (RunFolder(each).result()["selected"]["accuracy"] for each in (run, first))
    assert (ours["noon"]["in"], ours["dawn"]["out"]) == (theirs["noon"]["in"], theirs["dawn"]["out"])
    other = trained(folder, tmp_path / "other", steps=1, train="head", lr=1e-30)  # the features of no run
    assert RunFolder(other).result()["selected"]["accuracy"]["noon"]["in"] != theirs["noon"]["in"]


def test_the_start_of_wise_ft_is_not_guessed(folder, tmp_path):
    first = trained(folder, tmp_path / "first")
    run = trained(folder, tmp_path / "run", init=str(first))
    with pytest.raises(ConfigError, match="began with the weights of another run"):
        dspreg.interpolate_to_start(run, tmp_path / "soup", [0.5])


# More --steps


UNSCALED = "GroupDRO+DSPReg(weight=0.05, refresh_steps=5, measure_batches=1, engine='momentum', estimator='signed')"


def longer(images, **changes):
    return settings(images, algorithm=UNSCALED, **changes)


def whole_ending(out):
    """What a run leaves, but for clocks and the folder of the checkpoint."""
    found = ending(out)
    found["files"] = {n: sha for n, sha in found["files"].items() if not n.startswith(KEPT_CHECKPOINT)}
    return found


@pytest.mark.filterwarnings("ignore::dspreg.Notice")
@pytest.mark.parametrize(("first", "every"), [(7, 4), (9, 4), (1, 4), (14, 5)])
def test_a_prolonged_run_is_bitwise_one_of_that_length(images, tmp_path, first, every):
    """With a last step that is evaluated anyway (9 of 4), and without; from the first step on."""
    kept = execution(keep_checkpoint=True, keep="all", save_every=None, profile="auto")
    train(longer(images, steps=18, evaluate_every=every), kept, tmp_path / "whole")
    train(longer(images, steps=first, evaluate_every=every), kept, tmp_path / "run")
    open_interval = {name: value for name, value in longer(images, steps=18).items() if name != "evaluate_every"}
    train(open_interval, kept, tmp_path / "run")  # keeps the interval it was begun with
    assert whole_ending(tmp_path / "run") == whole_ending(tmp_path / "whole")
    ids = [RunFolder(tmp_path / name).description()["id"] for name in ("run", "whole")]
    assert ids[0] == ids[1]


@pytest.mark.filterwarnings("ignore::dspreg.Notice")
def test_twice_and_killed_anywhere(images, tmp_path, monkeypatch):
    """Killed after every change of a file while the run is being prolonged."""
    kept = execution(keep_checkpoint=True)
    train(longer(images, steps=18, evaluate_every=4), kept, tmp_path / "whole")
    train(longer(images, steps=6, evaluate_every=4), kept, tmp_path / "six")
    train(longer(images, steps=11), kept, tmp_path / "six")
    described = {}
    monkeypatch.setattr("dspreg.training.loop.prolong", lambda f, d: described.update(d) or prolonging.prolong(f, d))

    class Killed(BaseException):
        pass

    for moment in range(12):
        out = tmp_path / f"killed-{moment}"
        shutil.copytree(tmp_path / "six", out)
        left = [moment]

        class Fence:
            def __enter__(self, left=left):
                if left[0] == 0:
                    raise Killed
                left[0] -= 1

            def __exit__(self, *_):
                pass

        run = RunFolder(out)
        with pytest.raises((Killed, Preempted)):
            train(longer(images, steps=18), kept, RunFolder(out, fence=Fence), pause=stop_at(3))
        del run
        train(longer(images, steps=18), kept, out)
        assert whole_ending(out) == whole_ending(tmp_path / "whole"), moment


@pytest.mark.filterwarnings("ignore::dspreg.Notice")
def test_without_a_checkpoint_it_says_what_to_do(images, tmp_path):
    run = tmp_path / "run"
    train(longer(images, steps=5), execution(), run)
    before = ending(run)
    with pytest.raises(ConfigError, match=r"--keep-checkpoint keeps one.*--init"):
        train(longer(images, steps=9), execution(), run)
    with pytest.raises(ConfigError, match="holds another training"):
        train(longer(images, steps=3), execution(), run)  # shorter is another one
    with pytest.raises(ConfigError, match="holds another training"):
        train(longer(images, steps=9, lr=1e-4), execution(), run)
    assert ending(run) == before


def test_what_is_scaled_to_the_length_is_refused(images, tmp_path):
    run, kept = tmp_path / "run", execution(keep_checkpoint=True)
    with pytest.warns(Notice, match="start"):
        train(settings(images, algorithm="SWA", steps=5), kept, run)
    with pytest.warns(Notice), pytest.raises(ConfigError, match=r"scaled to the number of steps, .*SWA\(start=2\)"):
        train(settings(images, algorithm="SWA", steps=9), kept, run)
    assert RunFolder(run).result() is not None


def test_one_that_lost_patience_is_refused(folder, tmp_path):
    given = {"steps": 40, "evaluate_every": 2, "lr": 1e-2, "patience": 1}
    run = trained(folder, tmp_path / "run", **given)
    assert RunFolder(run).result()["last"]["step"] < 39
    with pytest.raises(ConfigError, match="would stop there again"):
        trained(folder, run, **(given | {"steps": 50}))


@pytest.mark.filterwarnings("ignore:.*fixed point:dspreg.Notice")
def test_a_damaged_checkpoint_is_not_used(images, tmp_path):
    run, kept = tmp_path / "run", execution(keep_checkpoint=True)
    train(longer(images, steps=5), kept, run)
    (checkpoint,) = (run / KEPT_CHECKPOINT).glob("step-*")
    checkpoint.write_bytes(checkpoint.read_bytes()[:-1] + b"x")
    with pytest.warns(Notice, match="damaged"), pytest.raises(ConfigError, match="kept no checkpoint"):
        train(longer(images, steps=9), kept, run)
    assert RunFolder(run).result() is not None


@pytest.mark.filterwarnings("ignore::dspreg.Notice")
def test_damage_is_still_damage(images, tmp_path):
    """A result of another run is not taken for one that is being prolonged."""
    for name, steps in (("a", 5), ("b", 6)):
        train(longer(images, steps=steps), execution(keep_checkpoint=True), tmp_path / name)
    shutil.copy(tmp_path / "a" / "result.json", tmp_path / "b" / "result.json")
    with pytest.raises(IntegrityError):
        train(longer(images, steps=6), execution(keep_checkpoint=True), tmp_path / "b")


# The default method


def test_own_folders_and_benchmarks_have_different_defaults(folder):
    own = resolve_config(TrainConfig(dataset=f"folder:{folder}"), Folder(folder))
    digits = resolve_config(TrainConfig(dataset="digits"), dspreg.open_dataset("digits"))
    assert (own.algorithm, digits.algorithm) == ("SWA", "DSPReg")


@pytest.mark.filterwarnings("ignore::dspreg.Notice")
def test_a_run_that_was_begun_when_another_default_held_goes_on_with_it(images, tmp_path):
    given = {name: value for name, value in settings(images, steps=6).items() if name != "algorithm"}
    with pytest.raises(Preempted):
        train(given | {"algorithm": UNSCALED}, execution(), tmp_path / "run", pause=stop_at(4))
    train(given, execution(), tmp_path / "run")
    assert "DSPReg" in RunFolder(tmp_path / "run").description()["settings"]["algorithm"]
    train(given | {"algorithm": UNSCALED}, execution(), tmp_path / "whole")
    assert ending(tmp_path / "run") == ending(tmp_path / "whole")


# What a training says of itself


def lines(*validation):
    return [{"step": 10 * n, "validation": v} for n, v in enumerate(validation)]


def remarks(validation, *, selected, steps=None, predicted=(), classes=("a", "b")):
    records = lines(*validation)
    return training_remarks(
        records, steps=steps or records[-1]["step"] + 1, selected=selected, values=list(validation),
        predicted=predicted, classes=classes,
    )  # fmt: skip


def test_one_that_rose_and_fell_says_nothing():
    assert remarks([0.2, 0.5, 0.7, 0.8, 0.8, 0.79, 0.8, 0.79], selected=30) == []


def test_one_that_still_rises_says_so():
    (said,) = remarks([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.69], selected=60)
    assert "still rises, by 14.5 points" in said


def test_one_selected_at_the_last_step_says_so():
    (said,) = remarks([0.2, 0.5, 0.7, 0.8, 0.8, 0.8, 0.8, 0.805], selected=70)
    assert "the last evaluation is the one selected" in said


def test_few_evaluations_say_nothing_of_where_it_goes():
    assert remarks([0.1, 0.2, 0.3], selected=20) == []


def test_a_collapse_says_so_and_a_data_set_of_one_kind_is_none():
    (said,) = remarks([0.5], selected=0, predicted=[[50, 50], [0, 100]])
    assert "predicts 'b' for 100 % of 100 held-out images" in said
    assert remarks([0.5], selected=0, predicted=[[5, 95], [0, 100]]) == []
    assert remarks([0.5], selected=0, predicted=[[50, 50], [40, 60]]) == []


def test_a_run_that_collapses_says_so_in_its_result_and_card(folder, tmp_path):
    run = RunFolder(trained(folder, tmp_path / "run", steps=2, lr=1e3))
    (said,) = run.result()["remarks"]
    assert "held-out images of the sources" in said
    assert "Before you use it" in (run / "README.md").read_text()
    assert json.loads((run / "result.json").read_text())["remarks"] == [said]


def test_a_run_that_does_not_has_no_such_field(folder, tmp_path):
    assert "remarks" not in RunFolder(trained(folder, tmp_path / "run", steps=12, lr=3e-3)).result()


def test_the_execution_is_no_part_of_the_identity():
    assert Execution(keep_checkpoint=True) != Execution()
    assert "keep_checkpoint" not in TrainConfig(dataset="digits").to_record()
