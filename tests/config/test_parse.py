"""Options from text: YAML and key=value, with the place and the nearest name in every refusal."""

import dataclasses
import os
import re
import string

import pytest
import yaml

from dspreg.config.parse import (
    format_config,
    option_name,
    parse_assignment,
    parse_integer,
    parse_option,
    parse_targets,
    read_options,
    split_config,
)
from dspreg.config.train_config import OPTIONS, Execution, TrainConfig
from dspreg.errors import ConfigError

SETTINGS = TrainConfig(
    dataset="folder:my photos/ü", targets=("a b", "c"), algorithm="CORAL(weight=0.5)+DSPReg(only=['a.*'])",
    protocol="swad", trial=3, draw=2, model="resnet18.tv_in1k", weights="none", image_size=96, steps=77, batch_size=5,
    lr=1.2345678901234567e-05, weight_decay=1e-300, dropout=0.1, frozen_bn=False, augment="my_changes.blur",
    augment_validation=False, split="stratified", holdout=0.30000000000000004, evaluate_every=9, evaluate="all",
    exif=True, alpha="black", window="-1000:400", channels=4, resize="pad", shrink=False,
    evaluation_batch=31, select_by="macro-f1", patience=4, init="runs/ä b", image_weights=True, balance="loss",
    optimizer="adamw", schedule="cosine", warmup=3, layer_decay=0.7, train="mask:my c.safetensors(quantile=0.3)",
    features="mean", head="my head.safetensors",
)  # fmt: skip
EXECUTION = Execution(
    root="/data: # not a comment", name="no", device="cuda:1", threads=3, precision="bf16", workers=0, cache="ram",
    layout="channels-last", fold_bn="never", compile=True,
    keep="all", keep_checkpoint=True, save_every=10, profile="never", check_images="never", tensorboard=True,
    track="mlflow,trackio", domainbed_records=True, allow_changed_environment=True,
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
    path = file(format_config(trained, execution))
    values = read_options(path)
    assert list(values) == list(OPTIONS)
    assert split_config(values) == (trained, execution)
    theirs = yaml.safe_load(path.read_text())  # another reader sees the same
    assert theirs["lr"] == pytest.approx(trained.lr, rel=0)
    assert theirs["targets"] == list(trained.targets)
    assert theirs["name"] == execution.name


@pytest.mark.parametrize("name", ["yes", "null", "3", "1e5", "~", "a, b", "[x]", "- x", "#", "", " "])
def test_names_that_yaml_reads_as_something_else_stay_names(file, name):
    trained = dataclasses.replace(SETTINGS, targets=(name.strip() or "x", "plain"))
    assert read_options(file(format_config(trained, EXECUTION)))["targets"] == trained.targets


# Places.


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr: 1\n\n# c\nbatchsize: 3\n", r"yaml, line 4: unknown option 'batchsize'\. Did you mean 'batch_size'\?"),
        ("trial: 1\nlr: fast\n", r"run\.yaml, line 2: lr='fast'; wanted a number above 0"),
        ("trial: 1\nlr: -1\n", r"run\.yaml, line 2: lr=-1\.0; wanted a number above 0"),
        ("trial: 1\nsteps: 1.5\n", r"run\.yaml, line 2: steps='1\.5'; wanted a whole number at least 1"),
        ("trial: 1\nprotocol: swat\n", r"line 2: protocol='swat'; wanted one of domainbed, domainbed-stratified, swad"),
        ("trial: 1\naugment: maybe\n", r"line 2: augment='maybe'; wanted domainbed, none, light, .* or a function"),
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
        ("? [a, b]\n: 1\n", r"line 1: a key is a name"),
        ("- lr\n", r"run\.yaml, line 1: wanted 'key: value' lines, such as 'lr: 1e-4'"),
        ("lr\n", r"line 1: wanted 'key: value' lines"),
        ("lr=1e-4\n", r"line 1: wanted 'key: value' lines"),
        ("trial: 1\nlr: [1\n", r"run\.yaml is not YAML: .*line 3"),
        ("trial: 1\n\tlr: 1\n", r"run\.yaml is not YAML: .*line 2"),
        ("lr: 1\n---\nlr: 2\n", r"run\.yaml is not YAML: .*single document"),
        ("lr: *gone\n", r"run\.yaml is not YAML: .*undefined alias"),
        ("lr: \0\n", r"run\.yaml is not YAML: "),
        (b"name: \xff\n", r"configuration .*run\.yaml can't be read: "),
        ("targets: " + "[" * 3000, r"run\.yaml is nested too deeply"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_file_line_and_key(file, text, message):
    with pytest.raises(ConfigError, match=message) as caught:
        read_options(file(text))
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
        read_options(file(f"trial: 1\n{key}: {tagged.replace('PATH', str(trap))}\n"))
    assert not trap.exists()


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"the configuration .*gone\.yaml can't be read: .*No such file"):
        read_options(tmp_path / "gone.yaml")
    with pytest.raises(ConfigError, match="can't be read"):
        read_options(tmp_path)


@pytest.mark.parametrize("text", ["", "\n", "# nothing\n", "---\n"])
def test_an_empty_file_leaves_everything_open(file, text):
    assert read_options(file(text)) == {}


def test_yaml_in_its_other_dress_is_read(file):
    flow = "{lr: &x 1e-4, weight-decay: *x, 'trial': !!int '3', targets: [a, b], root: ~, name: 2020-01-01, workers: }"
    assert read_options(file(flow)) == {
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


@pytest.mark.parametrize("key", OPTIONS)
def test_every_misspelling_is_refused_and_the_name_that_was_meant_is_suggested(key):
    wrong = {text for text in misspelt(key) if text not in (*OPTIONS, "target")}
    assert len(wrong) > 10
    for text in wrong:
        with pytest.raises(ConfigError) as caught:
            option_name(text, "here")
        assert str(caught.value).startswith(f"here: unknown option {text!r}.")
        if text not in ("rl", "trian"):  # as near to trial as to lr, and to train
            assert f"Did you mean {key!r}?" in str(caught.value)
        assert str(caught.value).endswith(f"Known: {', '.join(OPTIONS)}")


@pytest.mark.parametrize("key", OPTIONS)
def test_another_case_or_something_around_a_name_is_not_the_name(key):
    for text in (key.upper(), key.capitalize(), f" {key}", f"{key} ", f"{key}s", f"--{key}"):
        with pytest.raises(ConfigError, match="unknown option"):
            option_name(text, "here")


def test_hyphens_and_the_singular_are_understood():
    assert option_name("batch-size", "") == "batch_size"
    assert option_name("target", "") == "targets"


def test_other_names_may_be_known_too():
    with pytest.raises(ConfigError, match="Did you mean 'seeds'"):
        option_name("seds", "here", also=("seeds",))


# Values.


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("lr", "1e-4", 1e-4),
        ("lr", "5", 5.0),
        ("steps", "100", 100),
        ("steps", "1e3", 1000),
        ("steps", "1_000", 1000),
        ("augment", "True", "domainbed"),
        ("augment", "no", "none"),
        ("augment", "0", "none"),
        ("augment", "light", "light"),
        ("augment", "my_module.f", "my_module.f"),
        ("window", "-1000:400", "-1000:400"),
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
    found = parse_option(key, text, "")
    assert found == value
    assert type(found) is type(value)
    assert parse_assignment(f"{key}={text}") == (key, value)
    assert parse_assignment(f" {key} = {text} ") == (key, value)


@pytest.mark.parametrize("key", OPTIONS)
def test_text_of_the_wrong_kind_is_refused_by_place_and_name(key):
    option = OPTIONS[key]
    wrong = {int: ["x", "1.5", "nan", "inf", "true", "1e999"], float: ["x", "nan", "-inf", "true"],
             bool: ["x", "2", "on", ""], str: [None, ["a"], True], tuple: [None, 3]}[option.type]  # fmt: skip
    wrong = [text for text in wrong if text is not True or not option.recorded]  # which was yes or no, and is read so
    if "choices" in option.limits:
        wrong = [*wrong, "x", option.limits["choices"][0].upper()]
    for text in wrong:
        if text is None and option.nullable:
            continue
        with pytest.raises(ConfigError, match=f"^here: {re.escape(key)}=.*; wanted "):
            parse_option(key, text, "here")


@pytest.mark.parametrize(("text", "number"), [("3", 3), ("1e3", 1000), (str(2**53 + 1), 2**53 + 1), (4, 4), ("007", 7)])
def test_a_whole_number_from_text(text, number):
    assert parse_integer(text, at_least=1) == number


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "x", "", None, "nan", "inf", "²"])
def test_what_is_no_whole_number_or_too_small(text):
    with pytest.raises(ConfigError, match=rf"^{re.escape(repr(text))}; wanted a whole number at least 1$"):
        parse_integer(text, at_least=1)


