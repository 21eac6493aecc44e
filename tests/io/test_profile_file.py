"""Profiles as a stranger or a bad disk may have made them: each is refused by name, wherever profiles are read."""

import hashlib
import json
import math
import os
import struct

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

from dspreg.cli import main
from dspreg.errors import IntegrityError
from dspreg.io.profile_file import FIRST, FORMAT, opened_profile
from dspreg.reporting.html.layer_profiles import layer_means
from dspreg.sensitivity.profile import Profile
from dspreg.vectors import ParamVector

SHAPES = {"body.0.weight": (3, 2), "body.0.bias": (3,), "head.weight": (2, 3)}
DOMAINS = ("ash", "birch", "cedar")
COUNTS = {"samples": 8, "batches": 2}
ABOUT = {
    "model": "small-cnn", "data": "trees", "image_size": 28, "mean": [0.5] * 3, "std": [0.5] * 3, "batch": 4, "seed": 0,
    "weights": {"source": "none", "tag": "none", "sha256": None}, "head": "new", "outputs": 3, "dspreg": "0.1",
    "torch": "2.10", "domains": {name: {"part": "all", "images": 9} for name in DOMAINS},
}  # fmt: skip
SETTINGS = {
    "of": "loss", "estimator": "persample", "draws": None, "eps": 0.0, "variance": 1.0, "loss": "cross_entropy",
    "domains": dict.fromkeys(DOMAINS, COUNTS), "about": ABOUT,
}  # fmt: skip
BOUND = math.sqrt(2)


def vector(seed, scale=1.0):
    random = torch.Generator().manual_seed(seed)
    return ParamVector((name, scale * torch.rand(shape, generator=random)) for name, shape in SHAPES.items())


@pytest.fixture(scope="module")
def profile():
    s = {name: vector(n) for n, name in enumerate(DOMAINS)}
    return Profile(
        s, vector(3), vector(4), vector(5, BOUND), vector(6, BOUND), vector(7, BOUND), 0.5,
        {"body.0": "Conv2d", "head": "Linear"}, SETTINGS,
    )  # fmt: skip


def parts(data):
    """The description and the tensors of a profile."""
    size = int.from_bytes(data[:8], "little")
    return json.loads(json.loads(data[8 : 8 + size])["__metadata__"][FORMAT][65:]), load(data)


def sealed(description, tensors):
    """As a stranger can do it, by what docs say: a SHA-256 of the file with zeros in its place."""
    text = description if isinstance(description, str) else json.dumps(description)
    data = save(tensors, {FORMAT: "0" * 64 + " " + text})
    place = data.index(b"0" * 64)
    return data[:place] + hashlib.sha256(data).hexdigest().encode() + data[place + 64 :]


def first_version(description, tensors):
    return save(tensors, {FIRST: description if isinstance(description, str) else json.dumps(description)})


def at(*way):
    """A change of the description: the last of `way` is the value."""

    def change(description, tensors):
        *names, last, value = way
        place = description
        for name in names:
            place = place[name]
        if value is KeyError:
            del place[last]
        else:
            place[last] = value

    return change


def values(key, value):
    def change(description, tensors):
        tensors[key] = tensors[key].clone()
        tensors[key].reshape(-1)[1] = value

    return change


def replaced(key, make):
    return lambda description, tensors: tensors.update({key: make(tensors[key])})


def without(*keys):
    return lambda description, tensors: [tensors.pop(key) for key in keys]


def by_domain(value):
    return dict.fromkeys(DOMAINS, value)


