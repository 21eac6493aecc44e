"""Two profiles of one network, against numpy and scipy."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch import nn

import dspreg
from dspreg.errors import ConfigError
from dspreg.sensitivity import compare
from dspreg.sensitivity.plots import cells
from dspreg.sensitivity.text_summary import rank_layers, remarks, summarize_comparison, summarize_profile


def network(seed=0, width=5):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 3))


def domains(names=("a", "b", "c"), seed=0, batches=4, size=16):
    random = torch.Generator().manual_seed(seed)
    return {
        name: [
            (torch.randn(size, 4, generator=random) * (1 + d), torch.randint(3, (size,), generator=random))
            for _ in range(batches)
        ]
        for d, name in enumerate(names)
    }


@pytest.fixture(scope="module")
def two():
    return dspreg.measure(network(0), domains()), dspreg.measure(network(1), domains(seed=7))


def joined(vector, layer):
    return np.concatenate([t.double().numpy().ravel() for n, t in vector.items() if n.rpartition(".")[0] == layer])


def test_numbers_by_layer_are_those_of_the_two_profiles(two):
    before, after = two
    table = compare(before, after).by_layer().set_index("layer")
    assert list(table.index) == ["0", "2"]
    for layer, row in table.iterrows():
        for when, profile in (("before", before), ("after", after)):
            c, null = joined(profile.c, layer), joined(profile.null, layer)
            assert row[f"c mean {when}"] == pytest.approx(c.mean(), rel=1e-6)
            assert row[f"null mean {when}"] == pytest.approx(null.mean(), rel=1e-6)
            assert row[f"c median {when}"] == pytest.approx(np.sort(c)[(len(c) - 1) // 2], rel=1e-6)
        wanted = joined(after.c, layer).mean() - joined(before.c, layer).mean()
        assert row["c mean change"] == pytest.approx(wanted, abs=1e-6)


def test_the_whole_is_over_parameters_sensitive_both_times(two):
    before, after = two
    mean = before.mean.map(torch.clone)
    mean["0.weight"][0] = 0  # four parameters that nothing moved before
    dead = replace(before, mean=mean)
    comparison = dead.compare(after)
    alive = np.concatenate([(mean[n] > 0).numpy().ravel() & (after.mean[n] > 0).numpy().ravel() for n in mean])
    first, second = (np.concatenate([t.numpy().ravel() for t in p.c.values()])[alive] for p in (before, after))
    assert comparison.agreement == pytest.approx(spearmanr(first, second).statistic, abs=1e-9)
    found = comparison.overall()
    assert found["sensitive_both_times"] == alive.sum() <= len(alive) - 4
    assert found["c_before"] == pytest.approx(first.mean(), rel=1e-6)
    assert found["c_after"] == pytest.approx(second.mean(), rel=1e-6)


def test_a_profile_with_itself_has_no_change(two):
    found = summarize_comparison(two[0].compare(two[0]))
    assert found["agreement"] == pytest.approx(1)
    assert (found["rose"], found["fell"]) == (0, 0)
    assert all(row["c_median_change"] == 0 for row in found["layers"])


def test_exchanging_them_exchanges_the_sign(two):
    there, back = (summarize_comparison(compare(*pair)) for pair in (two, two[::-1]))
    assert there["agreement"] == pytest.approx(back["agreement"])
    assert (there["rose"], there["fell"]) == (back["fell"], back["rose"])
    by_layer = {row["layer"]: row["c_median_change"] for row in back["layers"]}
    assert all(row["c_median_change"] == -by_layer[row["layer"]] for row in there["layers"])


def test_the_layers_that_changed_most_come_first(two):
    rows = summarize_comparison(compare(*two))["layers"]
    sizes = [abs(row["c_median_change"]) for row in rows]
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (lambda: network(width=6), r"0.weight is \[5, 4\] before and \[6, 4\] after"),
        (
            lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Tanh(), nn.Linear(5, 3)),
            "2.weight is in the first only",
        ),
        (
            lambda: nn.Sequential(nn.Linear(4, 5, bias=False), nn.ReLU(), nn.Linear(5, 3)),
            "0.bias is in the first only",
        ),
    ],
)
def test_different_networks_are_refused_by_the_first_difference(two, other, says):
    with pytest.raises(ConfigError, match=says):
        two[0].compare(dspreg.measure(other(), domains()))


def test_what_was_measured_differently_is_noted(two):
    one = dspreg.measure(network(1), domains(("a", "b")), of="output", null=False)
    notes = " ".join(compare(two[0], one).notes)
    assert "of was loss and is output" in notes
    assert "the domains were a, b, c and are a, b, so that the maximum of c is 1.41 and 1.00" in notes
    assert "no null was measured after" in notes
    fewer = dspreg.measure(network(1), domains(batches=2))
    assert "a 64 and 32" in " ".join(compare(two[0], fewer).notes)
    assert compare(*two).notes == ()


def test_pictures_show_both_on_one_scale(two):
    comparison = compare(*two)
    layers = comparison.figure("layers")
    assert [axes.get_xlim() for axes in layers.axes] == [(0, 2**0.5)] * 2
    maps = comparison.figure("map", "0")
    images = [axes.images[0] for axes in maps.axes[:4]]
    assert {image.get_clim() for image in images} == {(0, 2**0.5)}
    shown = [image.get_array().filled(np.nan) for image in images]
    for values, vector in zip(shown, (p for profile in two for p in (profile.c, profile.null)), strict=True):
        assert np.array_equal(values, cells(vector["0.weight"], "0.weight"), equal_nan=True)
    for kind, layer in (("histogram", None), ("layers", "0"), ("map", "9")):
        with pytest.raises(ConfigError):
            comparison.figure(kind, layer)


def test_findings_are_the_profiles_numbers(two):
    profile = two[0]
    found = summarize_profile(profile, layers=1)
    assert found["c_mean"] == pytest.approx(
        np.concatenate([t.numpy().ravel() for t in profile.c.values()]).mean(), rel=1e-6
    )
    assert found["domains"] == {"a": 64, "b": 64, "c": 64}
    assert (found["parameters"], found["layers_measured"], len(found["layers"])) == (43, 2, 1)
    medians = {layer: np.sort(joined(profile.c, layer))[(n - 1) // 2] for layer, n in (("0", 25), ("2", 18))}
    assert [row["layer"] for row in rank_layers(profile)] == sorted(medians, key=medians.get, reverse=True)


@pytest.mark.parametrize(
    ("c", "null", "reliability", "says"),
    [
        (0.60, 0.20, 0.9, []),
        (0.60, 0.55, 0.9, ["hardly above its null"]),
        (0.60, 0.20, 0.3, ["reliability of c is low"]),
        (0.60, 0.55, 0.3, ["hardly above its null", "reliability of c is low"]),
        (0.60, None, None, ["no null was measured", "reliability is unknown"]),
    ],
)
def test_doubtful_numbers_are_called_so(c, null, reliability, says):
    said = list(remarks(c, null, reliability))
    assert len(said) == len(says)
    assert all(part in text for part, text in zip(says, said, strict=True))


def test_equal_domains_are_told_from_different_ones():
    one = domains(("a",), batches=24)["a"]
    alike = dspreg.measure(network(), {name: one[start::3] for start, name in enumerate("abc")})
    assert any("hardly above its null" in text for text in summarize_profile(alike)["remarks"])
    assert any(row["near_null"] for row in rank_layers(alike))
    differ = dspreg.measure(network(), domains())
    assert summarize_profile(differ)["remarks"] == []
    assert not any(row["near_null"] for row in rank_layers(differ))
