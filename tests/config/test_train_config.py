"""Defaults and draws, literally as DomainBed and SWAD have them, and what is refused."""

import dataclasses
import os
import re
import subprocess
import sys
import typing  # noqa: F401
from types import SimpleNamespace

import pytest

from dspreg.config.defaults import PROTOCOLS, default_text
from dspreg.config.options import MOST, declared_options, option
from dspreg.config.parse import parse_option
from dspreg.config.train_config import (
    EXECUTION_OPTIONS,
    OPTIONS,
    TRAIN_OPTIONS,
    Execution,
    TrainConfig,
    resolve_config,
)
from dspreg.data import Digits
from dspreg.data.benchmarks.domain_net import DomainNet
from dspreg.data.benchmarks.office_home import OfficeHome
from dspreg.data.benchmarks.pacs import PACS
from dspreg.data.benchmarks.terra_incognita import TerraIncognita
from dspreg.data.benchmarks.vlcs import VLCS
from dspreg.errors import ConfigError
from dspreg.metrics import SELECT_BY


def facts(cls):
    """What the defaults depend on, of a data set whose files are not here."""
    names = "name", "steps", "evaluate_every", "image_size", "channels", "small", "own", "tensors"
    return SimpleNamespace(**{n: getattr(cls, n) for n in names})


DATA = {cls.name: facts(cls) for cls in (PACS, VLCS, OfficeHome, TerraIncognita, DomainNet, Digits)}


def settings(dataset="PACS", **given):
    return resolve_config(TrainConfig.of({"dataset": dataset, **given}), DATA[dataset])


LARGE = {
    "model": "resnet50.tv_in1k", "weights": "default", "image_size": 224, "steps": 5_001, "batch_size": 32, "lr": 5e-5,
    "weight_decay": 0.0, "dropout": 0.0, "frozen_bn": True, "augment": "domainbed", "augment_validation": True,
    "split": "domainbed", "holdout": 0.2, "evaluate_every": 300, "evaluate": "needed", "evaluation_batch": 64,
    "targets": (), "algorithm": "DSPReg", "trial": 0, "draw": 0,
    "same_draws": False, "select_by": "accuracy", "patience": 0, "init": "none",
    "image_weights": False, "balance": "none", "optimizer": "adam", "schedule": "constant", "warmup": 0,
    "layer_decay": 1.0, "train": "all", "features": "default", "head": "random",
    "exif": False, "alpha": "drop", "window": "none", "channels": 3, "resize": "squash", "shrink": False,
}  # fmt: skip
SMALL = LARGE | {
    "model": "small-cnn", "image_size": 28, "steps": 301, "lr": 1e-3, "augment": "none", "augment_validation": False,
    "evaluate_every": 50,
}  # fmt: skip
SWAD = {"augment_validation": False, "evaluate_every": 200, "evaluation_batch": 128}


@pytest.mark.parametrize(
    ("dataset", "protocol", "expected"),
    [
        *((name, "domainbed", LARGE) for name in ("PACS", "VLCS", "OfficeHome", "TerraIncognita")),
        ("DomainNet", "domainbed", LARGE | {"evaluate_every": 1_000}),
        ("digits", "domainbed", SMALL),
        ("PACS", "domainbed-stratified", LARGE | {"split": "stratified"}),
        ("digits", "domainbed-stratified", SMALL | {"split": "stratified"}),
        *((name, "swad", LARGE | SWAD) for name in ("PACS", "VLCS", "OfficeHome", "TerraIncognita")),
        ("DomainNet", "swad", LARGE | SWAD | {"steps": 15_001, "evaluate_every": 1_000}),
        ("digits", "swad", SMALL | {"evaluation_batch": 128}),
    ],
)
def test_every_default_of_every_protocol(dataset, protocol, expected):
    made = settings(dataset, protocol=protocol)
    assert dataclasses.asdict(made) == expected | {"dataset": dataset, "protocol": protocol}


OWN = SimpleNamespace(
    name="photos",
    steps=5_001,
    evaluate_every=300,
    image_size=224,
    channels=3,
    small=False,
    own=True,
    tensors=False,
)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_own_images_are_split_by_group_and_class_under_every_protocol(protocol):
    made = resolve_config(TrainConfig(dataset="folder:photos", protocol=protocol), OWN)
    assert (made.split, made.image_weights) == ("grouped", True)
    benchmark = settings(protocol=protocol)
    assert {n: v for n, v in vars(made).items() if v != getattr(benchmark, n)} == {
        "dataset": "folder:photos", "algorithm": "SWA", "split": "grouped", "image_weights": True, "exif": True,
        "alpha": "white", "window": "auto", "shrink": True,
    }  # fmt: skip


