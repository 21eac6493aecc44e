"""Options from text: YAML and key=value, with the place and the nearest name in every refusal."""

import dataclasses
import re
import string

import pytest
import yaml

from dspreg.errors import ConfigError
from dspreg.protocol.reading import assignment, known, made, read, targets, valued, written
from dspreg.protocol.settings import FIELDS, Execution, Settings

SETTINGS = Settings(
    dataset="folder:my photos/ü", targets=("a b", "c"), algorithm="CORAL(weight=0.5)+DSPReg(only=['a.*'])",
    protocol="swad", trial=3, draw=2, model="resnet18.tv_in1k", weights="none", image_size=96, steps=77, batch_size=5,
    lr=1.2345678901234567e-05, weight_decay=1e-300, dropout=0.1, frozen_bn=False, augment=True,
    augment_validation=False, split="stratified", holdout=0.30000000000000004, evaluate_every=9, evaluate="all",
    evaluation_batch=31,
)  # fmt: skip
EXECUTION = Execution(
    root="/data: # not a comment", name="no", device="cuda:1", threads=3, precision="bf16", workers=0, cache="ram",
    layout="channels-last",
    keep="all", save_every=10, profile="never", check_images="never", tensorboard=True, domainbed_records=True,
    allow_changed_environment=True,
)  # fmt: skip


@pytest.fixture
def file(tmp_path):
    def make(text):
        path = tmp_path / "run.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return make


# There and back.


@pytest.mark.parametrize("execution", [EXECUTION, Execution()])
@pytest.mark.parametrize("trained", [SETTINGS, dataclasses.replace(SETTINGS, targets=(), weight_decay=0)])
def test_what_is_written_is_read_again_option_by_option(file, trained, execution):
    path = file(written(trained, execution))
    values = read(path)
    assert list(values) == list(FIELDS)
    given, how = made(values)
    assert Settings(**given) == trained
    assert how == execution
    theirs = yaml.safe_load(path.read_text())  # another reader sees the same
    assert theirs["lr"] == pytest.approx(trained.lr, rel=0)
    assert theirs["targets"] == list(trained.targets)
    assert theirs["name"] == execution.name


@pytest.mark.parametrize("name", ["yes", "null", "3", "1e5", "~", "a, b", "[x]", "- x", "#", "", " "])
def test_names_that_yaml_reads_as_something_else_stay_names(file, name):
    trained = dataclasses.replace(SETTINGS, targets=(name.strip() or "x", "plain"))
    assert read(file(written(trained, EXECUTION)))["targets"] == trained.targets


