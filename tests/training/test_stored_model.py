"""Model files as a stranger may have made them: none is a traceback, an import, or a network that fills the memory."""

import json
import math
import resource
import shutil
import struct

import pytest
import torch
from torch import nn

import dspreg
from dspreg.algorithms.registry import algorithms
from dspreg.cli import main
from dspreg.errors import IntegrityError
from dspreg.training.model import build_stack, tensors_of
from dspreg.training.serialization import pack, unpack
from dspreg.training.stored_model import load_model_file
from helpers.small_runs import photos, trained
from helpers.tampered import change_description, model_bytes, write_model

DEEP = "+".join(["CORAL"] * 3_000)
BUILT = {  # field → values that no training writes
    "algorithm": [None, 3, "", "ERM(", "Nothing", "ERM+" * 4, "DANN(mlp_depth=1000000)", "DANN(mlp_width=100000000)",
                  "DANN(mlp_depth=10000000000)", "CORAL(weight=1e999)", f"CORAL(weight=1{'0' * 400})",
                  "CORAL(weight='x')", "DSPReg(engine='import os')", "os.system", "__import__('os')", DEEP,
                  "x" * 100_000, "ERM\0", "MIRO"],
    "model": [None, 5, "", "resnet50", "no-such-net", "vit_giant_patch14_dinov2", "hf-hub:someone/net",
              "../../etc/passwd", "os.system", "local-dir:/tmp", "torchvision.resnet50",
              "eva02_enormous_patch14_clip_224"],
    "image_size": [None, "28", 28.0, True, 0, -1, 10**9, 10**30, [28]],
    "dropout": [None, "0", -0.1, 1, 1e308, True, [0.1]],
    "frozen_bn": [None, 1, "yes"],
    "mean": [None, [], [0.5], [0.5] * 4, [0.5, 0.5, "x"], [0.5, 0.5, math.inf], [10**400] * 3, 0.5, {"r": 1},
             [True] * 3],
    "std": [None, [0.5, 0.5, 0], [0.5, 0.5, -1], [math.inf] * 3, "abc"],
    "classes": [None, [], "abc", ["cat", "dog"], ["cat"] * 3, [1, 2, 3], {"cat": 0}, ["a", "b", None], 10**9,
                [f"c{n}" for n in range(100_000)], ["x" * 10_000, "b", "c"]],
    "domains": [None, [], "ab", [0, 1], ["a", "a"], [["a"]]],
    "step": [None, "1", 1.5, -1, 10**30, True],
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place = tmp_path_factory.mktemp("stored")
    return trained(photos(place / "photos", each=6), place / "run", steps=1)


@pytest.fixture(scope="module")
def good(run):
    saved, _ = unpack((run / "selected.safetensors").read_bytes(), "good")
    return saved


def refused(tmp_path, data):
    """What is said of a model file."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    with pytest.raises(IntegrityError) as caught:
        load_model_file(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"), [pytest.param(f, v, id=f"{f}-{n}") for f, values in BUILT.items() for n, v in enumerate(values)]
)
def test_a_description_that_no_training_writes(good, tmp_path, field, value):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    said = refused(tmp_path, model_bytes(good["built"] | {field: value}, good["tensors"]))
    other = field in ("algorithm", "model", "classes")  # it describes a network, and the tensors are not its
    assert f"built.{field}" in said or (other and ("the tensor" in said or "no network is made" in said))
    assert len(said) < 3_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**19  # KiB


@pytest.mark.parametrize("field", list(BUILT))
def test_a_description_without_a_field(good, tmp_path, field):
    built = {name: value for name, value in good["built"].items() if name != field}
    assert f"built.{field} is missing" in refused(tmp_path, model_bytes(built, good["tensors"]))


WEIGHT = "classifier.weight"
TENSORS = {
    "none": lambda t: {},
    "one missing": lambda t: {n: v for n, v in t.items() if n != WEIGHT},
    "one more": lambda t: t | {"extra": torch.zeros(2)},
    "one of a layer more": lambda t: t | {"stack.base.c": torch.zeros(2)},
    "another name": lambda t: {n.upper(): v for n, v in t.items()},
    "transposed": lambda t: t | {WEIGHT: t[WEIGHT].T.contiguous()},
    "no dimension": lambda t: t | {WEIGHT: torch.zeros(())},
    "empty": lambda t: t | {WEIGHT: torch.zeros(0)},
    "one row more": lambda t: t | {WEIGHT: torch.cat([t[WEIGHT], t[WEIGHT][:1]])},
    "float64": lambda t: t | {WEIGHT: t[WEIGHT].double()},
    "float16": lambda t: t | {WEIGHT: t[WEIGHT].half()},
    "bfloat16": lambda t: t | {WEIGHT: t[WEIGHT].bfloat16()},
    "whole numbers": lambda t: t | {WEIGHT: t[WEIGHT].long()},
    "true and false": lambda t: t | {WEIGHT: t[WEIGHT] > 0},
    "complex": lambda t: t | {WEIGHT: t[WEIGHT].to(torch.complex64)},
    "not a number": lambda t: t | {WEIGHT: t[WEIGHT] * math.nan},
    "infinite": lambda t: t | {WEIGHT: t[WEIGHT] / 0},
    "a number": lambda t: t | {WEIGHT: 3},
    "text": lambda t: t | {WEIGHT: "weights"},
    "a list": lambda t: [*t.values()],
    "nothing": lambda t: None,
    "names that are numbers": lambda t: dict(enumerate(t.values())),
}


@pytest.mark.parametrize("kind", list(TENSORS))
def test_tensors_of_another_network(good, tmp_path, kind):
    said = refused(tmp_path, model_bytes(good["built"], TENSORS[kind](good["tensors"])))
    assert "tensor" in said


def header(data, change):
    """The bytes of a file with another header."""
    size = int.from_bytes(data[:8], "little")
    found = json.loads(data[8 : 8 + size])
    text = change(found)
    text = text if isinstance(text, bytes) else json.dumps(found if text is None else text).encode()
    return struct.pack("<Q", len(text)) + text + data[8 + size :]


def about(change):
    def of(found):
        described = json.loads(found["__metadata__"]["dspreg"])
        changed = change(described)
        described = described if changed is None else changed
        found["__metadata__"]["dspreg"] = described if isinstance(described, str) else json.dumps(described)

    return lambda data: header(data, of)


def entry(**values):
    return lambda data: header(data, lambda found: found["0"].update(values))


FILES = {
    "nothing": lambda data: b"",
    "seven bytes": lambda data: data[:7],
    "half": lambda data: data[: len(data) // 2],
    "one byte more": lambda data: data + b"\0",
    "a long header": lambda data: struct.pack("<Q", 2**62) + data[8:],
    "a header longer than the file": lambda data: struct.pack("<Q", len(data)) + data[8:],
    "a header of spaces": lambda data: struct.pack("<Q", 2**24) + b" " * 2**24,
    "a deep header": lambda data: header(data, lambda _: b"[" * 100_000 + b"]" * 100_000),
    "a header that is a list": lambda data: header(data, lambda _: b"[]"),
    "no metadata": lambda data: header(data, lambda found: found.pop("__metadata__") and None),
    "metadata that are a list": lambda data: header(data, lambda found: found.update(__metadata__=[])),
    "of another program": lambda data: header(data, lambda found: found.update(__metadata__={"format": "pt"})),
    "no text": about(lambda d: "{"),
    "deep text": about(lambda d: "[" * 50_000 + "]" * 50_000),
    "a long number": about(lambda d: '{"about": {}, "state": 1' + "0" * 6_000 + "}"),
    "a list": about(lambda d: []),
    "about is a list": about(lambda d: d.update(about=[])),
    "another format": about(lambda d: d["about"].update(format="dspreg.model/9")),
    "a format that is a list": about(lambda d: d["about"].update(format=["dspreg.model/1"] * 9_999)),
    "a state that is text": about(lambda d: d.update(state="built tensors")),
    "built is a list": about(lambda d: d["state"].update(built=[])),
    "built is a tensor": about(lambda d: d["state"].update(built={"$tensor": "0"})),
    "a tensor that is not there": about(lambda d: d["state"]["tensors"].update(w={"$tensor": "99"})),
    "a tensor by a list": about(lambda d: d["state"]["tensors"].update(w={"$tensor": ["0"]})),
    "items without values": about(lambda d: d["state"].update(tensors={"$items": [[1]]})),
    "items by a list": about(lambda d: d["state"].update(tensors={"$items": [[[1], 2]]})),
    "an odd infinity": about(lambda d: d["state"]["built"].update(dropout={"$infinite": "x"})),
    "mean that is no number": about(lambda d: d["state"]["built"].update(mean=[math.nan] * 3)),
    "infinite dropout": about(lambda d: d["state"]["built"].update(dropout={"$infinite": "+"})),
    "a huge shape": entry(shape=[2**40, 2**40]),
    "a negative shape": entry(shape=[-1]),
    "an unknown dtype": entry(dtype="X99"),
    "another dtype": entry(dtype="I32"),
    "offsets beyond": entry(data_offsets=[0, 2**50]),
    "offsets the wrong way": entry(data_offsets=[8, 0]),
    "a pickle": lambda data: b"\x80\x04\x95" + b"cos\nsystem\n" * 9,
    "a zip": lambda data: b"PK\x03\x04" + b"\0" * 99,
}


@pytest.mark.parametrize("kind", list(FILES))
def test_a_file_that_no_training_writes(good, tmp_path, kind):
    refused(tmp_path, FILES[kind](model_bytes(good["built"], good["tensors"])))


def test_a_command_says_it_and_ends_with_4(run, good, tmp_path, capsys):
    place = tmp_path / "run"
    shutil.copytree(run, place)
    image = str(next((run.parent / "photos").rglob("*.png")))
    for field in ("image_size", "classes", "algorithm"):
        write_model(place, model_bytes(good["built"] | {field: -1}, good["tensors"]))
        for command in (["predict", str(place), image], ["evaluate", str(place)], ["measure", "--model", str(place)],
                        ["export", str(place), "--format", "safetensors"]):  # fmt: skip
            assert main(command) == 4
            said = capsys.readouterr().err
            assert f"built.{field}" in said
            assert "bug" not in said
            assert "Traceback" not in said


def test_a_model_that_the_run_does_not_name_is_not_used(run, tmp_path):
    place = tmp_path / "run"
    shutil.copytree(run, place)
    (place / "models").mkdir()
    shutil.copy(run / "last.safetensors", place / "models" / "step-00000000.safetensors")
    with pytest.raises(IntegrityError, match="does not belong to the run"):
        dspreg.load(place, "0")


def test_a_giant_network_is_never_made(good, tmp_path, monkeypatch):
    """Two billion parameters: not one of their tensors is anywhere but on the device `meta`."""
    made = []
    register = nn.Module.register_parameter

    def note(module, name, param):
        made.append(param.numel() if param is not None and param.device.type != "meta" else 0)
        return register(module, name, param)

    monkeypatch.setattr(nn.Module, "register_parameter", note)
    built = good["built"] | {"model": "vit_giant_patch14_224", "image_size": 224}
    assert "the tensor" in refused(tmp_path, model_bytes(built, good["tensors"]))
    assert len(made) > 100
    assert sum(made) == 0


@pytest.mark.parametrize("name", list(algorithms()))
@pytest.mark.parametrize("model", ["small-cnn", "test_resnet"])
def test_every_method_is_compared_by_shapes_alone_and_then_loaded(good, tmp_path, name, model):
    """What is made on `meta` has the tensors of what is made for good, for all that we train."""
    built = good["built"] | {"algorithm": name, "model": model, "image_size": 32}
    stack = build_stack(built)
    path = tmp_path / "model.safetensors"
    path.write_bytes(model_bytes(built, tensors_of(stack)))
    loaded, transform = load_model_file(path)
    x = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(loaded(x), stack.eval().predict(x))
    assert transform.size == 32
    assert pack(tensors_of(loaded.algorithm)) == pack(tensors_of(stack))


TOLD = {  # what run.json may say of a run whose model is sound
    "no data": lambda run: run.pop("data"),
    "data that are a list": lambda run: run.update(data=[]),
    "domains that are text": lambda run: run["data"].update(domains="abc"),
    "no fingerprints": lambda run: run["data"].update(fingerprints={}),
    "settings that are text": lambda run: run.update(settings="x"),
    "targets that are a number": lambda run: run["settings"].update(targets=7),
    "a huge batch": lambda run: run["settings"].update(evaluation_batch=10**30),
    "a holdout of text": lambda run: run["settings"].update(holdout="0.2"),
    "no place": lambda run: run.update(where=None),
    "a data set that is a number": lambda run: run["where"].update(dataset=5),
    "a root that is a list": lambda run: run["where"].update(root=["/"]),
    "a name that is a number": lambda run: run["where"].update(name=3),
}


@pytest.mark.parametrize("kind", list(TOLD))
@pytest.mark.parametrize("command", [["evaluate"], ["measure", "--no-null", "--model"]])
def test_a_run_that_no_training_writes(run, tmp_path, capsys, kind, command):
    place = tmp_path / "run"
    shutil.copytree(run, place)
    change_description(place, TOLD[kind])
    assert main([*command, str(place)]) == 4
    said = capsys.readouterr().err
    assert "run.json" in said
    assert "Traceback" not in said
