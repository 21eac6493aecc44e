"""Weights from files: bit for bit what was saved, and a plain refusal of everything else."""

import hashlib
import json
import os
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

from dspreg.errors import ConfigError, IntegrityError, ResourceError
from dspreg.networks import SmallCNN, Weights, make_backbone
from dspreg.networks.weights import MAX_HEADER, ExpectedWeights


def saved(path, name="test_resnet", change=lambda state: None, **options):
    """A file of random weights as timm would publish it, head and all; and the state in it."""
    torch.manual_seed(3)
    state = {k: v.clone() for k, v in timm.create_model(name, **options).state_dict().items()}
    for key, tensor in state.items():
        if key.endswith(("running_mean", "running_var")):
            tensor.uniform_(0.5, 2)  # so that fresh statistics would be noticed
    change(state)
    save_file(state, path)
    return state


def loaded(path, name="test_resnet", image_size=32):
    return make_backbone(name, weights=str(path), image_size=image_size)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("test_resnet", {}),
        ("test_resnet", {"num_classes": 0}),
        ("test_resnet", {"num_classes": 7}),
        ("test_convnext", {}),  # keeps a norm inside its head
        ("deit_tiny_distilled_patch16_224", {"img_size": 32}),  # has two heads
        ("levit_128s", {"img_size": 32}),  # has a batch norm in each head
    ],
)
def test_loads_bit_for_bit_with_and_without_a_head(tmp_path, name, options):
    state = saved(tmp_path / "w.safetensors", name, **options)
    backbone = loaded(tmp_path / "w.safetensors", name)
    digest = hashlib.sha256((tmp_path / "w.safetensors").read_bytes()).hexdigest()
    assert backbone.weights == Weights("file", "w.safetensors", digest)
    (tmp_path / "w.safetensors").unlink()  # it is read once
    for features in (backbone.make(), backbone.make()):
        ours = features.model.state_dict()
        assert len(ours) > 20
        assert all(torch.equal(ours[key], state[key]) for key in ours)
        with torch.no_grad():
            next(features.parameters()).zero_()  # a copy: the next one does not see it


def test_counters_of_batches_may_be_missing(tmp_path):
    def older(state):
        for key in [k for k in state if k.endswith("num_batches_tracked")]:
            del state[key]

    state = saved(tmp_path / "w.safetensors", change=older)
    ours = loaded(tmp_path / "w.safetensors").make().model.state_dict()
    assert all(torch.equal(ours[key], state[key]) for key in ours if key in state)


def test_positions_are_resampled_as_timm_does(tmp_path):
    path = tmp_path / "w.safetensors"
    saved(path, "vit_tiny_patch16_224")
    at = {"file": str(path), "custom_load": False}
    theirs = timm.create_model("vit_tiny_patch16_224", True, num_classes=0, img_size=64, pretrained_cfg_overlay=at)
    ours = loaded(path, "vit_tiny_patch16_224", image_size=64).make().eval()
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs.eval()(x))


def test_weights_saved_at_the_same_size_keep_their_positions(tmp_path):
    state = saved(tmp_path / "w.safetensors", "vit_tiny_patch16_224", img_size=64)
    ours = loaded(tmp_path / "w.safetensors", "vit_tiny_patch16_224", image_size=64).make().model.state_dict()
    assert all(torch.equal(ours[key], state[key]) for key in ours)


def test_weights_for_a_third_size_are_compared_with_the_size_asked_for(tmp_path):
    saved(tmp_path / "w.safetensors", "vit_tiny_patch16_224", img_size=32)
    with pytest.raises(IntegrityError, match=r"pos_embed is F32 \[1, 5, 192\] instead of F32 \[1, 17, 192\]"):
        loaded(tmp_path / "w.safetensors", "vit_tiny_patch16_224", image_size=64)


def test_what_the_network_keeps_of_its_head_is_not_left_in_the_file():
    expected = ExpectedWeights("mine", {"head.norm.weight": torch.ones(2)}, heads=("head",))
    assert expected.is_head("head.fc.weight")
    assert not expected.is_head("head.norm.weight")
    assert not expected.is_head("header.weight")


def test_small_cnn_loads_its_own_state(tmp_path):
    net = SmallCNN()
    save_file(net.state_dict(), tmp_path / "mine.safetensors")
    backbone = loaded(tmp_path / "mine.safetensors", "small-cnn")
    ours = backbone.make().state_dict()
    assert all(torch.equal(ours[key], tensor) for key, tensor in net.state_dict().items())
    assert backbone.weights.tag == "mine.safetensors"
    saved(tmp_path / "other.safetensors")
    with pytest.raises(IntegrityError, match="does not hold weights of small-cnn"):
        loaded(tmp_path / "other.safetensors", "small-cnn")


def without(state):
    del state["conv1.0.weight"]


def with_more(state):
    state |= {f"extra.{i}": torch.zeros(1) for i in range(5)}


def reshaped(state):
    key = next(k for k, t in state.items() if t.ndim == 4)
    state[key] = state[key].flatten(1)


def halved(state):
    key = next(k for k, t in state.items() if t.ndim == 4)
    state[key] = state[key].half()


def broken(state):
    next(t for t in state.values() if t.ndim == 4)[0] = torch.nan


def crowned(state):
    state |= {f"fc.{i}": torch.zeros(1) for i in range(100)}