# Places.


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr: 1\n\n# c\nbatchsize: 3\n", r"yaml, line 4: unknown option 'batchsize'\. Did you mean 'batch_size'\?"),
        ("trial: 1\nlr: fast\n", r"run\.yaml, line 2: lr='fast'; wanted a number above 0"),
        ("trial: 1\nlr: -1\n", r"run\.yaml, line 2: lr=-1\.0; wanted a number above 0"),
        ("trial: 1\nsteps: 1.5\n", r"run\.yaml, line 2: steps='1\.5'; wanted a whole number at least 1"),
        ("trial: 1\nprotocol: swat\n", r"line 2: protocol='swat'; wanted one of domainbed, domainbed-stratified, swad"),
        ("trial: 1\naugment: maybe\n", r"line 2: augment='maybe'; wanted true or false"),
        ("trial: 1\ntargets: [a, a]\n", r"line 2: targets a, a: one domain twice"),
        ("trial: 1\ntargets:\n", r"line 2: targets=None; wanted a list of names"),
        ("trial: 1\nmodel:\n", r"line 2: model=None; wanted text"),
        ("lr: 1\nlr: 2\n", r"run\.yaml, line 2: 'lr' is given twice"),
        ("target: a\ntargets: b\n", r"line 2: 'targets' is given twice"),
        ("batch-size: 1\nbatch_size: 2\n", r"line 2: 'batch_size' is given twice"),
        ("lr:\n  nested: 1\n", r"run\.yaml, line 1: wanted a plain value or a list of them"),
        ("targets: [[a]]\n", r"line 1: wanted a plain value or a list of them"),
        ("targets: [{a: b}]\n", r"line 1: wanted a plain value or a list of them"),
        ("targets: &a [*a]\n", r"line 1: wanted a plain value or a list of them"),
        ("lr: [1, 2]\n", r"line 1: lr=\['1', '2'\]; wanted a number"),
        ("settings:\n  lr: 1\n", r"line 1: unknown option 'settings'"),
        ("base: &b {lr: 1}\n", r"line 1: unknown option 'base'"),
        ("<<: {lr: 1}\n", r"line 1: unknown option '<<'"),
        ("? [a, b]\n: 1\n", r"line 1: unknown option"),
        ("- lr\n", r"run\.yaml, line 1: wanted 'key: value' lines, such as 'lr: 1e-4'"),
        ("lr\n", r"line 1: wanted 'key: value' lines"),
        ("lr=1e-4\n", r"line 1: wanted 'key: value' lines"),
        ("trial: 1\nlr: [1\n", r"run\.yaml is not YAML: .*line 3"),
        ("trial: 1\n\tlr: 1\n", r"run\.yaml is not YAML: .*line 2"),
        ("lr: 1\n---\nlr: 2\n", r"run\.yaml is not YAML: .*single document"),
        ("lr: *gone\n", r"run\.yaml is not YAML: .*undefined alias"),
        ("lr: \0\n", r"run\.yaml is not YAML: "),
        (b"name: \xff\n", r"configuration .*run\.yaml can't be read: "),
        ("targets: " + "[" * 3000, r"run\.yaml is not YAML: "),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_file_line_and_key(file, text, message):
    with pytest.raises(ConfigError, match=message) as caught:
        read(file(text))
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "tagged",
    [
        "!!python/object/apply:os.system 'touch PATH'",
        "!!python/object/apply:os.system ['touch PATH']",
        "!!python/object/new:os.system ['touch PATH']",
        "!!python/object:os.system {}",
        "!!python/name:os.system",
        "!!python/name:os.system ''",
        "!!python/tuple [a, b]",
        "!!set {a, b}",
        "!!binary YQ==",
        "!mine a",
        "[!!python/object/apply:os.system 'touch PATH']",
    ],
)
@pytest.mark.parametrize("key", ["model", "targets", "lr"])
def test_tags_are_refused_and_run_nothing(file, tmp_path, tagged, key):
    trap = tmp_path / "trap"
    with pytest.raises(ConfigError, match=r"run\.yaml, line 2: "):
        read(file(f"trial: 1\n{key}: {tagged.replace('PATH', str(trap))}\n"))
    assert not trap.exists()


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"the configuration .*gone\.yaml can't be read: .*No such file"):
        read(tmp_path / "gone.yaml")
    with pytest.raises(ConfigError, match="can't be read"):
        read(tmp_path)


@pytest.mark.parametrize("text", ["", "\n", "# nothing\n", "---\n"])
def test_an_empty_file_leaves_everything_open(file, text):
    assert read(file(text)) == {}


def test_yaml_in_its_other_dress_is_read(file):
    flow = "{lr: &x 1e-4, weight-decay: *x, 'trial': !!int '3', targets: [a, b], root: ~, name: 2020-01-01, workers: }"
    assert read(file(flow)) == {
        "lr": 1e-4, "weight_decay": 1e-4, "trial": 3, "targets": ("a", "b"), "root": None, "name": "2020-01-01",
        "workers": None,
    }  # fmt: skip


# Names.


def misspelt(key):
    """Every text one edit away: a letter less, other, more, or two exchanged."""
    for i in range(len(key) + 1):
        yield key[:i] + key[i + 1 :]
        yield key[:i] + key[i + 1 : i + 2] + key[i : i + 1] + key[i + 2 :]
        for letter in "aeqz_9":
            yield key[:i] + letter + key[i + 1 :]
            yield key[:i] + letter + key[i:]


@pytest.mark.parametrize("key", FIELDS)
def test_every_misspelling_is_refused_and_the_name_that_was_meant_is_suggested(key):
    wrong = {text for text in misspelt(key) if text not in (*FIELDS, "target")}
    assert len(wrong) > 10
    for text in wrong:
        with pytest.raises(ConfigError) as caught:
            known(text, "here")
        assert str(caught.value).startswith(f"here: unknown option {text!r}.")
        if text != "rl":  # as near to trial as to lr
            assert f"Did you mean {key!r}?" in str(caught.value)
        assert str(caught.value).endswith(f"Known: {', '.join(FIELDS)}")


