"""The trainer: what it leaves, what it refuses, and how it fails."""

import json
import shutil
from contextlib import contextmanager

import pytest
import torch
from PIL import Image
from safetensors import safe_open

import dspreg
from dspreg import ConfigError, DataError, IntegrityError
from dspreg.algorithms.registry import StackSpec
from dspreg.errors import Diverged, Notice, Preempted
from dspreg.runs.folder import RunFolder
from dspreg.training import train
from dspreg.training.callbacks import Callback
from dspreg.training.checkpoint import Checkpoints
from helpers import tiny

pytestmark = pytest.mark.filterwarnings("ignore::dspreg.Notice")


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return tiny.make_images(tmp_path_factory.mktemp("images") / "woods")


def erm(images, **changes):
    return tiny.settings(images, **{"algorithm": "ERM", "steps": 5, "evaluate_every": 2, **changes})


@pytest.fixture(scope="module")
def run(images, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    train(tiny.settings(images), tiny.execution(profile="auto", domainbed_records=True), out)
    return out


# What it leaves.


def test_the_folder_holds_what_it_should(run):
    assert {p.name for p in run.iterdir()} == {
        "run.json", "records.jsonl", "refreshes.jsonl", "results.jsonl", "result.json", "README.md", "lock",
        "selected.safetensors", "last.safetensors", "trained_images.bin", "profiles",
    }  # fmt: skip
    described = json.loads((run / "run.json").read_text())
    assert described["settings"]["dataset"] == "woods"
    assert described["data"]["sizes"]["ash"] == {"in": 22, "out": 5}
    assert described["weights"] == {"source": "none", "tag": "none", "sha256": None}
    assert described["environment"]["threads"] == 1
    assert described["environment"]["torch"] == torch.__version__.partition("+")[0]
    assert "/" not in json.dumps({k: v for k, v in described.items() if k != "where"}).replace("dspreg.run/1", "")


def test_a_drawn_run_says_which_spec_was_asked_for(images, tmp_path):
    """Tables put all draws into one row, and would not know them by what was drawn."""
    train(erm(images, algorithm=" VREx()", steps=1, draw=1), tiny.execution(keep="none"), tmp_path / "run")
    described = RunFolder(tmp_path / "run").description()
    assert described["where"]["algorithm"] == "VREx"
    assert described["settings"]["algorithm"].startswith("VREx(weight=")
    assert str(StackSpec.parse("IRM(weight=2) + DSPReg(weight=0.001)").shorten()) == "IRM(weight=2)+DSPReg"


def test_records_are_of_domainbeds_steps_and_splits(run):
    records = list(RunFolder(run).records)
    assert [r["step"] for r in records] == [0, 4, 8, 12, 13]
    for record in records:
        assert record["validation"] == pytest.approx(
            sum(record["accuracy"][d]["out"] for d in ("ash", "birch", "cedar")) / 3
        )
        assert {"loss", "DSPReg.ratio", "DSPReg.R", "DSPReg.c_50"} <= set(record["log"])
    assert "DSPReg.refresh_seconds" in records[2]["seconds"]


def test_selected_is_the_first_best_by_source_validation(run):
    records, result = list(RunFolder(run).records), RunFolder(run).result()
    best = max(r["validation"] for r in records)
    assert result["selected"]["step"] == next(r["step"] for r in records if r["validation"] == best)
    assert result["last"]["step"] == 13


def test_refreshes_are_told_by_layer(run):
    lines = list(RunFolder(run).refreshes)
    assert [line["step"] for line in lines] == [5, 10]
    layers = lines[0]["layers"]
    assert "classifier" in layers
    assert all(0 <= each["mean"] <= each["max"] <= 2**0.5 + 1e-6 for each in layers.values())


def test_results_in_domainbeds_layout(run):
    lines = [json.loads(line) for line in (run / "results.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 4, 8, 12, 13]
    for line, record in zip(lines, RunFolder(run).records, strict=True):
        for e, domain in enumerate(tiny.DOMAINS):
            for split in ("in", "out"):
                assert line[f"env{e}_{split}_acc"] == record["accuracy"][domain][split]
        assert line["args"]["test_envs"] == [3]
        assert line["epoch"] == pytest.approx(line["step"] / (22 / 4))  # over the smallest domain, as DomainBed
        assert {"loss", "step_time", "mem_gb", "hparams"} <= set(line)


def test_the_card_says_what_it_is(run):
    card = (run / "README.md").read_text()
    assert "| elm | target, never seen in training | 29 | 7 |" in card
    assert "dspreg.load(" in card


def test_only_what_selection_needs_is_evaluated(images, tmp_path):
    train(erm(images), tiny.execution(), tmp_path / "run")
    for record in RunFolder(tmp_path / "run").records:
        splits = {domain: set(each) for domain, each in record["accuracy"].items()}
        target = {"in", "out"} if record["step"] == 4 else {"in"}  # the oracle looks at the last step alone
        assert splits == {"ash": {"out"}, "birch": {"out"}, "cedar": {"out"}, "elm": target}


class Listening(Callback):
    """Calls of `on_progress`, by what was going on."""

    def __init__(self):
        self.heard, self.now = {}, "before"

    def on_train_start(self, experiment, step):
        self.now = "step 0"

    def on_phase(self, description):
        self.now = description

    def on_progress(self):
        self.heard[self.now] = self.heard.get(self.now, 0) + 1

    def on_step_end(self, step, log):
        self.now = f"step {step + 1}"

    def on_evaluation(self, record):
        self.now = f"step {record['step'] + 1}"


@pytest.mark.parametrize(
    ("algorithm", "least"), [("ERM", 1), ("MTL", 1), ("SAM", 2), ("GGA(tries=3, start=0, end=9)", 4)]
)
def test_every_pass_of_a_step_is_a_sign_of_life(images, tmp_path, algorithm, least):
    """A sweep that hears nothing for ten minutes ends the run as hung, and GGA searches for longer on a CPU."""
    listening = Listening()
    given = erm(images, algorithm=algorithm, steps=4, evaluate_every=4)
    train(given, tiny.execution(), tmp_path / "run", callbacks=[listening])
    assert all(listening.heard[f"step {t}"] >= least for t in range(1, 4))


@pytest.mark.parametrize(("estimator", "of"), [("persample", "loss"), ("signed", "fisher"), ("loop", "loss")])
def test_every_batch_is_a_sign_of_life_where_c_is_measured_or_accuracy(images, tmp_path, monkeypatch, estimator, of):
    monkeypatch.setenv("DSPREG_CACHE", str(tmp_path / "cache"))  # or the images were looked at before
    listening = Listening()
    spec = f"DSPReg(refresh_steps=2, measure_batches=1, estimator={estimator!r}, of={of!r})"
    given = erm(images, algorithm=spec, steps=5, evaluate_every=4)  # c is measured before steps 2 and 4
    train(given, tiny.execution(profile="always", check_images="once"), tmp_path / "run", callbacks=[listening])
    images_each = (22, 24, 26)  # of the three sources, to measure on
    batches = {"persample": 2, "signed": 3, "loop": sum(images_each)}[estimator]  # small ones are joined
    steps = [listening.heard[f"step {t}"] for t in (1, 2, 3)]
    assert steps[1] >= steps[0] + batches
    assert steps[2] == steps[0]
    for phase in ("measuring c before training", "measuring c after training"):
        assert listening.heard[phase] >= batches
    assert listening.heard["evaluating"] >= 4  # one batch at least for each domain
    assert listening.heard["before"] >= 1  # images are looked at


class Watched:
    """A fence that looks at the folder, and what changed in it outside."""

    def __init__(self, path):
        self.path, self.entered, self.outside = path, 0, []
        self.before = self.files()

    def files(self):
        """But for the lock, and what has not got its name yet."""
        there = [p for p in self.path.rglob("*") if p.is_file() and p.name != "lock" and not p.name.endswith(".part")]
        return {str(p.relative_to(self.path)): (p.stat().st_mtime_ns, p.stat().st_size) for p in there}

    def look(self):
        if self.files() != self.before:
            self.outside.append((self.before, self.files()))

    @contextmanager
    def __call__(self):
        self.look()
        self.entered += 1
        yield
        self.before = self.files()


def test_every_file_of_a_run_changes_inside_of_its_fence(images, tmp_path):
    """A worker that slept past its lease must not get one of them through."""
    out = tmp_path / "run"
    how = tiny.execution(profile="always", keep="all", domainbed_records=True)
    with pytest.raises(Preempted):
        train(tiny.settings(images), how, out, pause=tiny.stop_at(40))
    with (out / "records.jsonl").open("a") as file:
        file.write('{"torn')
    (out / ".run.json.1.part").touch()
    fence = Watched(out)
    result = train(tiny.settings(images), how, RunFolder(out, fence=fence))
    fence.look()
    assert fence.outside == []
    assert fence.entered > len(result["files"]) + 4  # and checkpoints, and the half-written file
    assert not list(out.rglob("*.part"))


class Lost(Exception):
    pass


def test_a_fence_that_refuses_ends_the_training_with_nothing_changed(images, tmp_path):
    class Refusing(Watched):
        @contextmanager
        def __call__(self):
            self.entered += 1
            if self.entered > 6:
                raise Lost
            yield
            self.before = self.files()

    fence = Refusing(tmp_path / "run")
    with pytest.raises(Lost):
        train(erm(images), tiny.execution(), RunFolder(tmp_path / "run", fence=fence))
    assert fence.before != {}
    assert fence.files() == fence.before
    assert not list((tmp_path / "run").rglob("*.part"))


def test_what_was_called_a_display_is_a_callback_by_its_old_name(images, tmp_path):
    class Old:
        def __init__(self):
            self.told = []

        def started(self, experiment, t):
            self.told.append(("started", t))

        def stepped(self, t, log):
            self.told.append(("stepped", t))

        def recorded(self, record):
            self.told.append(("recorded", record["step"]))

    old, listening = Old(), Listening()
    with pytest.warns(Notice, match=r"train\(display=…\) is now train\(callbacks=\[…\]\)") as notices:
        train(erm(images, steps=2), tiny.execution(), tmp_path / "run", display=old)
    assert sum("display" in str(each.message) for each in notices) == 1
    assert old.told == [("started", 0), ("stepped", 0), ("recorded", 0), ("stepped", 1), ("recorded", 1)]
    with pytest.warns(Notice, match="display"):
        train(erm(images, steps=2), tiny.execution(), tmp_path / "other", display=listening)
    assert listening.heard["step 1"] > 0


def test_callbacks_are_told_of_the_end_however_it_comes(images, tmp_path):
    class Ending(Callback):
        ends = 0

        def on_train_end(self):
            self.ends += 1

    ending = Ending()
    with pytest.raises(Preempted):
        train(erm(images), tiny.execution(), tmp_path / "run", callbacks=[ending], pause=tiny.stop_at(3))
    assert ending.ends == 1
    train(erm(images), tiny.execution(), tmp_path / "run", callbacks=[ending])
    train(erm(images), tiny.execution(), tmp_path / "run", callbacks=[ending])  # finished before
    assert ending.ends == 3


@pytest.mark.parametrize(("keep", "models"), [("none", 0), ("best", 2), ("all", 5)])
def test_models_kept(images, tmp_path, keep, models):
    train(erm(images), tiny.execution(keep=keep), tmp_path / "run")
    assert len(list((tmp_path / "run").rglob("*.safetensors"))) == models
    if keep == "none":
        with pytest.raises(
            ConfigError, match=r"kept no model 'selected'\. It has none: it was trained with --keep none"
        ):
            dspreg.load(tmp_path / "run")
    if keep == "best":
        with pytest.raises(ConfigError, match=r"kept no model '2'\. It has selected, last$"):
            dspreg.load(tmp_path / "run", "2")


def test_a_kept_step_is_loaded_evaluated_and_measured(images, tmp_path):
    """Each by its own record: accuracy at that step, and the model of the last one by two names."""
    from dspreg.config.measure_config import MeasureConfig
    from dspreg.inference.evaluate_run import evaluate_run
    from dspreg.inference.profile_run import profile_run

    train(erm(images, augment_validation=False), tiny.execution(keep="all"), tmp_path / "run")
    records = {record["step"]: record for record in RunFolder(tmp_path / "run").records}
    for step in (0, 2, 4):
        found = evaluate_run(tmp_path / "run", domains=["ash"], which=str(step))
        assert (found.which, found.step) == (str(step), step)
        assert found.domains[0].scores.accuracy == records[step]["accuracy"]["ash"]["out"]
    assert len({str(dspreg.load(tmp_path / "run", w)[0].state_dict()) for w in ("4", "last")}) == 1
    assert len({str(dspreg.load(tmp_path / "run", w)[0].state_dict()) for w in ("0", "2", "4")}) == 3
    profile = profile_run(tmp_path / "run", MeasureConfig(images=4, batch=2, null=False), which="2")
    assert profile.settings["about"]["step"] == 2
    with pytest.raises(ConfigError, match=r"kept no model '3'\. It has selected, last, the steps 0, 2, 4$"):
        dspreg.load(tmp_path / "run", "3")


def test_the_loaded_model_predicts_what_was_recorded(images, run):
    """Through the public door, image by image, against the accuracy in the record."""
    from PIL import Image

    from dspreg.data.annotations import Annotations
    from dspreg.data.splits import split_grouped

    for which in ("selected", "last"):
        model, transform = dspreg.load(run, which)
        files = sorted((images / "elm").rglob("*.png"))
        labels = [tiny.CLASSES.index(file.parent.name) for file in files]
        inside, _ = split_grouped(labels, Annotations(), 0, 3)
        hits = 0
        for i in inside:
            with Image.open(files[i]) as image, torch.no_grad():
                logits = model(transform(image.convert("RGB"))[None])
            hits += model.classes[int(logits.argmax())] == files[i].parent.name
        assert hits / len(inside) == RunFolder(run).result()[which]["accuracy"]["elm"]["in"]


def test_a_model_file_is_plain_safetensors(run):
    with safe_open(run / "selected.safetensors", "pt") as file:
        assert len(list(file.keys())) > 10


# Other ways to run it.


def test_weight_zero_is_erm_through_the_whole_trainer(images, tmp_path):
    train(erm(images), tiny.execution(), tmp_path / "erm")
    train(erm(images, algorithm="DSPReg(weight=0)"), tiny.execution(), tmp_path / "dsp")
    a, b = (dspreg.load(tmp_path / name)[0].algorithm.net.state_dict() for name in ("erm", "dsp"))
    assert all(torch.equal(a[name], b[name]) for name in a)
    records = [[r["accuracy"] for r in RunFolder(tmp_path / name).records] for name in ("erm", "dsp")]
    assert records[0] == records[1]


def test_no_target_trains_on_all_domains(images, tmp_path):
    result = train(erm(images, targets=()), tiny.execution(), tmp_path / "run")
    assert set(result["selected"]["accuracy"]) == set(tiny.DOMAINS)
    assert "No domain was held out" in (tmp_path / "run" / "README.md").read_text()


def test_two_targets(images, tmp_path):
    result = train(erm(images, targets=("elm", "ash")), tiny.execution(), tmp_path / "run")
    splits = {domain: set(each) for domain, each in result["selected"]["accuracy"].items()}
    assert splits["birch"] == splits["cedar"] == {"out"}
    assert "in" in splits["elm"]
    assert "in" in splits["ash"]


@pytest.mark.parametrize("protocol", ["domainbed", "domainbed-stratified", "swad"])
def test_protocols_differ_where_they_should(images, tmp_path, protocol):
    given = erm(images, protocol=protocol)
    del given["split"]  # so that the default holds
    train(given, tiny.execution(), tmp_path / "run")
    s = RunFolder(tmp_path / "run").description()["settings"]
    assert s["split"] == "grouped"  # of images of one's own, by every protocol
    assert s["augment_validation"] == (protocol != "swad")


def test_a_random_draw_is_recorded(images, tmp_path):
    settings = erm(images, draw=2, algorithm="CORAL+DSPReg(coefficients='ones')")
    for name in ("lr", "weight_decay", "dropout"):
        del settings[name]
    train(settings, tiny.execution(), tmp_path / "run")
    s = RunFolder(tmp_path / "run").description()["settings"]
    assert 1e-5 <= s["lr"] <= 10**-3.5
    assert s["batch_size"] == 4  # given by hand
    assert "CORAL(weight=" in s["algorithm"]
    assert "coefficients='ones'" in s["algorithm"]


def test_half_precision_trains(images, tmp_path):
    train(tiny.settings(images, steps=4), tiny.execution(precision="bf16"), tmp_path / "run")
    assert RunFolder(tmp_path / "run").result()["last"]["step"] == 3


def test_the_layout_is_part_of_a_run_and_changes_no_more_than_rounding(images, tmp_path):
    """It is named only where it is not the usual one: folders of before there was a choice are gone on with."""
    runs = {}
    for layout in ("channels-first", "channels-last"):
        train(tiny.settings(images, steps=4), tiny.execution(layout=layout), tmp_path / layout)
        runs[layout] = RunFolder(tmp_path / layout)
    environments = [folder.description()["environment"].get("layout") for folder in runs.values()]
    assert environments == [None, "channels-last"]
    first, last = (list(folder.records)[-1]["log"]["loss"] for folder in runs.values())
    assert first == pytest.approx(last, rel=1e-4)
    assert len({folder.description()["id"] for folder in runs.values()}) == 2


# How it fails.


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"algorithm": "CORAL(weight=1e300)"}, r"step 0: not finite: the logged loss"),
        ({"algorithm": "DSPReg(weight=1e30, coefficients='ones')"}, r"step [01]: not finite: the (parameter|logged)"),
    ],
)
def test_what_is_not_finite_ends_the_run_as_failed(images, tmp_path, change, names):
    with pytest.raises(Diverged, match=names) as failed:
        train(erm(images, **change), tiny.execution(save_every=1), tmp_path / "run")
    assert failed.value.exit_code == 5
    folder = RunFolder(tmp_path / "run")
    assert folder.result() is None
    failure = json.loads((tmp_path / "run" / "failure.json").read_text())
    assert failure == {"step": failed.value.step, "reason": str(failed.value)}
    assert str(failed.value).startswith(f"step {failed.value.step}: ")
    with pytest.raises(ConfigError, match="failed and has no model: step"):
        dspreg.load(tmp_path / "run")
    with pytest.raises(Diverged, match="failed before"):
        train(erm(images, **change), tiny.execution(save_every=1), tmp_path / "run")


