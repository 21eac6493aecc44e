"""c by layer as the page reads it, against what `Profile` itself says; what is damaged, and what is left unread."""

import numpy as np
import pytest
import torch

from dspreg.io.atomic_files import write
from dspreg.reporting.html import layer_profiles
from dspreg.reporting.load import read_runs
from dspreg.reporting.tables import select_rows
from dspreg.sensitivity.profile import Profile
from dspreg.vectors import ParamVector
from helpers.runs import DOMAINS, single, write_run

SHAPES = {"body.0.weight": (3, 2, 2), "body.0.bias": (3,), "body.1.weight": (5,), "scale": (1,)}


def made(seed, null=True):
    def vector():
        return ParamVector((name, torch.rand(shape, generator=random)) for name, shape in SHAPES.items())

    random = torch.Generator().manual_seed(seed)
    s = {name: vector() for name in DOMAINS[1:]}
    floor = vector() if null else None
    return Profile(s=s, mean=vector(), variance=vector(), c=vector(), c_debiased=None, null=floor, reliability=0.5,
                   kinds={})  # fmt: skip


def saved(profile, path):
    profile.save(path)
    return path.read_bytes()


def stored(root, algorithm="DSPReg", trials=2, null=True, **more):
    """Runs with profiles; returns theirs as (start, end) by trial."""
    pairs = []
    for trial in range(trials):
        pair = [made(10 * trial + n, null) for n in (1, 2)]
        content = {t: saved(p, root / "x.safetensors") for t, p in zip(("start", "end"), pair, strict=True)}
        (root / "x.safetensors").unlink()
        write_run(
            root / f"{algorithm}-{trial}", [single(0, "ash", 0.5, 0.5)], algorithm=algorithm, trial=trial,
            profiles=content, **more,
        )  # fmt: skip
        pairs.append(pair)
    return pairs


def of(root):
    return layer_profiles.load_profiles(select_rows(read_runs(root)[0]))


def test_means_by_layer_are_those_of_a_profile(tmp_path):
    profile = made(3)
    profile.save(tmp_path / "p.safetensors")
    found = layer_profiles.layer_means(tmp_path / "p.safetensors")
    table = profile.by_layer().set_index("layer")
    assert list(found) == ["body.0", "body.1", ""] == list(table.index)
    for layer, values in found.items():
        assert values == pytest.approx({"c": table.loc[layer, "c mean"], "null": table.loc[layer, "null mean"]})


def test_a_row_is_the_mean_of_its_runs(tmp_path):
    pairs = stored(tmp_path)
    (one,), damaged = of(tmp_path)
    assert (one.dataset, one.label, one.there, len(one.read), damaged) == ("trees", "DSPReg", 2, 2, [])
    for n, time in enumerate(("start", "end")):
        tables = [pair[n].by_layer().set_index("layer") for pair in pairs]
        for layer in ("body.0", "body.1", ""):
            for what in ("c", "null"):
                wanted = np.mean([table.loc[layer, f"{what} mean"] for table in tables])
                assert one.layers()[layer][f"{what} {time}"] == pytest.approx(wanted)


def test_without_null_there_is_no_null(tmp_path):
    stored(tmp_path, null=False)
    (one,), _ = of(tmp_path)
    assert set(one.layers()["body.1"]) == {"c start", "c end"}
    ((_, _, picture),) = layer_profiles.draw_profiles([one])
    assert 'class="c end"' in picture
    assert "null" not in picture.replace("beside null", "")


def test_a_damaged_profile_is_named_and_not_shown(tmp_path):
    stored(tmp_path)
    path = tmp_path / "DSPReg-0/profiles/end.safetensors"
    content = path.read_bytes()
    write(path, content[:-1] + bytes([content[-1] ^ 1]))
    (one,), damaged = of(tmp_path)
    assert len(one.read) == 1
    assert len(damaged) == 1
    assert "DSPReg-0/profiles/end.safetensors is damaged or was changed" in damaged[0]


@pytest.mark.parametrize("content", [b"", b"not a profile at all", b"\x02\0\0\0\0\0\0\0{}"])
def test_another_file_in_its_place_is_named_too(tmp_path, content):
    stored(tmp_path, trials=1)
    write_run(tmp_path / "odd", [single(0, "ash", 0.5, 0.5)], algorithm="DSPReg", trial=7,
              profiles={"start": content, "end": content})  # fmt: skip
    (one,), damaged = of(tmp_path)
    assert len(one.read) == 1
    assert "start.safetensors is" in damaged[0]
    assert "not a profile" in damaged[0]


def test_only_so_many_are_read_and_of_every_row_as_many(tmp_path, monkeypatch):
    stored(tmp_path, "DSPReg", trials=8)
    stored(tmp_path, "ERM", trials=8)
    found, _ = of(tmp_path)
    assert [(one.label, one.there, len(one.read)) for one in found] == [("ERM", 8, 6), ("DSPReg", 8, 6)]
    size = sum(path.stat().st_size for path in (tmp_path / "ERM-0/profiles").iterdir())
    monkeypatch.setattr(layer_profiles, "BYTES", 4 * size)
    assert [len(one.read) for one in of(tmp_path)[0]] == [2, 2]
    monkeypatch.setattr(layer_profiles, "BYTES", 0)
    assert [len(one.read) for one in of(tmp_path)[0]] == [0, 0]


def test_runs_without_profiles_have_none(tmp_path):
    write_run(tmp_path / "a", [single(0, "ash", 0.5, 0.5)])
    assert of(tmp_path) == ([], [])