NAME = "body.0.bias"
SOUND = {
    "c at the bound": values(f"c/{NAME}", BOUND),
    "c at the bound, rounded up": values(f"c/{NAME}", float(np.nextafter(np.float32(BOUND), np.float32(2)))),
    "c of 0": values(f"c/{NAME}", 0.0),
    "s of 0": values(f"s/1/{NAME}", 0.0),
    "variance too large for float32": values(f"variance/{NAME}", math.inf),
    "no reliability": at("reliability", None),
    "perfect reliability": at("reliability", 1),
    "no null": without(*(f"null/{name}" for name in SHAPES)),
    "no settings but how it was measured": at("settings", {"of": "loss"}),
    "a field of a newer version": at("newer", [1, 2]),
    "no kinds": at("kinds", {}),
}
TAMPERED = {
    "c above the bound": values(f"c/{NAME}", BOUND + 1e-3),
    "c of 1e30": values(f"c/{NAME}", 1e30),
    "c below 0": values(f"c/{NAME}", -1e-3),
    "c that is no number": values(f"c/{NAME}", math.nan),
    "infinite c": values(f"c/{NAME}", math.inf),
    "null above the bound": values(f"null/{NAME}", 2.0),
    "null that is no number": values(f"null/{NAME}", math.nan),
    "null below 0": values(f"null/{NAME}", -1.0),
    "wrong layers": values("c/head.weight", 7.0),
    "text": lambda description, tensors: "{",
    "a list": lambda description, tensors: "[]",
    "null": lambda description, tensors: "null",
    "deep": lambda description, tensors: "[" * 50_000 + "]" * 50_000,
    "NaN": lambda description, tensors: json.dumps(description | {"reliability": math.nan}),
    "a long number": lambda description, tensors: json.dumps(description).replace("0.5", "1" + "0" * 6_000, 1),
    "a number that is infinite": lambda description, tensors: json.dumps(description).replace("0.5", "1e999", 1),
    "half of a character": at("domains", ["a", "b", "\ud800"]),
    "no domains": at("domains", KeyError),
    "one domain": at("domains", ["ash"]),
    "two of three domains": at("domains", ["ash", "birch"]),
    "four of three domains": at("domains", ["ash", "birch", "cedar", "elm"]),
    "one domain twice": at("domains", ["ash", "ash", "cedar"]),
    "domains that are text": at("domains", "abc"),
    "domains that are numbers": at("domains", [1, 2, 3]),
    "a domain of many letters": at("domains", ["a", "b", "x" * 10_000]),
    "no names": at("names", KeyError),
    "names that are none": at("names", []),
    "names that are numbers": at("names", [1, 2, 3]),
    "a name too few": at("names", list(SHAPES)[:-1]),
    "a name too many": at("names", [*SHAPES, "more"]),
    "a name twice": at("names", [*SHAPES, NAME]),
    "kinds that are a list": at("kinds", []),
    "a kind that is a number": at("kinds", {"body.0": 3}),
    "reliability of 2": at("reliability", 2),
    "reliability as text": at("reliability", "0.5"),
    "reliability that is true": at("reliability", True),
    "settings that are a list": at("settings", [1]),
    "settings that are text": at("settings", "x"),
    "counts that are a list": at("settings", "domains", [1]),
    "counts of other domains": at("settings", "domains", {"elm": COUNTS}),
    "counts without samples": at("settings", "domains", by_domain({"batches": 1})),
    "samples as text": at("settings", "domains", by_domain({"batches": 1, "samples": "8"})),
    "samples below 0": at("settings", "domains", by_domain({"batches": 1, "samples": -8})),
    "eps as text": at("settings", "eps", "0"),
    "of as a list": at("settings", "of", ["loss"]),
    "about that is text": at("settings", "about", "x"),
    "about without a model": at("settings", "about", "model", KeyError),
    "a model that is a list": at("settings", "about", "model", []),
    "an image size as text": at("settings", "about", "image_size", "28"),
    "mean of two": at("settings", "about", "mean", [1, 2]),
    "weights that are text": at("settings", "about", "weights", "none"),
    "an unknown part": at("settings", "about", "domains", by_domain({"part": "x", "images": 1})),
    "a tensor missing": without(f"c/{NAME}"),
    "s of a domain missing": without(*(f"s/2/{name}" for name in SHAPES)),
    "part of null missing": without(f"null/{NAME}"),
    "a tensor too many": lambda d, t: t.update(extra=torch.zeros(1)),
    "s of one domain more": lambda d, t: t.update({f"s/3/{n}": t[f"s/2/{n}"].clone() for n in SHAPES}),
    "c of another shape": replaced(f"c/{NAME}", lambda t: t[:2]),
    "s of another shape": replaced(f"s/0/{NAME}", lambda t: t[None]),
    "null of no dimension": replaced(f"null/{NAME}", lambda t: t[0]),
    "c in float64": replaced(f"c/{NAME}", lambda t: t.double()),
    "c in float16": replaced(f"c/{NAME}", lambda t: t.half()),
    "c as whole numbers": replaced(f"c/{NAME}", lambda t: t.long()),
    "c as true and false": replaced(f"c/{NAME}", lambda t: t > 0),
    "all in float16": lambda d, t: t.update({key: value.half() for key, value in t.items()}),
    "nothing in it": lambda d, t: t.update({key: value.reshape(-1)[:0].clone() for key, value in t.items()}),
}
UNSEEN_BY_THE_PAGE = {  # which reads c and null alone
    "s below 0": values(f"s/1/{NAME}", -1e-9),
    "infinite s": values(f"s/1/{NAME}", math.inf),
    "s that is no number": values(f"s/2/{NAME}", math.nan),
    "mean below 0": values(f"mean/{NAME}", -1.0),
    "infinite mean": values(f"mean/{NAME}", math.inf),
    "variance below 0": values(f"variance/{NAME}", -1.0),
    "variance that is no number": values(f"variance/{NAME}", math.nan),
    "c_debiased above the bound": values(f"c_debiased/{NAME}", 1.5),
}


def tampered(profile, change, seal=sealed):
    description, tensors = parts(profile.to_bytes())
    text = change(description, tensors)
    return seal(text if isinstance(text, str) else description, tensors)


