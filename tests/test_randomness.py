"""The same key gives the same numbers, whatever ran before."""

import hashlib
import os
import random
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from dspreg.randomness import Noise, generator, seed_for, seeded, untouched


def test_seeds_stay_what_they_are():
    """Literally: if one of these changes, every recorded run means something else."""
    assert seed_for("PACS", "sketch", 0, 100, "measure") == 342326329796995641
    assert seed_for() == 2858069222894195974


def test_a_seed_is_the_start_of_a_hash():
    digest = hashlib.sha256('["a",1,["é",null]]'.encode()).hexdigest()
    assert seed_for("a", 1, ("é", None)) == int(digest[:16], 16) // 2 < 2**63


def test_keys_that_differ_in_order_type_or_nesting_are_different():
    keys = [("a", "b"), ("b", "a"), ("ab",), (("a", "b"),), (1,), (1.0,), ("1",), (True,), (None,), ("None",), ()]
    assert len({seed_for(*key) for key in keys}) == len(keys)


def test_seeds_do_not_depend_on_the_hash_seed():
    program = "from dspreg.randomness import seed_for; print(seed_for('PACS', 'sketch', 0, 100, 'measure'))"
    env = {**os.environ, "PYTHONHASHSEED": "123"}
    said = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    assert int(said.stdout) == 342326329796995641


def test_a_generator_of_ones_own():
    before = torch.get_rng_state()
    first, again = torch.rand(3, generator=generator("a", 1)), torch.rand(3, generator=generator("a", 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, torch.rand(3, generator=generator("a", 2)))
    assert torch.equal(torch.get_rng_state(), before)


def test_seeded_starts_from_the_key_and_leaves_the_stream_alone():
    torch.manual_seed(7)
    undisturbed = torch.rand(4)
    torch.manual_seed(7)
    head = torch.rand(1)
    with seeded("a", 1):
        first = torch.rand(3)
    with seeded("a", 1):
        again = torch.rand(3)
    assert torch.equal(torch.cat([head, torch.rand(3)]), undisturbed)
    assert torch.equal(first, again)
    torch.manual_seed(seed_for("a", 1))
    assert torch.equal(first, torch.rand(3))


def test_seeded_nests():
    with seeded("outer"):
        plain = torch.rand(2)
    with seeded("outer"):
        first = torch.rand(1)
        with seeded("inner"):
            torch.rand(5)
        second = torch.rand(1)
    assert torch.equal(torch.cat([first, second]), plain)


def states():
    legacy = np.random.get_state()
    return torch.get_rng_state().tolist(), legacy[1].tolist(), legacy[2], random.getstate()


def draw():
    return torch.rand(2), np.random.rand(2), random.random()


def draw_and_fail():
    draw()
    raise ZeroDivisionError


@pytest.mark.parametrize("context", [untouched, lambda: seeded("a"), lambda: Noise("a").replayed()])
def test_torch_is_as_before_also_after_an_exception(context):
    before = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError), context():
        draw_and_fail()
    assert torch.equal(torch.get_rng_state(), before)


def test_untouched_covers_numpy_and_python_too():
    before = states()
    with untouched():
        draw()
        assert states() != before
    assert states() == before
    with pytest.raises(ZeroDivisionError), untouched():
        draw_and_fail()
    assert states() == before


def test_untouched_does_not_reseed():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    with untouched():
        assert torch.equal(torch.rand(2), expected)
    assert torch.equal(torch.rand(2), expected)


def test_noise_is_the_same_at_every_evaluation():
    dropout, x = nn.Dropout(0.5), torch.ones(200)
    noise = Noise("run", 3, "noise")
    with noise.replayed():
        first = dropout(x)
    torch.rand(17)
    with pytest.raises(ZeroDivisionError), noise.replayed():
        draw_and_fail()
    with noise.replayed():
        again = dropout(x)
    with Noise("run", 4, "noise").replayed():
        other = dropout(x)
    assert torch.equal(first, again)
    assert 60 < int((first == 0).sum()) < 140
    assert not torch.equal(first, other)


@pytest.mark.parametrize("there", ["cuda", "mps"])
def test_where_there_is_another_device_its_generator_is_seeded_as_well(monkeypatch, there):
    """`torch.manual_seed` seeds all devices, the CPU's own generator none but itself."""
    place = torch.cuda if there == "cuda" else torch.backends.mps
    seeds = []
    monkeypatch.setattr(place, "is_available", lambda: True)
    monkeypatch.setattr(torch, "manual_seed", seeds.append)
    with seeded("a", 1):
        pass
    assert seeds == [seed_for("a", 1)]


def test_the_quick_way_draws_what_the_other_one_draws(monkeypatch):
    with seeded("a", 1):
        quick = torch.rand(5), torch.randperm(9)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    before = torch.get_rng_state()
    with seeded("a", 1):
        slow = torch.rand(5), torch.randperm(9)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(map(torch.equal, quick, slow))
