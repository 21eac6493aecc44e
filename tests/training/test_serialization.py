"""Nested state as one file: what goes in comes out to the bit, and equal states are equal bytes."""

import math
import os
import random
import subprocess
import sys
from collections import OrderedDict

import pytest
import torch
from safetensors.torch import load, save
from torch import nn

from dspreg.errors import IntegrityError
from dspreg.io.atomic_files import sha256
from dspreg.training.serialization import pack, same, unpack

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int8,
          torch.uint8, torch.bool)  # fmt: skip


def optimised(make):
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    optimizer = make(net.parameters())
    for _ in range(3):
        net(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return net, optimizer


OPTIMISERS = {
    "adam": lambda p: torch.optim.Adam(p, lr=1e-3, weight_decay=0.1, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
}
SHARED = torch.arange(6.0)
STATES = {
    "nothing": {},
    "none": None,
    "scalars": [0, 1, -(2**70), 0.1 + 0.2, 1e-320, -0.0, True, False, None, "", "é\n\0"],
    "containers": {"a": [], "b": (), "c": {}, "d": [[1, (2, [3, (4,)])]], "e": ((),)},
    "int keys": {0: "a", 1: {2: torch.ones(2)}, -5: None},
    "mixed keys": {0: "a", "0": "b", (1, 2): "c", None: "d"},
    "our own words": {"$tensor": "0", "x": {"$tuple": [1]}, "y": {"$items": []}, "$": 1},
    "dtypes": {str(d): torch.tensor([0, 1, 1, 0]).to(d) for d in DTYPES},
    "shapes": [torch.zeros(()), torch.zeros(0), torch.zeros(2, 0, 3), torch.arange(24.0).reshape(2, 3, 4)],
    "odd bits": torch.tensor([math.nan, -math.nan, math.inf, -math.inf, -0.0, 5e-324], dtype=torch.float64),
    "strided": {"t": torch.arange(12.0).reshape(3, 4).t(), "s": torch.arange(12)[::3], "e": torch.ones(1).expand(5)},
    "shared": {"a": SHARED, "b": SHARED, "view": SHARED[2:4], "again": {"c": SHARED.reshape(2, 3)}},
    "parameters": nn.Linear(3, 2).state_dict(keep_vars=True),
    **{name: optimised(make)[1].state_dict() for name, make in OPTIMISERS.items()},
}


def keys(value):
    """The order of all keys, all the way down."""
    if isinstance(value, dict):
        return [(key, keys(each)) for key, each in value.items()]
    return [keys(each) for each in value] if isinstance(value, list | tuple) else None


def naively_same(a, b):
    """By repr for what is no tensor, by bytes for what is: no code shared with `same`."""
    if isinstance(a, torch.Tensor):
        raw = [bytes(t.detach().contiguous().reshape(-1).view(torch.uint8).tolist()) for t in (a, b)]
        return (a.dtype, a.shape) == (b.dtype, b.shape) and raw[0] == raw[1]
    if isinstance(a, dict):
        return list(a) == list(b) and all(naively_same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(naively_same, a, b))
    return repr(a) == repr(b)


@pytest.mark.parametrize("name", STATES)
def test_a_state_comes_back_to_the_bit_with_types_and_the_order_of_keys(name):
    state = STATES[name]
    back, about = unpack(pack(state, format="f/1", run="r"), "here")
    assert naively_same(state, back)
    assert keys(back) == keys(state)
    assert same(state, back)
    assert about == {"format": "f/1", "run": "r"}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_an_optimiser_goes_on_as_if_nothing_had_happened(name):
    nets = []
    for through_a_file in (False, True):
        net, optimizer = optimised(OPTIMISERS[name])
        if through_a_file:
            data = pack({"net": net.state_dict(), "optimizer": optimizer.state_dict()})
            net, optimizer = optimised(lambda p: OPTIMISERS[name](p))
            for p in net.parameters():
                nn.init.zeros_(p)
            state, _ = unpack(data, "here")
            net.load_state_dict(state["net"])
            optimizer.load_state_dict(state["optimizer"])
        torch.manual_seed(9)
        net(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        nets.append(net.state_dict())
    assert naively_same(dict(nets[0]), dict(nets[1]))


def test_what_comes_back_is_memory_of_its_own():
    back, _ = unpack(pack({"a": SHARED, "b": SHARED}), "here")
    back["a"].add_(1)
    assert torch.equal(back["b"], torch.arange(6.0))
    assert torch.equal(SHARED, torch.arange(6.0))


def test_an_ordered_dictionary_keeps_its_order():
    back, _ = unpack(pack(OrderedDict(z=1, a=2)), "here")
    assert list(back) == ["z", "a"]


def test_other_readers_can_read_it():
    data = pack({"x": torch.arange(3)}, format="f/1")
    assert [t.tolist() for t in load(data).values()] == [[0, 1, 2]]


@pytest.mark.parametrize("value", [{1, 2}, object(), 1j, b"bytes", range(3), torch.float32, nn.Linear(1, 1), print])
def test_what_has_no_place_in_a_file_is_refused_by_name(value):
    with pytest.raises(TypeError, match=f"can't save a {type(value).__name__}; keep tensors, numbers, text"):
        pack({"deep": [{"inside": value}]})


def test_a_number_outside_a_tensor_must_be_one():
    with pytest.raises(ValueError):
        pack({"loss": math.nan})


def test_the_best_loss_before_there_is_one_is_kept():
    state = {"best": math.inf, "worst": (-math.inf, 1.0)}
    assert unpack(pack(state), "here")[0] == state


NAMES = ("int keys", "our own words", "dtypes", "shapes", "shared", "adam", "sgd")
PROGRAM = """
import sys, torch
torch.set_num_threads(1)  # the states, too, must be equal
sys.path.insert(0, sys.argv[1])
from test_serialization import hashes
print(*hashes())
"""


def hashes():
    return [sha256(pack(STATES[name], format="f", run="r", step="1")) for name in NAMES]


def test_equal_states_are_equal_bytes_in_any_process():
    env = {**os.environ, "PYTHONHASHSEED": "1"}
    command = [sys.executable, "-c", PROGRAM, os.path.dirname(__file__)]
    said = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.split()
    assert said == hashes()
    assert len(set(said)) == len(NAMES)


@pytest.mark.parametrize(
    "data",
    [b"", b"\0" * 7, b"\0" * 100, b"PK\3\4" + bytes(50), save({}), save({"w": torch.ones(2)}),
     save({"0": torch.ones(2)}, {"dspreg": "{"}), save({}, {"dspreg": "[]"}), save({}, {"dspreg": '{"state": 1}'}),
     save({}, {"dspreg": '{"about": {}, "state": {"$tensor": "0"}}'}),
     save({}, {"dspreg": '{"about": {}, "state": {"$items": [1]}}'}),
     save({}, {"dspreg": '{"about": {}, "state": {"$items": [[[], 1]]}}'}),
     save({}, {"dspreg": '{"about": {}, "state": {"$tuple": 3}}'})],
)  # fmt: skip
def test_what_we_did_not_write_is_refused(data):
    with pytest.raises(IntegrityError, match=r"^the file is damaged or not written by dspreg: "):
        unpack(data, "the file")


def test_a_damaged_file_is_refused_or_read_but_never_breaks_anything():
    """Bits of numbers can't be noticed here: that is what the SHA-256 in a checkpoint's name is for."""
    data = pack(STATES["adam"], format="f")
    pick, refused = random.Random(0), 0
    header = 8 + int.from_bytes(data[:8], "little")
    for n in range(400):
        damaged = bytearray(data)
        at = pick.randrange(header if n % 2 else len(data))
        damaged[at] ^= 1 << pick.randrange(8)
        try:
            unpack(bytes(damaged) if n % 5 else bytes(damaged)[: pick.randrange(len(data))], "here")
        except IntegrityError:
            refused += 1
    assert refused > 100


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (1, 1.0), (1, True), (0.0, None), ([1], (1,)), ({"a": 1}, {"a": 1, "b": 2}), ("1", 1), ([1, 2], [1]),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64)), (torch.zeros(2), torch.zeros(1, 2)),
        (torch.tensor(0.0), torch.tensor(-0.0)), (torch.zeros(2), [0.0, 0.0]), (torch.ones(2), torch.zeros(2)),
        ({"a": {"b": torch.ones(1)}}, {"a": {"b": torch.zeros(1)}}),
    ],
)  # fmt: skip
def test_states_that_differ_are_not_the_same(a, b):
    assert not same(a, b)
    assert not same(b, a)
    assert same(a, a)
    assert same(b, b)
