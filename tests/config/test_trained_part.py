"""What `--train` says, and that no id depends on where a file lies."""

from types import SimpleNamespace

import pytest

from dspreg.config.train_config import TRAIN_OPTIONS, TrainConfig, resolve_config
from dspreg.config.trained_part import TrainedPart, files_of, with_absolute_paths, without_paths
from dspreg.errors import ConfigError
from dspreg.runs.run import Run

DIGITS = SimpleNamespace(
    name="digits", steps=301, evaluate_every=50, image_size=28, channels=3, small=True, own=False, tensors=False
)
PHOTOS = SimpleNamespace(
    name="PACS", steps=5_001, evaluate_every=300, image_size=224, channels=3, small=False, own=False, tensors=False
)
NEW = ("optimizer", "schedule", "warmup", "layer_decay", "train", "features", "head")


@pytest.mark.parametrize(
    ("text", "part", "shortest"),
    [
        ("all", TrainedPart("all"), "all"),
        ("head", TrainedPart("head"), "head"),
        ("last:02", TrainedPart("last", 2), "last:2"),
        ("lora", TrainedPart("lora"), "lora"),
        ("lora( r=8 )", TrainedPart("lora"), "lora"),
        ("lora(alpha=4, r=2)", TrainedPart("lora", r=2, alpha=4.0), "lora(r=2, alpha=4.0)"),
        ("lora(modules='*qkv')", TrainedPart("lora", modules="*qkv"), "lora(modules='*qkv')"),
        ("mask:a b/c.safetensors", TrainedPart("mask", file="a b/c.safetensors"), "mask:a b/c.safetensors"),
        (
            "mask:c.safetensors(which='most', quantile=0.9, control='matched')",
            TrainedPart("mask", file="c.safetensors", which="most", quantile=0.9, control="matched"),
            "mask:c.safetensors(which='most', quantile=0.9, control='matched')",
        ),
    ],
)
def test_text_and_back(text, part, shortest):
    assert TrainedPart.parse(text) == part
    assert str(part) == shortest
    assert TrainedPart.parse(shortest) == part
    assert TrainConfig(dataset="digits", train=text).train == shortest


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "wanted all, head, last:N"),
        ("heads", "Did you mean 'head'"),
        ("last", "wanted all, head, last:N"),
        ("last:0", "a number of blocks from 1, or head for none"),
        ("last:-1", "a number of blocks from 1"),
        ("last:x", "a number of blocks from 1"),
        ("lora(r=0)", "wanted r from 1 to 4,096"),
        ("lora(r=2.5)", "wanted a whole number"),
        ("lora(alpha=0)", "wanted alpha above 0"),
        ("lora(rank=2)", "no option 'rank'"),
        ("lora(8)", "options are given by name"),
        ("lora(r=8", "can't be read"),
        ("lora(r=__import__('os'))", "wanted a whole number"),
        ("mask:", "wanted all, head, last:N"),
        ("mask:f(which='some')", "wanted which of least, most"),
        ("mask:f(quantile=1)", "wanted a quantile above 0 and below 1"),
        ("mask:f(control='none of it')", "wanted control of none, shuffled, matched"),
    ],
)
def test_what_means_nothing_is_refused(text, said):
    with pytest.raises(ConfigError, match="train=") as refused:
        TrainConfig(dataset="digits", train=text)
    assert said in str(refused.value)


def test_runs_from_before_have_what_all_runs_had_and_say_nothing_of_it():
    config = resolve_config(TrainConfig(dataset="PACS"), PHOTOS)
    assert [getattr(config, name) for name in NEW] == [TRAIN_OPTIONS[name].before for name in NEW]
    assert [getattr(config, name) for name in NEW] == ["adam", "constant", 0, 1.0, "all", "default", "random"]
    assert not set(NEW) & set(config.to_record())


def test_a_linear_probe_is_not_augmented_unless_asked_for():
    assert resolve_config(TrainConfig(dataset="PACS"), PHOTOS).augment
    probe = resolve_config(TrainConfig(dataset="PACS", train="head"), PHOTOS)
    assert not probe.augment
    assert not probe.augment_validation
    assert resolve_config(TrainConfig(dataset="PACS", train="head", augment=True), PHOTOS).augment


def test_batch_norm_from_scratch_is_trained_only_where_all_is():
    assert not resolve_config(TrainConfig(dataset="PACS", weights="none"), PHOTOS).frozen_bn
    assert resolve_config(TrainConfig(dataset="PACS", weights="none", train="last:1"), PHOTOS).frozen_bn


def test_a_text_head_is_for_embeddings():
    assert resolve_config(TrainConfig(dataset="PACS", head="h.safetensors"), PHOTOS).features == "embedding"
    assert resolve_config(TrainConfig(dataset="PACS"), PHOTOS).features == "default"


def test_no_plan_id_depends_on_where_a_file_lies():
    def run(folder, **options):
        given = {"head": f"{folder}/h.safetensors", "train": f"mask:{folder}/c.safetensors(quantile=0.5)"} | options
        return Run(dataset="digits", targets=("print",), algorithm="ERM", options=given)

    assert run("here").id == run("elsewhere/there").id
    assert run("here").id != run("here", train="mask:here/c.safetensors(quantile=0.9)").id
    assert run("here").id != run("here", head="random").id
    spelt = [Run(dataset="digits", targets=("print",), algorithm="ERM", options={"train": t}).id
             for t in ("lora", "lora(r=8)", "lora(r=4)")]  # fmt: skip
    assert spelt[0] == spelt[1] != spelt[2]
    plain = Run(dataset="digits", targets=("print",), algorithm="ERM", options={"train": "all", "head": "random"})
    assert plain.id == Run(dataset="digits", targets=("print",), algorithm="ERM").id


def test_files_are_found_and_renamed(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    options = {"weights": "w.safetensors", "train": "mask:c.safetensors(which='most')", "lr": 1.0}
    assert files_of(options) == {"weights": "w.safetensors", "train": "c.safetensors"}
    assert files_of({"weights": "default", "train": "lora", "head": "random"}) == {}
    assert without_paths(options) == {"weights": "file", "train": "mask:file(which='most')", "lr": 1.0}
    assert with_absolute_paths(options) == {
        "weights": f"{tmp_path}/w.safetensors", "train": f"mask:{tmp_path}/c.safetensors(which='most')", "lr": 1.0,
    }  # fmt: skip