@pytest.mark.parametrize("seal", [sealed, first_version])
@pytest.mark.parametrize("kind", list(TAMPERED | UNSEEN_BY_THE_PAGE))
def test_a_profile_that_no_measurement_gives(profile, tmp_path, kind, seal):
    path = tmp_path / "p.safetensors"
    path.write_bytes(tampered(profile, (TAMPERED | UNSEEN_BY_THE_PAGE)[kind], seal))
    for read in (Profile.load, layer_means) if kind in TAMPERED else (Profile.load,):
        with pytest.raises(IntegrityError, match=r"p\.safetensors") as caught:
            read(path)
        assert len(str(caught.value)) < 1_000


@pytest.mark.parametrize("seal", [sealed, first_version])
@pytest.mark.parametrize("kind", list(SOUND))
def test_what_a_measurement_may_give_is_read(profile, tmp_path, kind, seal):
    path = tmp_path / "p.safetensors"
    path.write_bytes(tampered(profile, SOUND[kind], seal))
    found = Profile.load(path)
    assert list(found.c) == list(SHAPES)
    assert repr(found)
    assert layer_means(path)


def test_a_profile_of_the_first_version_is_read_as_before(profile, tmp_path):
    path = tmp_path / "p.safetensors"
    path.write_bytes(first_version(*parts(profile.to_bytes())))
    assert Profile.load(path).to_bytes() == profile.to_bytes()


def test_the_digest_is_that_of_the_file_with_zeros_in_its_place(profile):
    data = profile.to_bytes()
    assert data == sealed(*(lambda d, t: (json.dumps(d, sort_keys=True), t))(*parts(data)))


def test_every_flipped_bit_is_found(profile, tmp_path):
    data, path = bytearray(profile.to_bytes()), tmp_path / "p.safetensors"
    size = 8 + int.from_bytes(data[:8], "little")
    random = np.random.default_rng(0)
    flips = [*range(8 * 120), *random.integers(8 * 120, 8 * size, 300), *random.integers(8 * size, 8 * len(data), 300)]
    for bit in map(int, flips):
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        with pytest.raises(IntegrityError):
            Profile.load(path)
        data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
    Profile.load(path)


def test_bytes_cut_off_or_added_are_found(profile, tmp_path):
    data, path = profile.to_bytes(), tmp_path / "p.safetensors"
    for changed in (b"", data[:5], data[:100], data[:-1], data + b"\0", struct.pack("<Q", 2**60) + data[8:]):
        path.write_bytes(changed)
        with pytest.raises(IntegrityError):
            Profile.load(path)


def test_a_header_in_another_order_does_not_pass_unverified(profile, tmp_path):
    data = profile.to_bytes()
    size = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + size].replace(b'{"__metadata__"', b'{ "__metadata__"', 1)
    path = tmp_path / "p.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + data[8 + size :])
    with pytest.raises(IntegrityError):
        Profile.load(path)


def test_a_fifo_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "p.safetensors")
    with (
        pytest.raises(IntegrityError, match="is a FIFO; wanted a regular file"),
        opened_profile(tmp_path / "p.safetensors"),
    ):
        pass


@pytest.mark.parametrize("kind", ["c above the bound", "samples as text", "c of another shape", "half of a character"])
def test_compare_says_it_and_ends_with_4(profile, tmp_path, kind, capsys):
    (tmp_path / "good.safetensors").write_bytes(profile.to_bytes())
    (tmp_path / "bad.safetensors").write_bytes(tampered(profile, TAMPERED[kind]))
    names = [str(tmp_path / f"{name}.safetensors") for name in ("good", "bad")]
    for pair in (names, names[::-1]):
        assert main(["measure", "--compare", *pair]) == 4
        said = capsys.readouterr().err
        assert "bad.safetensors" in said
        assert "Traceback" not in said
    assert main(["measure", "--compare", names[0], names[0], "--html", str(tmp_path / "page.html")]) == 0


def test_names_with_control_characters_stay_off_the_terminal(profile, tmp_path, capsys):
    def change(description, tensors):
        description["kinds"] = {"body.0": "Conv\x1b[2J", "head": "\x9bK"}
        description["domains"] = [f"{name}\x1b]0;x\x07" for name in DOMAINS]
        description["settings"] = {"of": "loss\x1b[31m", "loss": "\x1b[2J"}

    for name, how in (("good", lambda d, t: None), ("odd", change)):
        (tmp_path / f"{name}.safetensors").write_bytes(tampered(profile, how))
    assert main(["measure", "--compare", str(tmp_path / "good.safetensors"), str(tmp_path / "odd.safetensors")]) == 0
    printed = capsys.readouterr()
    assert not set("\x1b\x07\x9b") & set(printed.out + printed.err)
