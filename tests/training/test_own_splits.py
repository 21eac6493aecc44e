"""Runs on tables with groups, parts and weights: what is trained on, what is validated with, and what neither."""

import csv

import numpy as np
import pytest
from PIL import Image

from dspreg.config.train_config import Execution, TrainConfig
from dspreg.data.annotations import annotations_of
from dspreg.errors import ConfigError, DataError, Notice
from dspreg.training import train
from dspreg.training.experiment import prepare_experiment

pytestmark = pytest.mark.filterwarnings("ignore::dspreg.Notice")

EXECUTION = Execution(threads=1, profile="never", workers=0, cache="none", check_images="never", device="cpu")
SMALL = {
    "targets": ("c",), "algorithm": "ERM", "model": "small-cnn", "weights": "none", "image_size": 28, "steps": 2,
    "batch_size": 8, "lr": 1e-3, "augment": False, "augment_validation": False,
}  # fmt: skip


def table(folder, rows, columns):
    with (folder / "list.csv").open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    return f"index:{folder / 'list.csv'}"


def rows_of(folder):
    return list(csv.reader((folder / "list.csv").read_text().splitlines()))[1:]


def patients(folder, number=24, each=5, seed=0):
    """Patients are told apart at a glance, and their diagnosis is drawn by lot: nothing can be learnt of it."""
    random, rows = np.random.default_rng(seed), []
    folder.mkdir(parents=True, exist_ok=True)
    for domain in "abc":
        for patient in range(number):
            label, face = "ill" if patient % 2 else "well", random.integers(0, 256, (4, 4, 3))
            for i in range(each):
                noisy = np.kron(face, np.ones((4, 4, 1))) + random.normal(0, 8, (16, 16, 3))
                name = f"{domain}-{patient}-{i}.png"
                Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(folder / name)
                rows.append([name, label, domain, f"{domain}{patient}"])
    return table(folder, rows, ["path", "label", "domain", "group"])


def experiment(dataset, **given):
    return prepare_experiment(TrainConfig.of(SMALL | {"dataset": dataset} | given), EXECUTION)


def test_patients_on_both_sides_make_validation_look_good_and_whole_groups_do_not(tmp_path):
    """The leak that splitting image by image plants: nothing can be known of a new patient but the toss of a coin."""
    data = patients(tmp_path / "images")
    training = {"dataset": data, "steps": 200, "batch_size": 16, "lr": 3e-3, "evaluate_every": 199}
    leaking = train(SMALL | training | {"split": "stratified"}, EXECUTION, tmp_path / "leaking")
    honest = train(SMALL | training, EXECUTION, tmp_path / "honest")
    found = {name: result["last"]["validation"] for name, result in (("images", leaking), ("groups", honest))}
    assert found["images"] > 0.95
    assert found["groups"] < 0.75


def test_no_patient_is_on_both_sides_of_the_default_split_of_a_table(tmp_path):
    made = experiment(patients(tmp_path, number=5, each=3))
    assert made.settings.split == "grouped"
    for name, (inside, out) in made.splits.items():
        groups = annotations_of(made.images[name]).groups
        assert inside
        assert out
        assert not {groups[i] for i in inside} & {groups[i] for i in out}


def test_a_split_that_tears_groups_apart_says_so(tmp_path):
    data = patients(tmp_path, number=4, each=3)
    with pytest.warns(Notice, match=r"'a': groups and parts that its images have are not used with --split stratified"):
        experiment(data, split="stratified")


def test_a_single_patient_can_not_validate_itself_but_can_be_a_target(tmp_path):
    data = patients(tmp_path, number=4, each=3)
    rows = rows_of(tmp_path)
    one = [row if row[2] != "a" else [*row[:3], "only"] for row in rows]
    data = table(tmp_path, one, ["path", "label", "domain", "group"])
    with pytest.raises(DataError, match=r"'a' of list that are there to train on are of one group, 'only'"):
        experiment(data)
    assert experiment(data, targets=("a",)).sources == ("b", "c")


def parted(folder, change=None):
    """A table with parts; `change` makes other images of those for testing."""
    patients(folder, number=4, each=5)
    rows = rows_of(folder)
    parts = ["train", "train", "val", "test", ""]
    rows = [[*row[:3], parts[i % 5]] for i, row in enumerate(rows)]
    for name, *_, part in rows:
        if change and part == "test":
            Image.fromarray(np.full((16, 16, 3), change, np.uint8)).save(folder / name)
    return table(folder, rows, ["path", "label", "domain", "split"])


def test_given_parts_decide_and_test_images_are_on_no_side(tmp_path):
    made = experiment(parted(tmp_path))
    for name, (inside, out) in made.splits.items():
        parts = annotations_of(made.images[name]).parts
        assert {parts[i] for i in inside} <= {"train", ""}
        assert {parts[i] for i in out} <= {"val", ""}
        assert [parts[i] for i in made.tests[name]] == ["test"] * 4
        assert sorted([*inside, *out, *made.tests[name]]) == list(range(20))