def hostile(state):
    state["\x1b[31m" + "x" * 5000] = torch.zeros(1)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (without, r"1 missing \(conv1\.0\.weight\)"),
        (with_more, r"5 unexpected \(extra\.0, extra\.1, extra\.2 and 2 more\)"),
        (reshaped, r"1 of another shape or dtype \(\S+ is F32 \[\d+, \d+\] instead of F32 \[\d+, \d+, \d+, \d+\]\)"),
        (halved, r"1 of another shape or dtype \(\S+ is F16 .* instead of F32"),
        (broken, r"NaN or infinity in 1 tensor"),
        (crowned, r"\d+ belong to the head"),
        (hostile, r"1 unexpected \(\?\[31mx{50}"),
    ],
)
def test_one_tensor_off_is_too_many(tmp_path, change, says):
    saved(tmp_path / "w.safetensors", change=change)
    with pytest.raises(IntegrityError, match=says) as refusal:
        loaded(tmp_path / "w.safetensors")
    assert len(str(refusal.value)) < 700 + len(str(tmp_path))
    assert "\x1b" not in str(refusal.value)


def test_the_file_of_another_network_is_refused_with_both_named(tmp_path):
    saved(tmp_path / "vit.safetensors", "test_vit")
    with pytest.raises(
        IntegrityError, match=r"vit\.safetensors does not hold weights of test_resnet: .* missing"
    ) as no:
        loaded(tmp_path / "vit.safetensors")
    assert "unexpected" in str(no.value)
    assert no.value.exit_code == 4


def framed(header, body=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def flipped(data):
    return data[:20] + bytes([data[20] ^ 0xFF]) + data[21:]


ENTRY = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda d: b"", "it has 0 bytes"),
        (lambda d: b"abc", "it has 3 bytes"),
        (lambda d: d[:-1], "its header describes"),
        (lambda d: d + b"\0", "its header describes"),
        (lambda d: d[:100], "its header would have"),
        (flipped, "header cannot be read"),
        (lambda d: (MAX_HEADER + 1).to_bytes(8, "little") + b" " * (MAX_HEADER + 1), "its header would have"),
        (lambda d: b"\xff" * 8 + d, "its header would have"),
        (lambda d: framed(b"[" * 200_000), "header cannot be read"),
        (lambda d: framed([1, 2]), "header cannot be read"),
        (lambda d: framed({"a": 1}), "header cannot be read"),
        (lambda d: framed({"a": {}}), "header cannot be read"),
        (lambda d: framed({"a": ENTRY | {"shape": [-1]}}, bytes(4)), "is invalid"),
        (lambda d: framed({"a": ENTRY | {"shape": [True]}}, bytes(4)), "is invalid"),
        (lambda d: framed({"a": ENTRY | {"shape": [10**30]}}, bytes(4)), "does not hold weights"),
        (lambda d: framed({"a": ENTRY | {"data_offsets": [4, 0]}}), "do not fit its shape"),
        (lambda d: framed({"a": ENTRY | {"data_offsets": [0, 2**62]}}), "its header describes"),
        (lambda d: framed(b'{"a": 1, "a": 2}'), "occurs twice"),
        (lambda d: framed({}), "does not hold weights"),
    ],
)
def test_damage_is_found_before_anything_is_made_of_it(tmp_path, damage, says):
    path = tmp_path / "w.safetensors"
    saved(path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(IntegrityError, match=says):
        loaded(path)


def test_tensors_that_share_bytes_are_refused(tmp_path):
    path = tmp_path / "w.safetensors"
    saved(path)
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    entries = [e for k, e in header.items() if k.endswith("running_mean")]
    same = [e for e in entries if e["shape"] == entries[0]["shape"]]
    same[0]["data_offsets"] = same[1]["data_offsets"]
    path.write_bytes(framed(header, data[8 + length :]))
    with pytest.raises(IntegrityError, match="damaged or not a safetensors file"):
        loaded(path)


@pytest.mark.parametrize("file", ["w.pt", "w.pth", "w.bin", "w.safetensors"])
@pytest.mark.parametrize("zipped", [True, False])
def test_pickles_are_not_opened(tmp_path, file, zipped):
    torch.save(timm.create_model("test_resnet").state_dict(), tmp_path / file, _use_new_zipfile_serialization=zipped)
    with pytest.raises(IntegrityError, match=r"is a pickle.*not opened.*safetensors\.torch\.save_file"):
        loaded(tmp_path / file)


def test_a_folder_a_gap_and_a_pipe_are_wrong_options(tmp_path):
    with pytest.raises(ConfigError, match=r"is a folder; give the file in it, such as .*model\.safetensors"):
        loaded(tmp_path)
    with pytest.raises(ConfigError, match="there is no file"):
        loaded(tmp_path / "gone.safetensors")
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for a writer
    with pytest.raises(ConfigError, match="not a regular file"):
        loaded(tmp_path / "pipe")


def test_a_file_that_may_not_be_read_is_a_resource(tmp_path, monkeypatch):
    saved(tmp_path / "w.safetensors")

    def denied(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)  # the tests may run as a user who may read everything
    with pytest.raises(ResourceError, match="cannot be read: Permission denied") as refusal:
        loaded(tmp_path / "w.safetensors")
    assert refusal.value.exit_code == 6


def test_published_weights_of_efficientnet_lite0():
    path = Path(os.environ.get("DSPREG_WEIGHTS", "unset"))
    path = path / "tf_efficientnet_lite0.safetensors" if path.is_dir() else path
    if not path.is_file():
        pytest.skip("needs DSPREG_WEIGHTS: tf_efficientnet_lite0.safetensors, or the folder it is in")
    backbone = loaded(path, "tf_efficientnet_lite0", image_size=64)
    assert backbone.mean == backbone.std == (0.5, 0.5, 0.5)
    assert backbone.weights.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    features = backbone.make()
    state, published = features.model.state_dict(), load_file(path)
    assert all(torch.equal(state[key], published[key]) for key in state if key in published)
    assert features.width == 1280