def test_the_last_finite_checkpoint_is_kept(images, tmp_path, monkeypatch):
    from dspreg.training import loop

    whole = loop.train_step

    def breaking(algorithm, batches, **how):
        log = whole(algorithm, batches, **how)
        if algorithm.t == 4:
            algorithm.net.classifier.bias.data[1] = float("nan")
        return log

    monkeypatch.setattr(loop, "train_step", breaking)
    with pytest.raises(Diverged, match=r"step 3: not finite: the parameter classifier\.bias"):
        train(erm(images), tiny.execution(save_every=1), tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    (step, state), *_ = Checkpoints(folder / "checkpoints", folder.description()["id"]).good()
    assert step == 3
    assert all(bool(t.isfinite().all()) for t in state["algorithm"].values() if isinstance(t, torch.Tensor))


def test_images_that_are_not_numbers_are_named(images, tmp_path, monkeypatch):
    from dspreg.data.transforms import Transform

    whole = Transform.normalise
    monkeypatch.setattr(Transform, "normalise", lambda self, x: whole(self, x) * float("inf"))
    with pytest.raises(Diverged, match="step 0: not finite: the images of 'ash'"):
        train(erm(images), tiny.execution(), tmp_path / "run")


def test_logits_of_the_target_that_are_not_numbers_count_as_wrong(images, tmp_path, monkeypatch):
    """They may not end the run: then the target would decide whether training goes on."""
    from dspreg.training import loop

    whole = loop.tallies

    def poisoned(algorithm, parts, **how):
        counted = whole(algorithm, parts, **how)
        return [t.counting(torch.full((1, 3), float("nan")), torch.zeros(1).long()) if p.domain == "elm" else t
                for p, t in zip(parts, counted, strict=True)]  # fmt: skip

    monkeypatch.setattr(loop, "tallies", poisoned)
    result = train(erm(images), tiny.execution(), tmp_path / "run")
    assert result["last"]["step"] == 4
    no_number = torch.full((1, 3), float("nan")), torch.zeros(1).long()
    monkeypatch.setattr(
        loop, "tallies", lambda a, parts, **how: [t.counting(*no_number) for t in whole(a, parts, **how)]
    )
    with pytest.raises(Diverged, match=r"step 0: the logits of 'ash', split 'out', are not finite"):
        train(erm(images), tiny.execution(), tmp_path / "other")


def test_a_damaged_checkpoint_is_passed_over(images, tmp_path):
    train(tiny.settings(images), tiny.execution(), tmp_path / "alone")
    with pytest.raises(Preempted):
        train(tiny.settings(images), tiny.execution(), tmp_path / "run", pause=tiny.stop_at(24))
    newest, before = sorted((tmp_path / "run" / "checkpoints").iterdir(), reverse=True)
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 4
    newest.write_bytes(data)
    with pytest.warns(dspreg.Notice, match="is damaged"):
        train(tiny.settings(images), tiny.execution(), tmp_path / "run")
    assert tiny.ending(tmp_path / "run") == tiny.ending(tmp_path / "alone")
    assert before.name < newest.name


def test_no_good_checkpoint_left_is_an_error_and_changes_nothing(images, tmp_path):
    with pytest.raises(Preempted):
        train(tiny.settings(images), tiny.execution(), tmp_path / "run", pause=tiny.stop_at(12))
    for path in (tmp_path / "run" / "checkpoints").iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    before = (tmp_path / "run" / "records.jsonl").read_bytes()
    with pytest.raises(IntegrityError, match=r"no checkpoint in .* can be used"):
        train(tiny.settings(images), tiny.execution(), tmp_path / "run")
    assert (tmp_path / "run" / "records.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"targets": ("oak",)}, ConfigError, "Unknown domain 'oak' of woods. Known: ash, birch, cedar, elm"),
        ({"targets": tiny.DOMAINS}, ConfigError, "every domain of woods is a target"),
        ({"algorithm": "ERN"}, ConfigError, "Did you mean 'ERM'"),
        ({"model": "resnet5"}, ConfigError, "resnet5"),
        ({"image_size": 0}, ConfigError, "image_size=0; wanted a whole number at least 1"),
        ({"weights": "no/such.safetensors"}, ConfigError, "no/such.safetensors"),
        ({"holdout": 0.01, "split": "domainbed"}, DataError, "leaves 27 to train on and 0 to validate with"),
        ({"dataset": "folder:no/such"}, DataError, "no/such"),
        ({"targets": tiny.DOMAINS[1:], "algorithm": "DSPReg(refresh_steps=1)"}, ConfigError, "there is 1: ash"),
    ],
    ids=str,
)  # fmt: skip
def test_refused_before_any_step(images, tmp_path, change, error, says):
    with pytest.raises(error) as refused:
        train(tiny.settings(images, **change), tiny.execution(), tmp_path / "run")
    assert says in str(refused.value)
    assert not (tmp_path / "run" / "records.jsonl").exists() or "there is 1" in says