@pytest.mark.parametrize("text", ["lr", "", "lr 3"])
def test_an_assignment_needs_an_equals_sign(text):
    with pytest.raises(ConfigError, match=f"--set {text!r}; wanted key=value, such as lr=1e-4"):
        parse_assignment(text)


def test_a_value_may_have_equals_signs_and_spaces():
    assert parse_assignment("algorithm=CORAL(weight=0.5)+DSPReg") == ("algorithm", "CORAL(weight=0.5)+DSPReg")
    assert parse_assignment("root=/my data/a=b") == ("root", "/my data/a=b")
    with pytest.raises(ConfigError, match=r"^--set: unknown option 'lrr'"):
        parse_assignment("lrr=3")


def test_targets_are_names_as_they_stand():
    assert parse_targets([" a ", "b c", 3]) == ("a", "b c", "3")
    assert parse_targets([]) == ()


def test_what_is_trained_and_how_it_is_run_are_told_apart():
    given, how = split_config({"dataset": "digits", "lr": 0.1, "device": "cuda", "workers": None})
    assert given == TrainConfig(dataset="digits", lr=0.1)
    assert how == Execution(device="cuda")


@pytest.mark.parametrize("values", [{}, {"dataset": ""}, {"dataset": None}, {"lr": 1.0}])
def test_a_data_set_must_be_given(values):
    with pytest.raises(ConfigError, match="no data set is given; add --dataset"):
        split_config(values)


