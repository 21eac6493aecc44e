"""Checkpoints of PyTorch as safetensors: tensors only, by a process of its own, each under the right name."""

import collections
import os
import subprocess
import sys

import pytest
import timm
import torch
from safetensors.torch import load_file
from torch import nn

from dspreg.cli import main
from dspreg.errors import ConfigError, IntegrityError
from dspreg.networks import make_backbone
from dspreg.networks.convert import convert_weights, pair_names

NAME = "test_resnet"


@pytest.fixture
def state():
    torch.manual_seed(2)
    return timm.create_model(NAME).state_dict()


def require_equal(path, state, also=()):
    found = load_file(path)
    wanted = {
        name: tensor for name, tensor in state.items() if not name.endswith("num_batches_tracked") or name in found
    }
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda s: s,
        lambda s: {"state_dict": s, "epoch": 3, "optimizer": {"state": {0: {"step": torch.tensor(1.0)}}}},
        lambda s: {"model": collections.OrderedDict((f"module.{k}", v) for k, v in s.items())},
        lambda s: {f"module.model.{k}": v for k, v in s.items()},
        lambda s: {f"layer{i}": v for i, (k, v) in enumerate(s.items()) if not k.endswith("num_batches_tracked")},
    ],
    ids=["plain", "checkpoint", "DataParallel", "two wrappers", "other names"],
)
def test_every_tensor_goes_where_it_belongs(state, tmp_path, wrapped, capsys):
    file = tmp_path / "model.pth"
    torch.save(wrapped(state), file)
    assert main(["weights", "convert", str(file), "--network", NAME]) == 0
    require_equal(tmp_path / "model.safetensors", state)
    out = capsys.readouterr().out.splitlines()
    assert any(line.split()[-2:] == ["→", "conv1.0.weight"] for line in out)
    assert out[-1].startswith("SHA-256 ")
    backbone = make_backbone(NAME, weights=str(tmp_path / "model.safetensors"), image_size=32)
    assert backbone.weights.sha256 == out[-1].split()[1]  # what every record will have


def test_without_a_network_names_are_kept(state, tmp_path):
    torch.save({f"module.{k}": v for k, v in state.items()}, tmp_path / "a.pt")
    found = convert_weights(tmp_path / "a.pt", out=tmp_path / "b.safetensors")
    assert (found.how, dict(found.names)["module.fc.bias"]) == ("prefixes removed", "fc.bias")
    require_equal(tmp_path / "b.safetensors", state)


class Evil:
    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("around", [lambda e: e, lambda e: {"state_dict": {"a": torch.zeros(1)}, "args": e}])
def test_a_pickle_that_runs_code_is_refused_and_runs_none(tmp_path, around, capsys):
    torch.save(around(Evil(f"touch {tmp_path / 'evil'}")), tmp_path / "a.pth")
    assert main(["weights", "convert", str(tmp_path / "a.pth")]) == 4
    said = capsys.readouterr().err
    assert "is not opened: it would call" in said
    assert ".system" in said
    assert "weights_only" not in said  # torch's own message says how to open it anyway
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.pth"]


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\3\4" + bytes(50), b"\x80\x02" + bytes(50)])
def test_damaged_files_are_refused(tmp_path, content):
    (tmp_path / "a.pth").write_bytes(content)
    with pytest.raises(IntegrityError, match=r"a\.pth"):
        convert_weights(tmp_path / "a.pth")
    assert not (tmp_path / "a.safetensors").exists()


def test_a_process_that_dies_takes_nothing_along(tmp_path, monkeypatch):
    (tmp_path / "a.pth").write_bytes(b"x")

    def died(command, **options):
        return subprocess.CompletedProcess(command, -11, b"", b"")

    monkeypatch.setattr(subprocess, "run", died)
    with pytest.raises(IntegrityError, match=r"\(exit code -11\)"):
        convert_weights(tmp_path / "a.pth")


def test_tensors_of_another_network_are_refused(state, tmp_path):
    torch.save(state, tmp_path / "a.pth")
    with pytest.raises(ConfigError, match="tensors where the network has"):
        convert_weights(tmp_path / "a.pth", "test_vit")
    wider = {**state, "fc.weight": torch.zeros(7, state["fc.weight"].shape[1])}
    torch.save(wider, tmp_path / "a.pth")
    with pytest.raises(ConfigError, match=r"'fc\.weight' with the shape \[7, "):
        convert_weights(tmp_path / "a.pth", NAME)
    assert not (tmp_path / "a.safetensors").exists()