def test_a_run_begun_on_own_images_before_that_goes_on_with_its_split():
    begun = resolve_config(TrainConfig(dataset="photos", split="domainbed", image_weights=False), OWN).to_record()
    assert begun["split"] == "domainbed"
    assert not {"image_weights", "balance"} & begun.keys()
    resumed = resolve_config(TrainConfig(dataset="folder:photos"), OWN, begun)
    assert (resumed.split, resumed.image_weights, resumed.balance) == ("domainbed", False, "none")
    changed = resolve_config(TrainConfig(dataset="folder:photos", split="grouped"), OWN, begun)
    assert changed.split == "grouped"  # and is refused, as any other setting that was changed


def test_the_protocols_are_these():
    assert set(PROTOCOLS) == {"domainbed", "domainbed-stratified", "swad"}


@pytest.mark.parametrize(
    ("dataset", "draw", "trial", "expected"),
    [
        ("PACS", 1, 0, {"lr": 2.7028930742148706e-05, "weight_decay": 0.00044832883881609976, "batch_size": 39,
                        "dropout": 0.5}),
        ("DomainNet", 1, 0, {"lr": 2.7028930742148706e-05, "weight_decay": 0.00044832883881609976, "batch_size": 28,
                             "dropout": 0.5}),
        ("digits", 1, 0, {"lr": 0.00011906162909279594, "batch_size": 372, "weight_decay": 0.0, "dropout": 0.0}),
        ("PACS", 1, 1, {"lr": 2.2352558725944602e-05, "weight_decay": 1.9967320578799288e-06, "batch_size": 8,
                        "dropout": 0.5}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_random_draws_are_domainbeds(dataset, draw, trial, expected, protocol):
    """The numbers were produced by DomainBed itself."""
    made = dataclasses.asdict(settings(dataset, draw=draw, trial=trial, protocol=protocol))
    assert {name: made[name] for name in expected} == expected
    plain = dataclasses.asdict(settings(dataset, protocol=protocol, trial=trial))
    assert {n for n in made if made[n] != plain[n]} == {"draw", *(n for n in expected if expected[n] != plain[n])}


def test_given_options_go_before_drawn_ones_and_drawn_ones_before_defaults():
    made = settings(draw=1, lr=0.5, batch_size=None)
    assert (made.lr, made.batch_size, made.holdout) == (0.5, 39, 0.2)


@pytest.mark.parametrize(
    ("given", "every"),
    [
        ({"steps": 5_001}, 300),
        ({"steps": 10_000}, 300),
        ({"steps": 500}, 30),  # 300 · 500/5001 = 29.99
        ({"steps": 2_500}, 150),
        ({"steps": 10}, 1),
        ({"steps": 1}, 1),
        ({"steps": 500, "evaluate_every": 77}, 77),
        ({"steps": 5_001, "evaluate_every": 77}, 77),
        ({"steps": 500, "protocol": "swad"}, 20),
    ],
)
def test_short_runs_are_evaluated_more_often_as_often_in_all(given, every):
    made = settings(**given)
    assert made.evaluate_every == every
    assert made.steps == given["steps"]


@pytest.mark.parametrize(("every", "steps"), [(200, 5_001), (300, 4_801), (1_000, 5_001), (5_000, 5_001), (7, 4_999)])
def test_swad_ends_with_an_evaluation(every, steps):
    """floor(steps/freq)·freq + 1, as SWAD has it."""
    assert settings(protocol="swad", evaluate_every=every).steps == steps
    assert (steps - 1) % every == 0


def test_a_whole_number_is_as_good_as_a_number_and_the_same_training():
    """0 and 0.0 are written differently, and the id of a run is made of what is written."""
    one, other = settings(lr=1, weight_decay=0), settings(lr=1.0, weight_decay=0.0)
    assert [repr(value) for value in dataclasses.astuple(one)] == [repr(value) for value in dataclasses.astuple(other)]


# What is refused.

WRONG_TYPES = {
    str: [3, None, True, ["a"], b"a"],
    bool: [1, 0, "true", None],
    int: [1.0, "3", True, None, [1]],
    float: ["0.1", True, None, float("nan"), float("inf"), -float("inf"), [0.1], 1j],
    tuple: ["sketch", ["sketch"], (1,), None, {"sketch"}],
}
OUTSIDE = {
    "protocol": ["Domainbed", ""],
    "trial": [-1],
    "draw": [-1],
    "image_size": [0, -1, 4_097],
    "steps": [0, -5],
    "batch_size": [0],
    "lr": [0, 0.0, -1e-9],
    "weight_decay": [-1e-9],
    "dropout": [-0.1, 1, 1.0, 1.5],
    "split": ["random"],
    "balance": ["classes", ""],
    "holdout": [1, 1.0, -0.2],
    "select_by": ["f1", "Accuracy"],
    "patience": [-1],
    "evaluate_every": [0],
    "evaluate": ["some"],
    "evaluation_batch": [0],
    "augment": ["heavy", "my module.f", ".f"],
    "alpha": ["grey", "White"],
    "window": ["5", "9:1", "percentiles"],
    "channels": [0, -1, 257],
    "resize": ["stretch"],
    "optimizer": ["Adam", "adagrad"],
    "schedule": ["cos"],
    "warmup": [-1],
    "layer_decay": [0, -0.5, 1.1],
    "features": ["pooled"],
    "threads": [0, -1],
    "precision": ["fp8", "float64"],
    "layout": ["channels_last", "NHWC"],
    "fold_bn": ["yes", "folded"],
    "workers": [-1],
    "cache": ["Disk"],
    "keep": ["last"],
    "save_every": [0],
    "profile": ["yes"],
    "check_images": ["always"],
    "track": ["tensor-board", "", "mlflow,", "mlflow,mlflow", "mlflow, wandb"],
}
INSIDE = {
    "protocol": list(PROTOCOLS), "trial": [0, 7], "draw": [0, 7], "image_size": [1, 4_096], "steps": [1],
    "batch_size": [1], "lr": [1e-12, 5, 0.5], "weight_decay": [0, 0.0, 3.0], "dropout": [0, 0.0, 0.999],
    "split": ["domainbed", "stratified", "grouped"], "balance": ["none", "loss", "sampling"],
    "holdout": [0, 0.0, 0.001, 0.999],
    "select_by": list(SELECT_BY), "patience": [0, 3],
    "evaluate_every": [1],
    "evaluate": ["needed", "all"], "evaluation_batch": [1], "threads": [1, None],
    "augment": ["domainbed", "none", "light", "trivial", "augmix", "my_module.f", True, False],
    "alpha": ["white", "black", "drop"], "window": ["auto", "percentile", "none", "-1:1.5"], "channels": [1, 3, 256],
    "resize": ["squash", "crop", "pad"],
    "optimizer": ["adam", "adamw", "nadamw", "sgd", "momentum", "lamb", "lion", "adan"],
    "schedule": ["constant", "cosine", "linear"], "warmup": [0, 7], "layer_decay": [0.1, 1, 1.0],
    "features": ["default", "token", "mean", "embedding"],
    "precision": ["fp32", "tf32", "bf16", "fp16"],
    "layout": ["auto", "channels-first", "channels-last"], "fold_bn": ["auto", "always", "never"],
    "workers": [0, None], "cache": ["none", "ram", "disk"], "keep": ["none", "best", "all"], "save_every": [1, None],
    "profile": ["auto", "always", "never"], "check_images": ["once", "never"],
    "track": ["tensorboard", "wandb,mlflow", "trackio", None],
}  # fmt: skip
UNLIMITED = {"dataset", "targets", "algorithm", "model", "weights", "frozen_bn", "augment_validation", "exif", "shrink",
             "same_draws", "image_weights", "init", "keep_checkpoint", "train", "head", "root", "name", "device",
             "compile", "tensorboard", "domainbed_records", "allow_changed_environment"}  # fmt: skip


def test_every_option_is_in_these_tables():
    assert set(OUTSIDE) == set(INSIDE)
    assert set(OUTSIDE) | UNLIMITED == set(OPTIONS)


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_has_a_help_and_its_wrong_types_are_refused(name):
    option = OPTIONS[name]
    assert OPTIONS[name].help
    for value in WRONG_TYPES[option.type]:
        if value in option.recorded.values():  # as it was written when the option was yes or no
            option.check(value)
        elif value is None and option.nullable:
            option.check(None)
        else:
            with pytest.raises(ConfigError, match=rf"^{name}=.*; wanted \w+"):
                option.check(value)


@pytest.mark.parametrize("name", OUTSIDE)
def test_values_outside_the_range_are_refused_and_its_ends_are_not(name):
    for value in OUTSIDE[name]:
        with pytest.raises(ConfigError) as caught:
            OPTIONS[name].check(value)
        assert str(caught.value).startswith(f"{name}={value!r}; wanted {OPTIONS[name].range}")
        assert caught.value.exit_code == 2
    for value in INSIDE[name]:
        OPTIONS[name].check(value)


NUMBERS = [name for name, each in OPTIONS.items() if each.type in (int, float)]


def test_every_number_has_an_upper_end():
    assert all({"at_most", "below"} & set(OPTIONS[name].limits) for name in NUMBERS)
    assert {name for name in NUMBERS if "at_most" in OPTIONS[name].limits} <= set(MOST)


@pytest.mark.parametrize("name", sorted(set(NUMBERS) & set(MOST)))
def test_the_largest_number_is_taken_and_a_larger_one_refused_with_the_reason(name):
    most, why = MOST[name]
    OPTIONS[name].check(OPTIONS[name].type(most))
    for more in (OPTIONS[name].type(most * 2), 10**400, 10**5000):
        with pytest.raises(ConfigError, match=f"^{name}=.*; wanted .* at most .*: {re.escape(why)}$") as caught:
            OPTIONS[name].check(more)
        assert len(str(caught.value)) < 300
    with pytest.raises(ConfigError, match=f"{name}='?9.* at most"):
        parse_option(name, "9" * 400, "--set")


@pytest.mark.parametrize("text", ["a" * 5_000, "a\0b", "a\udcffb"], ids=["long", "null", "not UTF-8"])
@pytest.mark.parametrize("name", ["dataset", "root", "name", "model", "weights", "targets"])
def test_text_that_no_file_can_hold_is_refused(name, text):
    with pytest.raises(ConfigError, match=f"^{name}=") as caught:
        OPTIONS[name].check((text,) if name == "targets" else text)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("lr", "a number above 0 and at most 1,000,000"),
        ("holdout", "a number at least 0 and below 1"),
        ("dropout", "a number at least 0 and below 1"),
        ("image_size", "a whole number at least 1 and at most 4096"),
        ("protocol", "one of domainbed, domainbed-stratified, swad"),
        ("targets", "a list of names"),
        ("workers", "a whole number at least 0 and at most 256"),
        ("augment", "domainbed, none, light, trivial, augmix or a function of yours, my_module.f"),
        ("frozen_bn", "true or false"),
        ("root", "text"),
    ],
)
def test_ranges_in_words(name, words):
    assert OPTIONS[name].range == words


def test_a_list_of_targets_is_a_tuple_of_them():
    assert settings(targets=["photo", "sketch"]).targets == ("photo", "sketch")


def test_one_domain_twice_is_refused():
    with pytest.raises(ConfigError, match="targets photo, photo: one domain twice"):
        settings(targets=("photo", "photo"))


@pytest.mark.parametrize("name", ["datset", "learning_rate", ""])
def test_a_name_that_is_no_option_is_refused(name):
    with pytest.raises(ConfigError, match=f"unknown option {name!r}"):
        settings(**{name: 1})


def test_how_it_is_run_is_not_what_is_trained():
    with pytest.raises(ConfigError, match="'device' says how it is run"):
        settings(device="cpu")


def test_values_are_checked_wherever_they_come_from():
    with pytest.raises(ConfigError, match="lr=-1"):
        settings(lr=-1)
    with pytest.raises(ConfigError, match="lr=-1"):
        dataclasses.replace(settings(), lr=-1)
    with pytest.raises(ConfigError, match="workers=-1"):
        Execution(workers=-1)


def test_options_have_one_meaning_each():
    names = [each.name for kind in (TrainConfig, Execution) for each in dataclasses.fields(kind)]
    assert len(names) == len(set(names)) == len(OPTIONS)


def test_configurations_are_read_without_torch():
    program = (
        "import sys, dspreg.config.train_config, dspreg.config.parse\n"
        "print([m for m in ('torch', 'torchvision', 'PIL', 'pandas', 'matplotlib') if m in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout == "[]\n"


def test_without_augmentation_validation_is_plain_too():
    assert settings(augment=False).augment_validation is False
    assert settings(augment=False, augment_validation=True).augment_validation is True
    assert settings().augment_validation is True


def test_a_network_that_is_not_pretrained_learns_faster_and_trains_its_batch_norm():
    assert settings(model="small-cnn").lr == 1e-3
    assert settings(weights="none").frozen_bn is False
    assert settings().frozen_bn is True


# What Python users write.


def test_a_configuration_leaves_open_what_is_not_given():
    config = TrainConfig(dataset="digits", targets=("print",), steps=50)
    assert (config.lr, config.model, config.algorithm) == (None, None, None)
    assert config.to_mapping() == {
        "dataset": "digits", "targets": ("print",), "protocol": "domainbed", "trial": 0,
        "draw": 0, "same_draws": False, "steps": 50, "evaluate": "needed", "select_by": "accuracy", "patience": 0,
        "init": "none", "balance": "none", "optimizer": "adam", "schedule": "constant", "warmup": 0,
        "layer_decay": 1.0, "train": "all", "head": "random",
    }  # fmt: skip
    assert TrainConfig.of(config) is config
    assert TrainConfig.of({"dataset": "digits", "targets": ["print"], "steps": 50, "lr": None}) == config


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("dataset", DATA)
def test_a_resolved_configuration_has_nothing_open_and_resolves_to_itself(dataset, protocol):
    found = settings(dataset, protocol=protocol, draw=3)
    assert list(found.to_mapping()) == list(TRAIN_OPTIONS)
    assert resolve_config(found, DATA["PACS"]) is found


def test_types_are_those_of_the_annotations():
    """Not of their text: `Optional[int]` or an alias would be read as well."""

    fields = [
        ("one", "typing.Optional[int]", option("help", None)),
        ("two", "Names", option("help", ())),
        ("three", "float", option("help", None, above=0)),
    ]
    Example = dataclasses.make_dataclass("Example", fields, namespace={"__module__": __name__})
    found = declared_options(Example)
    assert [(each.type, each.nullable, each.is_open) for each in found.values()] == [
        (int, True, False),
        (tuple, False, False),
        (float, False, True),
    ]


Names = tuple[str, ...]


# What --help says of them.


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("lr", "5e-05; small images: 0.001"),
        ("model", "resnet50.tv_in1k; small images: small-cnn"),
        ("augment", "domainbed; small images: none; with --train head: none; with --channels other than 3: light"),
        ("augment_validation", "yes; small images: no; swad: no; with another --augment than domainbed: no"),
        ("exif", "images of your own: yes; benchmarks: no"),
        ("resize", "squash"),
        ("features", "default; with --head FILE: embedding"),
        ("split", "domainbed; own images: grouped; domainbed-stratified: stratified"),
        ("evaluation_batch", "64; swad: 128"),
        ("frozen_bn", "yes; tensors: no; with --weights none: no"),
        ("weights", "default"),
        ("batch_size", "32"),
        ("holdout", "0.2"),
        ("algorithm", "DSPReg; SWA for images of your own"),
        ("dropout", "0"),
        ("steps", "by data set"),
        ("evaluate_every", "by data set"),
        ("image_size", "by data set"),
    ],
)
def test_defaults_in_words(name, text):
    assert default_text(name) == text


def test_every_open_option_has_a_default_in_words():
    texts = {name: default_text(name) for name, each in TRAIN_OPTIONS.items() if each.is_open}
    assert len(texts) == 24
    assert "None" not in "".join(texts.values())
    assert not any(each.is_open for each in EXECUTION_OPTIONS.values())


@pytest.mark.parametrize(
    ("given", "number"),
    [("3", 3), ("4,2", 4), ("", None), ("0", None), ("-1", None), ("many", None), ("9" * 5000, None)],
)
def test_threads_are_those_of_the_job_unless_they_are_given(monkeypatch, given, number):
    from dspreg.training.execution import threads

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(7)), raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    assert threads(Execution()) == (number or 7)
    assert threads(Execution(threads=2)) == 2