def test_a_domain_smaller_than_the_batch_trains_with_a_notice(images, tmp_path):
    with pytest.warns(dspreg.Notice, match="'ash' has 22 images to train on, fewer than the batch of 40"):
        train(erm(images, batch_size=40, steps=2), tiny.execution(), tmp_path / "run")


def test_a_bad_image_is_named_before_the_first_step(tmp_path, monkeypatch):
    monkeypatch.setenv("DSPREG_CACHE", str(tmp_path / "cache"))
    root = tiny.make_images(tmp_path / "woods")
    image = root / "birch" / "dog" / "03.png"
    image.write_bytes(image.read_bytes()[:200])
    with pytest.raises(DataError, match=r"1 image of woods can't be used:\n  birch/dog/03\.png: "):
        train(erm(root), tiny.execution(check_images="once"), tmp_path / "run")
    assert not (tmp_path / "run" / "run.json").exists()
    image.unlink()
    train(erm(root), tiny.execution(check_images="once"), tmp_path / "run")
    assert len(list((tmp_path / "cache" / "sound").iterdir())) == 1


# What a review found.


def test_held_out_images_are_known_also_where_domains_are_not_sorted(images, tmp_path, monkeypatch):
    """A data set of one's own has the order it says, and splits go by position."""
    from dspreg.inference.seen_images import split_source
    from dspreg.protocol.description import RunDescription
    from dspreg.training.experiment import prepare_experiment

    code = f"""
from dspreg.data import DomainDataset, Folder
class Woods(DomainDataset):
    name, domains, classes = "woods", ("elm", "ash", "cedar", "birch"), {tiny.CLASSES!r}
    def domain(self, name):
        return Folder({str(images)!r}).domain(name)
"""
    (tmp_path / "woods_of_mine.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    experiment = prepare_experiment(erm(images, dataset="woods_of_mine.Woods", targets=("ash",)), tiny.execution())
    trained = RunDescription.from_json(json.loads(json.dumps(experiment.description().to_json())))
    for name in ("elm", "cedar", "birch"):
        assert split_source(trained, experiment.images[name], name) == experiment.splits[name]


def test_keeping_models_may_be_decided_later(images, tmp_path):
    with pytest.raises(Preempted):
        train(erm(images), tiny.execution(keep="none"), tmp_path / "run", pause=tiny.stop_at(12))
    train(erm(images), tiny.execution(keep="best"), tmp_path / "run")
    model, _ = dspreg.load(tmp_path / "run")
    assert sum(p.numel() for p in model.parameters()) > 1000


def test_domainbeds_records_are_a_setting_because_they_want_every_split(images, tmp_path):
    from dspreg.cli.train import summary

    with pytest.raises(Preempted):
        train(erm(images), tiny.execution(), tmp_path / "run", pause=tiny.stop_at(12))
    with pytest.raises(ConfigError, match=r"settings\.evaluate: 'needed' → 'all'"):
        train(erm(images), tiny.execution(domainbed_records=True), tmp_path / "run")
    result = train(erm(images), tiny.execution(domainbed_records=True), tmp_path / "other")
    said = summary(result, tmp_path / "other", False)
    assert "unseen elm" in said
    assert "ash" not in said  # evaluated on its training images, but not unseen


def test_a_bad_image_in_another_process_is_named_without_a_traceback(tmp_path):
    root = tiny.make_images(tmp_path / "woods")
    for path in (root / "birch").rglob("*.png"):
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError) as failed:
        train(erm(root), tiny.execution(workers=1), tmp_path / "run")
    assert "birch/" in str(failed.value)
    assert "Traceback" not in str(failed.value)