def test_all_letters_are_in_no_name():
    """A guard for the loops above: they would test nothing if names were empty."""
    assert len(OPTIONS) == 60
    assert all(set(key) <= {*string.ascii_lowercase, "_"} for key in OPTIONS)


# Files that were made to hurt.

LAUGHS = "\n".join(["a0: &a0 [ha, ha]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)])
LAUGHING = "&a0 [ha, ha]"  # the same in one value
for n in range(1, 30):
    LAUGHING = f"&a{n} [{LAUGHING}, {', '.join([f'*a{n - 1}'] * 9)}]"
HOSTILE = {
    "laughs": (LAUGHS, "unknown option 'a0'"),
    "laughs as a value": ("targets: " + LAUGHING, "wanted a plain value"),
    "laughs as a key": ("? " + LAUGHING + "\n: 3", "a key is a name"),
    "a list as a key": ("? [a, b]\n: 3", "line 1: a key is a name"),
    "itself": ("targets: &a [*a]", "wanted a plain value"),
    "deep": ("lr: " + "[" * 5_000, "nested too deeply"),
    "deep maps": ("{a: " * 3_000, "nested too deeply"),
    "large": ("# " + "x" * 200_000, "has 200,002 bytes; wanted at most 100,000"),
    "a long key": ("x" * 50_000 + ": 3", "unknown option 'xxx|is not YAML"),
    "a long value": ("steps: " + "9" * 50_000, "steps='999"),
    "a long tag": (f"steps: !<{'x' * 5_000}> 3", "the tag 'xxx"),
    "null characters": ("lr: \0", "is not YAML"),
    "two documents": ("lr: 1\n---\nlr: 2", "is not YAML"),
    "merged": ("<<: {lr: 1}", "unknown option '<<'"),
    "tabs": ("lr:\t1\n\tsteps: 3", "is not YAML"),
    "an unknown alias": ("lr: *gone", "is not YAML: found undefined alias"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_made_to_hurt_is_refused_in_short(file, name):
    text, message = HOSTILE[name]
    with pytest.raises(ConfigError, match=message) as caught:
        read_options(file(text))
    assert len(str(caught.value)) < 1_500


@pytest.mark.parametrize("data", [b"\xff\xfel\x00r\x00", b"lr: \xe9", b"\x80"], ids=["UTF-16", "Latin-1", "bytes"])
def test_what_is_not_utf_8(tmp_path, data):
    (tmp_path / "a.yaml").write_bytes(data)
    with pytest.raises(ConfigError, match=r"a\.yaml can't be read: 'utf-8' codec"):
        read_options(tmp_path / "a.yaml")


def test_a_mark_at_the_beginning_is_skipped(tmp_path):
    (tmp_path / "a.yaml").write_bytes(b"\xef\xbb\xbfsteps: 3\r\nlr: 1\r\n")
    assert read_options(tmp_path / "a.yaml") == {"steps": 3, "lr": 1.0}


def test_what_is_no_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "link.yaml").symlink_to(tmp_path / "pipe.yaml")
    for name in ("pipe.yaml", "folder.yaml", "link.yaml", "gone.yaml", "x" * 300, "a\0b"):
        with pytest.raises(ConfigError, match="can't be read: "):
            read_options(tmp_path / name)