def test_by_order_only_where_every_shape_is_equal(state):
    shuffled = {f"t{i}": tensor for i, tensor in enumerate(reversed(state.values()))}
    with pytest.raises(ConfigError, match=r"tensors where the network has|with the shape"):
        pair_names(shuffled, state, "x")


@pytest.mark.parametrize("order", [sorted, lambda names: sorted(names, key=lambda name: "running" not in name)])
def test_by_order_a_shift_is_not_taken_for_a_scale(order):
    """The four tensors of a batch norm have one shape, and a file may have them in another order."""
    state = nn.Sequential(nn.BatchNorm2d(4), nn.BatchNorm2d(4)).state_dict()
    names = [name for name in state if not name.endswith("num_batches_tracked")]
    theirs = {f"norm{name}": state[name] for name in names}
    pairs, how = pair_names(theirs, state, "x")
    assert how.startswith("in order")
    assert pairs == [(f"norm{name}", name) for name in names]
    with pytest.raises(ConfigError, match=r"in another order than the network.*'norm0\.\w+'.*0\.weight"):
        pair_names({name: theirs[name] for name in order(theirs)}, state, "x")


def test_mistakes(tmp_path, state, capsys):
    assert main(["weights", "convert", str(tmp_path / "none.pth")]) == 2
    assert "there is no file" in capsys.readouterr().err
    torch.save(state, tmp_path / "a.pth")
    assert main(["weights", "convert", str(tmp_path / "a.pth"), "--network", "resnet5o"]) == 2
    assert "no network is called 'resnet5o'" in capsys.readouterr().err
    assert main(["weights", "convert", str(tmp_path / "a.pth"), "--out", str(tmp_path / "a.pth")]) == 2
    assert "would be replaced by its conversion" in capsys.readouterr().err


# From the hub.

PROGRAM = """
import hashlib, os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from helpers.server import serving
content = Path(sys.argv[1]).read_bytes()
sha = hashlib.sha256(content).hexdigest()
with serving() as host:
    os.environ["HF_ENDPOINT"] = host.url
    headers = {"X-Repo-Commit": "c" * 40, "X-Linked-ETag": f'"{sha}"', "X-Linked-Size": str(len(content))}
    for revision in ("main", "c" * 40):
        path = f"/timm/test_resnet.r160_in1k/resolve/{revision}/model.safetensors"
        host.put(path, content, etag=sha, headers=headers)
    from dspreg.cli import main
    calls = (["list"], ["get", "test_resnet.r160_in1k"], ["list"], ["list", "test_resnet*"])
    codes = [main(["weights", *call]) for call in calls]
    host.files.clear()
    codes.append(main(["weights", "get", "test_resnet.r160_in1k"]))
    codes.append(main(["weights", "get", "test_vit.r160_in1k"]))
    print(codes, sha)
"""


def test_get_and_list(state, tmp_path):
    torch.save(state, tmp_path / "a.pth")
    convert_weights(tmp_path / "a.pth", NAME, tmp_path / "model.safetensors")
    tests = os.path.dirname(os.path.dirname(__file__))
    settings = {"HF_HOME": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "0", "NO_PROXY": "*", "no_proxy": "*"}
    settings |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    settings |= {"HF_HUB_DISABLE_XET": "1"}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "model.safetensors"), tests]
    ran = subprocess.run(command, capture_output=True, text=True, env=os.environ | settings, timeout=200)
    *out, last = ran.stdout.splitlines()
    codes, _, sha = last.rpartition(" ")
    assert codes == "[0, 0, 0, 0, 0, 6]", ran.stderr
    assert out[0].startswith("no weights in the hub's cache")
    assert out[1].startswith("test_resnet.r160_in1k: ")
    assert out.count(f"SHA-256 {sha}") == 2  # the second time from the cache: the host has nothing any more
    assert [line.split()[::2] for line in out if line.endswith(sha) and line.startswith("test_resnet")] == [
        ["test_resnet.r160_in1k", sha]
    ]
    assert any(line.split() == ["test_resnet.r160_in1k", "timm/test_resnet.r160_in1k", "here"] for line in out)
    assert "download model.safetensors of timm/test_vit.r160_in1k" in ran.stderr