@pytest.mark.parametrize("key", FIELDS)
def test_another_case_or_something_around_a_name_is_not_the_name(key):
    for text in (key.upper(), key.capitalize(), f" {key}", f"{key} ", f"{key}s", f"--{key}"):
        with pytest.raises(ConfigError, match="unknown option"):
            known(text, "here")


def test_hyphens_and_the_singular_are_understood():
    assert known("batch-size", "") == "batch_size"
    assert known("target", "") == "targets"


def test_other_names_may_be_known_too():
    with pytest.raises(ConfigError, match="Did you mean 'seeds'"):
        known("seds", "here", also=("seeds",))


# Values.


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("lr", "1e-4", 1e-4),
        ("lr", "5", 5.0),
        ("steps", "100", 100),
        ("steps", "1e3", 1000),
        ("steps", "1_000", 1000),
        ("augment", "True", True),
        ("augment", "no", False),
        ("augment", "0", False),
        ("workers", "", None),
        ("workers", "null", None),
        ("workers", "0", 0),
        ("dataset", "3", "3"),
        ("model", "yes", "yes"),
        ("targets", "a, b", ("a", "b")),
        ("targets", "none", ()),
        ("targets", "none,a", ("none", "a")),
        ("trial", str(2**53 + 1), 2**53 + 1),
    ],
)
def test_text_becomes_a_value_of_the_options_type(key, text, value):
    found = valued(key, text, "")
    assert found == value
    assert type(found) is type(value)
    assert assignment(f"{key}={text}") == (key, value)
    assert assignment(f" {key} = {text} ") == (key, value)


@pytest.mark.parametrize("key", FIELDS)
def test_text_of_the_wrong_kind_is_refused_by_place_and_name(key):
    kind = FIELDS[key].type.removesuffix(" | None")
    wrong = {"int": ["x", "1.5", "nan", "inf", "true", "1e999"], "float": ["x", "nan", "-inf", "true"],
             "bool": ["x", "2", "on", ""], "str": [None, ["a"], True], "tuple[str, ...]": [None, 3]}[kind]  # fmt: skip
    if "choices" in FIELDS[key].metadata:
        wrong = [*wrong, "x", FIELDS[key].metadata["choices"][0].upper()]
    for text in wrong:
        if text is None and FIELDS[key].type.endswith("None"):
            continue
        with pytest.raises(ConfigError, match=f"^here: {re.escape(key)}=.*; wanted "):
            valued(key, text, "here")


@pytest.mark.parametrize("text", ["lr", "", "lr 3"])
def test_an_assignment_needs_an_equals_sign(text):
    with pytest.raises(ConfigError, match=f"--set {text!r}; wanted key=value, such as lr=1e-4"):
        assignment(text)


def test_a_value_may_have_equals_signs_and_spaces():
    assert assignment("algorithm=CORAL(weight=0.5)+DSPReg") == ("algorithm", "CORAL(weight=0.5)+DSPReg")
    assert assignment("root=/my data/a=b") == ("root", "/my data/a=b")
    with pytest.raises(ConfigError, match=r"^--set: unknown option 'lrr'"):
        assignment("lrr=3")


def test_targets_are_names_as_they_stand():
    assert targets([" a ", "b c", 3]) == ("a", "b c", "3")
    assert targets([]) == ()


def test_what_is_trained_and_how_it_is_run_are_told_apart():
    given, how = made({"dataset": "digits", "lr": 0.1, "device": "cuda", "workers": None})
    assert given == {"dataset": "digits", "lr": 0.1}
    assert how == Execution(device="cuda")


@pytest.mark.parametrize("values", [{}, {"dataset": ""}, {"dataset": None}, {"lr": 1.0}])
def test_a_data_set_must_be_given(values):
    with pytest.raises(ConfigError, match="no data set is given; add --dataset"):
        made(values)


def test_all_letters_are_in_no_name():
    """A guard for the loops above: they would test nothing if names were empty."""
    assert len(FIELDS) == 38
    assert all(set(key) <= {*string.ascii_lowercase, "_"} for key in FIELDS)
