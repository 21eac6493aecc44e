"""A profile: tables, the mask, saving and loading, pictures."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import dspreg
from helpers import problems


@pytest.fixture(scope="module")
def profile():
    return dspreg.measure(problems.model("cnn"), problems.domains("cnn", 2, 6, 3))


def test_by_layer_aggregates_the_layers_parameters(profile):
    table = profile.by_layer()
    assert table["layer"].tolist() == ["0", "1", "4", "5", "9"]
    assert table["kind"].tolist() == ["Conv2d", "BatchNorm2d", "Conv2d", "BatchNorm2d", "Linear"]
    assert table["parameters"].tolist() == [8 * 27 + 8, 16, 8 * 36 + 8, 16, 27]
    row = table.iloc[0]
    for column, vector in (("c", profile.c), ("null", profile.null), ("s sketch", profile.s["sketch"])):
        values = np.concatenate([vector["0.weight"].numpy().ravel(), vector["0.bias"].numpy().ravel()])
        assert row[column if column.startswith("s ") else f"{column} mean"] == pytest.approx(values.mean())
        if column == "c":
            assert row["c max"] == values.max()
            assert np.sort(values)[111] <= row["c median"] <= np.sort(values)[112]
    assert {"s photo", "s sketch", "s cartoon"} < set(table.columns)


def test_top_points_at_the_largest_entries(profile):
    table = profile.top(5)
    everything = np.sort(np.concatenate([t.numpy().ravel() for t in profile.c.values()]))[::-1]
    assert table["c"].tolist() == everything[:5].tolist()
    for row in table.itertuples():
        assert profile.c[row.parameter][row.position].item() == row.c
        assert profile.null[row.parameter][row.position].item() == row.null
    assert len(profile.top(10**6)) == profile.c.numel()


@pytest.mark.parametrize("quantile", [0.0, 0.5, 0.9, 0.999, 1.0])
def test_mask_is_c_at_least_its_global_quantile(profile, quantile):
    mask = profile.mask(quantile=quantile)
    threshold = np.quantile(np.concatenate([t.numpy().ravel() for t in profile.c.values()]), quantile)
    for name, chosen in mask.items():
        assert chosen.dtype == torch.bool
        assert torch.equal(chosen, profile.c[name] >= threshold - 1e-15)
    share = sum(int(m.sum()) for m in mask.values()) / profile.c.numel()
    assert share == pytest.approx(1 - quantile, abs=2 / profile.c.numel())


def test_a_quantile_that_everything_reaches_is_noticed():
    with pytest.warns(dspreg.Notice, match="the 0.2 quantile of c is 0, so that every parameter is at or above it"):
        mask = dspreg.measure(problems.model("partly frozen"), problems.domains("partly frozen")).mask(quantile=0.2)
    assert all(m.all() for m in mask.values())


def test_insensitive_parameters_are_counted_and_drawn_in_grey():
    profile = dspreg.measure(problems.model("partly frozen"), problems.domains("partly frozen"))
    assert profile.by_layer().set_index("layer")["insensitive"].to_dict() == {"head": 0.0, "unused": 1.0}
    image = profile.figure("map", layer="unused").axes[0].images[0].get_array()
    assert np.ma.masked_invalid(image).count() == 0
    drawn = sum(bar.get_height() for bar in profile.figure("histogram").axes[0].containers[0])
    assert drawn == profile.c["head.weight"].numel() + profile.c["head.bias"].numel()


def test_mask_refuses_a_quantile_out_of_range(profile):
    with pytest.raises(dspreg.ConfigError, match="quantile=90; wanted a number from 0 to 1"):
        profile.mask(quantile=90)


def test_saving_and_loading_gives_the_same_profile(profile, tmp_path):
    profile.save(tmp_path / "p.safetensors")
    again = dspreg.Profile.load(tmp_path / "p.safetensors")
    assert list(again.s) == list(profile.s)  # domains in their order
    assert list(again.c) == list(profile.c)
    for part in ("mean", "variance", "c", "c_debiased", "null"):
        assert all(torch.equal(getattr(again, part)[n], t) for n, t in getattr(profile, part).items())
    assert all(torch.equal(again.s[d][n], t) for d, s in profile.s.items() for n, t in s.items())
    assert again.reliability == profile.reliability
    assert again.settings == profile.settings
    assert again.by_layer().equals(profile.by_layer())
    assert list(tmp_path.iterdir()) == [tmp_path / "p.safetensors"]


def test_a_profile_without_null_is_saved_without(tmp_path):
    with pytest.warns(dspreg.Notice):
        bare = dspreg.measure(problems.model("mlp"), problems.domains("mlp", 1), null=False)
    bare.save(tmp_path / "p.safetensors")
    again = dspreg.Profile.load(tmp_path / "p.safetensors")
    assert again.null is None
    assert again.c_debiased is None
    assert "null mean" not in again.by_layer()
    assert "null unknown" in repr(again)


def test_loading_something_else_is_refused(profile, tmp_path):
    save_file({"w": torch.zeros(2)}, tmp_path / "weights.safetensors")
    with pytest.raises(dspreg.IntegrityError, match="is not a profile: it has no description"):
        dspreg.Profile.load(tmp_path / "weights.safetensors")
    profile.save(tmp_path / "p.safetensors")
    whole = (tmp_path / "p.safetensors").read_bytes()
    (tmp_path / "half.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(dspreg.IntegrityError, match="is damaged or was changed: its SHA-256"):
        dspreg.Profile.load(tmp_path / "half.safetensors")
    save_file({"w": torch.zeros(2)}, tmp_path / "odd.safetensors", {"dspreg.profile/1": json.dumps({})})
    with pytest.raises(dspreg.IntegrityError, match="domains is None; wanted two or more different names"):
        dspreg.Profile.load(tmp_path / "odd.safetensors")


def test_one_entry_describes_a_profile_so_that_equal_profiles_are_equal_bytes(profile, tmp_path):
    """safetensors writes several entries in an order that changes from process to process."""
    profile.save(tmp_path / "deep" / "p.safetensors")
    data = (tmp_path / "deep" / "p.safetensors").read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    assert list(header["__metadata__"]) == ["dspreg.profile/2"]
    dspreg.Profile.load(tmp_path / "deep" / "p.safetensors").save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == data


def test_repr_shows_c_beside_its_floor(profile):
    text = repr(profile)
    assert f"mean c {float(profile.c.flat().mean()):.3f} (null {float(profile.null.flat().mean()):.3f})" in text
    assert "36 samples" in text


# Pictures: what they draw, on which scale.


def test_map_shows_c_beside_null_on_one_scale(profile):
    figure = profile.figure("map", layer="4")
    panels = [axes for axes in figure.axes if axes.images]
    assert [axes.get_title().split(",")[0] for axes in panels] == ["c", "null"]
    for axes, vector in zip(panels, (profile.c, profile.null), strict=True):
        assert axes.images[0].get_clim() == (0, np.sqrt(2))
        drawn = np.ma.masked_invalid(axes.images[0].get_array()).compressed()
        np.testing.assert_array_equal(np.sort(drawn), np.sort(vector["4.weight"].numpy().ravel()))


def test_large_layers_are_drawn_at_2500_keyed_positions():
    net = torch.nn.Sequential(torch.nn.Linear(6, 600), torch.nn.Tanh(), torch.nn.Linear(600, 3)).double()
    big = dspreg.measure(net, problems.domains("mlp", 2, 4))
    images = [axes.images[0].get_array() for axes in big.figure("map", layer="0").axes if axes.images]
    assert images[0].shape == (50, 50)
    again = [axes.images[0].get_array() for axes in big.figure("map", layer="0").axes if axes.images]
    np.testing.assert_array_equal(images[0], again[0])


def test_layers_and_histogram_draw_both(profile):
    axes = profile.figure("layers").axes[0]
    assert axes.get_xlim() == (0, np.sqrt(2))
    c_line, null_line = axes.lines
    medians = [
        np.median(np.concatenate([profile.c[n].numpy().ravel() for n in names])) for names in profile.layers().values()
    ]
    np.testing.assert_allclose(c_line.get_xdata(), medians)
    assert len(null_line.get_xdata()) == 5
    labels = [text.get_text() for text in profile.figure("histogram").axes[0].get_legend().get_texts()]
    assert labels[0].startswith("null, mean")
    assert labels[1].startswith("c, mean")


@pytest.mark.parametrize(
    ("kind", "layer", "message"),
    [
        ("pie", None, "figure 'pie'; wanted 'layers', 'histogram' or 'map'"),
        ("map", "layer9", "layer='layer9'; wanted one of the measured layers: 0, 1, 4, 5, 9"),
        ("map", None, "layer=None; wanted"),
        ("layers", "0", "goes with figure 'map'"),
    ],
)
def test_wrong_figures_are_refused(profile, kind, layer, message):
    with pytest.raises(dspreg.ConfigError, match=message):
        profile.figure(kind, layer)