def test_test_images_move_no_bit_of_the_training_and_are_reported(tmp_path):
    results = []
    for name, change in (("one", None), ("other", 77)):
        data = parted(tmp_path / name, change)
        results.append(train(SMALL | {"dataset": data, "steps": 4}, EXECUTION, tmp_path / f"run-{name}"))
    one, other = results
    assert (tmp_path / "run-one/last.safetensors").read_bytes() == (
        tmp_path / "run-other/last.safetensors"
    ).read_bytes()
    assert one["last"]["validation"] == other["last"]["validation"]
    for result in results:
        assert all(set(scores) >= {"test"} for scores in result["last"]["accuracy"].values())
    from dspreg.runs.folder import RunFolder

    described = RunFolder(tmp_path / "run-one").description()["data"]
    assert described["sizes"]["a"]["test"] == 4
    assert set(described["annotations"]) == {"a", "b", "c"}


def test_a_domain_that_is_all_for_testing_is_a_target_alone(tmp_path):
    patients(tmp_path, number=4, each=3)
    rows = [[*row[:3], "test" if row[2] == "c" else "train"] for row in rows_of(tmp_path)]
    data = table(tmp_path, rows, ["path", "label", "domain", "split"])
    made = experiment(data)
    assert [len(part) for part in made.splits["c"]] == [10, 2]
    with pytest.raises(DataError, match=r"'c' of list has no image to train on: its table has all of them for"):
        experiment(data, targets=("a",))


@pytest.mark.parametrize(("options", "other"), [({"balance": "sampling"}, {}), ({"balance": "loss"}, {})])
def test_the_number_of_readers_changes_no_bit(tmp_path, options, other):
    import dataclasses

    data = patients(tmp_path / "images", number=3, each=5)  # two of them well, so that there is something to balance
    options, other = options | {"split": "stratified"}, other | {"split": "stratified"}
    bits = []
    for workers in (0, 2):
        how = dataclasses.replace(EXECUTION, workers=workers)
        train(SMALL | {"dataset": data, "steps": 3} | options, how, tmp_path / f"run-{workers}")
        bits.append((tmp_path / f"run-{workers}/last.safetensors").read_bytes())
    assert bits[0] == bits[1]
    train(SMALL | {"dataset": data, "steps": 3} | other, EXECUTION, tmp_path / "plain")
    assert (tmp_path / "plain/last.safetensors").read_bytes() != bits[0]


def weighted(folder, weights):
    patients(folder, number=4, each=5)
    rows = [[*row[:3], weights[i % len(weights)]] for i, row in enumerate(rows_of(folder))]
    return table(folder, rows, ["path", "label", "domain", "weight"])


def test_weights_of_a_table_are_used_unless_that_is_switched_off(tmp_path):
    one, other = weighted(tmp_path / "one", [1, 5, 0]), weighted(tmp_path / "other", [1])
    made = experiment(one)
    for name, weights in zip(made.sources, made.loss_weights, strict=True):
        given = annotations_of(made.images[name]).weights
        mine = [given[i] for i in made.splits[name][0]]
        assert weights.tolist() == pytest.approx([w * len(mine) / sum(mine) for w in mine])
    assert experiment(one, image_weights=False).loss_weights is None
    assert experiment(other, image_weights=False).settings.to_record().get("image_weights") is None
    assert experiment(one).description().annotations != experiment(other).description().annotations
    bits = {}
    for name, data, more in (("one", one, {}), ("other", other, {}), ("off", one, {"image_weights": False})):
        train(SMALL | {"dataset": data, "steps": 3} | more, EXECUTION, tmp_path / f"run-{name}")
        from safetensors.torch import load_file

        saved = load_file(tmp_path / f"run-{name}/last.safetensors")
        bits[name] = b"".join(saved[k].numpy().tobytes() for k in sorted(saved))
    assert bits["one"] != bits["off"]
    assert bits["other"] == bits["off"]  # ones weigh nothing


def test_methods_that_can_not_weigh_samples_are_refused_before_training(tmp_path):
    data = patients(tmp_path, number=4, each=3)
    with pytest.raises(ConfigError, match="under Mixup, which mixes"):
        experiment(data, algorithm="Mixup", balance="loss")
    assert experiment(data, algorithm="Mixup", balance="sampling").loss_weights is None


def test_a_run_that_was_begun_with_domainbeds_split_goes_on_with_it(tmp_path):
    """As all runs were before there was another one, whatever columns the table has."""
    data = patients(tmp_path / "images", number=4, each=3)
    begun = {"split": "domainbed", "image_weights": False}
    train(SMALL | {"dataset": data} | begun, EXECUTION, tmp_path / "run")
    described = (tmp_path / "run/run.json").read_bytes()
    assert b"annotations" not in described
    assert b"image_weights" not in described
    train(SMALL | {"dataset": data}, EXECUTION, tmp_path / "run")  # the same command, today
    assert (tmp_path / "run/run.json").read_bytes() == described