def test_a_run_inside_its_images_is_refused(images):
    with pytest.raises(ConfigError, match="lies inside the data set"):
        train(erm(images), tiny.execution(), images / "ash" / "run")
    assert not (images / "ash" / "run").exists()


def test_a_run_beside_the_domains_is_refused_before_it_looks_like_one(images):
    """Its folder was made first, and then refused as a domain without images."""
    with pytest.raises(ConfigError, match="lies inside the data set"):
        train(erm(images), tiny.execution(), images / "run")
    assert not (images / "run").exists()


def test_a_renamed_domain_is_the_same_data(images, tmp_path):
    import shutil

    from dspreg.data import Folder, fingerprint

    shutil.copytree(images, tmp_path / "woods")
    (tmp_path / "woods" / "ash").rename(tmp_path / "woods" / "rowan")
    assert fingerprint(Folder(tmp_path / "woods").domain("rowan")) == fingerprint(Folder(images).domain("ash"))
    assert fingerprint(Folder(tmp_path / "woods").domain("elm")) != fingerprint(Folder(images).domain("ash"))


# Files that change, and equal ones.


class ReplaceImages(Callback):
    """Writes other pixels over all images of a domain at a step."""

    def __init__(self, folder, step):
        self.folder, self.step = folder, step

    def on_step_end(self, step, log):
        if step == self.step:
            for path in self.folder.rglob("*.png"):
                Image.new("RGB", (20, 20), (1, 2, 3)).save(path)


@pytest.mark.parametrize("domain", ["ash", "elm"])
@pytest.mark.parametrize("workers", [0, 1])
def test_images_that_are_replaced_end_a_training_by_name(tmp_path, domain, workers):
    images = tiny.make_images(tmp_path / "woods")
    callbacks = [ReplaceImages(images / domain, 1)]
    with pytest.raises(DataError, match=rf"woods/{domain}/.*\.png was changed after this run had begun"):
        train(erm(images, steps=9), tiny.execution(workers=workers), tmp_path / "run", callbacks=callbacks)
    assert Checkpoints(tmp_path / "run" / "checkpoints", RunFolder(tmp_path / "run").description()["id"]).files()


def test_images_of_the_target_in_a_source_are_told_and_change_nothing(tmp_path):
    images = tiny.make_images(tmp_path / "woods")
    shutil.copy(images / "ash" / "cat" / "00.png", images / "elm" / "cat" / "00.png")
    with pytest.warns(Notice, match=r"woods: 1 image of the target is in a source.* elm/cat/00.png = ash/cat/00.png"):
        train(erm(images, steps=2), tiny.execution(), tmp_path / "run")
    assert RunFolder(tmp_path / "run").result()
