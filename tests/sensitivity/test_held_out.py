"""Does c know a held-out domain? Cases whose answer is known, and every number against scipy."""

import json

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch import nn

import dspreg
from dspreg.errors import ConfigError, DataError
from dspreg.sensitivity import held_out as module
from dspreg.sensitivity.held_out import correlate_held_out, equal_number, gradient_agreement
from dspreg.sensitivity.profile import Profile
from dspreg.sensitivity.statistics import coefficient_of_variation
from dspreg.vectors import ParamVector

SHAPES = {f"{i}.weight": (40, 50) for i in range(12)}  # tensors
SOURCES = ("a", "b", "c")


def vector(values):
    sizes = [int(np.prod(shape)) for shape in SHAPES.values()]
    parts = np.split(np.asarray(values, dtype=np.float64), np.cumsum(sizes)[:-1])
    return ParamVector((n, torch.from_numpy(p.copy()).view(s)) for (n, s), p in zip(SHAPES.items(), parts, strict=True))


def compare(s, unseen, again, mixed, held, null=None, **more):
    s = {name: vector(values) for name, values in s.items()}
    mean = sum(s.values(), ParamVector()) / len(s)
    c = coefficient_of_variation(list(s.values()))
    profile = Profile(s, mean, mean, c, None, null, None, {}, {"eps": 0.0})
    others = {"unseen": vector(unseen), "again": vector(again), "mixed": vector(mixed)}
    return correlate_held_out(profile, **others, held={n: vector(v) for n, v in held.items()}, key=("test",), **more)


def world(departure, *, noise=0.1, level=0.0, seed=0):
    """Sensitivities of 24,000 parameters. Sources differ by `spread`; the unseen domain departs where `departure` says.

    s = base · exp(domain's part + noise of a draw), all noise with the same variance but for `noise` as an array.
    """
    random = np.random.default_rng(seed)
    count = sum(int(np.prod(shape)) for shape in SHAPES.values())
    base = random.lognormal(0, 1, count)
    spread = random.uniform(0, 1, count)
    parts = {name: spread * random.normal(size=count) for name in SOURCES}

    def draw(part):
        return base * np.exp(part + noise * random.normal(size=count))

    s = {name: draw(part) for name, part in parts.items()}
    held = {name: draw(part) for name, part in parts.items()}
    middle = np.log(sum(np.exp(part) for part in parts.values()) / 3)
    mixed = draw(middle)  # as noisy as the others: it is of as many images
    there = middle + departure(spread, random) + level
    return s, draw(there), draw(there), mixed, held


def test_a_domain_that_departs_where_c_is_large_is_known():
    found = compare(*world(lambda spread, random: 2 * spread * random.choice([-1, 1], len(spread))))
    for suffix in ("", "_less_level"):
        c = found.correlations["c"]
        assert c[f"unseen{suffix}"].all.value > 0.6
        assert c[f"excess{suffix}"].all.value > 0.6
        assert c[f"excess{suffix}"].within.value > 0.6
        assert c[f"difference{suffix}"].all.value > 0.5
    assert "better than noise would" in found.verdict
    assert found.correlations["again"]["excess"].all.value > 0.9  # hardly any noise


def test_what_the_null_says_as_well_is_no_merit_of_c():
    made = world(lambda spread, random: 2 * spread * random.choice([-1, 1], len(spread)))
    c = coefficient_of_variation([vector(each) for each in made[0].values()])
    same = compare(*made, null=c)
    assert same.correlations["c"]["excess_less_null"].all.value == pytest.approx(0, abs=1e-12)
    assert "no better than noise would" in same.verdict
    random = compare(*made, null=vector(np.random.default_rng(3).uniform(size=24_000)))
    assert "better than noise would" in random.verdict
    assert "no better" not in random.verdict
    both = [random.correlations[name]["excess"].within.value for name in ("c", "null")]
    assert random.correlations["c"]["excess_less_null"].within.value == pytest.approx(both[0] - both[1])


def test_another_draw_of_the_sources_has_no_excess():
    """Noisy parameters have a large c, and change on any images; the excess is none all the same."""
    random = np.random.default_rng(1)
    noise = random.uniform(0, 1, 24_000)
    found = compare(*world(lambda spread, random: 0.0, noise=noise))
    c = found.correlations["c"]
    assert c["sources"].all.value > 0.2
    assert c["unseen"].all.value > 0.2
    assert c["excess"].all.value == pytest.approx(0, abs=0.03)
    assert c["excess"].within.value == pytest.approx(0, abs=0.03)
    assert c["excess"].all.low < 0 < c["excess"].all.high


def test_a_c_that_is_the_same_everywhere_says_nothing():
    s, *others = world(lambda spread, random: 0.0)
    found = compare(dict.fromkeys(SOURCES, s["a"]), *others)
    assert found.correlations["c"]["excess"].all.value is None
    assert found.correlations["c"]["excess"].within.value is None
    assert "says nothing" in found.verdict


def test_a_level_is_taken_off():
    near = compare(*world(lambda spread, random: 0.0))
    far = compare(*world(lambda spread, random: 0.0, level=3.0))
    assert far.medians["level"]["unseen"] - near.medians["level"]["unseen"] == pytest.approx(3, abs=1e-9)
    assert far.medians["change"]["unseen"] > 2.5 > near.medians["change"]["unseen"]
    same = [each.correlations["c"]["unseen_less_level"].all.value for each in (near, far)]
    assert same[0] == pytest.approx(same[1], abs=1e-9)
    # c of equal levels does not see the level of a source either
    s, *others = world(lambda spread, random: 0.0)
    raised = compare({**s, "a": 5 * s["a"]}, *others).correlations
    assert raised["c"]["sources"].all.value != pytest.approx(near.correlations["c"]["sources"].all.value, abs=0.05)


def test_every_number_is_scipys():
    s, unseen, again, mixed, held = world(lambda spread, random: spread * random.normal(size=len(spread)), level=0.5)
    gradients = [np.random.default_rng(d).normal(0.3, 1, 24_000) for d in range(3)]
    found = compare(s, unseen, again, mixed, held, gradients=[vector(g) for g in gradients])
    mean = sum(s.values()) / 3
    c = np.std([*s.values()], axis=0) / mean
    logs = {"unseen": np.log(unseen / mean), "sources": np.log(mixed / mean), "again": np.log(again / mean)}
    g = np.stack(gradients)
    predictors = {
        "c": c,
        "mean": mean,
        "agreement": np.abs(g.mean(0)) / (g.std(0, ddof=1) / np.sqrt(3)),
        "c_with_unseen": np.std([*s.values(), again], axis=0) / np.mean([*s.values(), again], axis=0),
    }
    level = [each / np.exp(np.sort(np.log(each / mean))[11_999]) for each in s.values()]  # torch's median is the lower
    predictors["c_levelled"] = np.std(level, axis=0) / np.mean(level, axis=0)
    for suffix in ("", "_less_level"):
        off = {name: log - (np.sort(log)[11_999] if suffix else 0) for name, log in logs.items()}
        outcomes = {f"unseen{suffix}": abs(off["unseen"]), f"sources{suffix}": abs(off["sources"])}
        outcomes[f"excess{suffix}"] = off["unseen"] ** 2 - off["sources"] ** 2
        for outcome, values in outcomes.items():
            for name, predictor in (predictors | {"again": abs(off["again"])}).items():
                wanted = spearmanr(predictor, values).statistic
                assert found.correlations[name][outcome].all.value == pytest.approx(wanted, abs=1e-9), (name, outcome)
    one = [spearmanr(c, abs(np.log(each / mean))).statistic for each in held.values()]
    assert found.correlations["c"]["one_source"].all.value == pytest.approx(np.mean(one), abs=1e-9)
    others = (s["a"] + s["b"]) / 2
    wanted = spearmanr(abs(s["a"] - s["b"]) / 2 / others, abs(np.log(held["c"] / others))).statistic
    assert found.third["c"]["change"].all.value == pytest.approx(wanted, abs=1e-9)
    tenths = np.array_split(np.argsort(c, kind="stable"), 10)
    quartiles = [np.quantile(abs(logs["unseen"])[part], [0.25, 0.5, 0.75]) for part in tenths]
    np.testing.assert_allclose(found.parts["unseen"], quartiles, rtol=1e-9)


def test_a_large_network_is_sampled(monkeypatch):
    made = world(lambda spread, random: spread * random.normal(size=len(spread)))
    whole = compare(*made)
    monkeypatch.setattr(module, "COMPARED", 12_000)
    some, again = compare(*made), compare(*made)
    assert some.compared == whole.compared == 24_000
    assert some.correlations == again.correlations != whole.correlations
    wanted = whole.correlations["c"]["unseen"].all.value
    assert some.correlations["c"]["unseen"].all.value == pytest.approx(wanted, abs=0.03)


def test_parameters_without_sensitivity():
    s, unseen, again, mixed, held = world(lambda spread, random: spread * random.normal(size=len(spread)))
    for each in (*s.values(), unseen):
        each[:500] = 0  # insensitive: left out
    unseen[500:600] = 0  # dead on the held-out domain alone: the largest change there is
    found = compare(s, unseen, again, mixed, held)
    assert found.compared == 23_500
    json.dumps(found.to_json(), allow_nan=False)
    nothing = {name: np.zeros(24_000) for name in SOURCES}
    with pytest.raises(DataError, match="nothing to compare"):
        compare(nothing, unseen, again, mixed, held)


def test_agreement_is_a_t_value_over_domains():
    from scipy.stats import ttest_1samp

    random = np.random.default_rng(0)
    g = random.normal(size=(4, 24_000))
    found = gradient_agreement([vector(each) for each in g]).flat().numpy()
    np.testing.assert_allclose(found, abs(ttest_1samp(g, 0, axis=0).statistic), rtol=1e-9)
    assert not gradient_agreement([vector(np.zeros(24_000))] * 3).flat().any()


@pytest.mark.parametrize(
    ("there", "sources", "number"), [({"a": 100, "b": 90, "t": 50}, 2, 50), ({"a": 9, "b": 9, "c": 8, "t": 30}, 3, 6)]
)
def test_all_parts_have_the_same_number(there, sources, number):
    assert equal_number(64, there, sources) == number


# With a network.


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 16), nn.Tanh(), nn.Linear(16, 3))


def loaders(names=("a", "b", "c", "t"), batches=6, size=20, seed=0):
    random = torch.Generator().manual_seed(seed)
    return {
        name: [
            ((0.5 + d) * torch.randn(size, 6, generator=random), torch.randint(3, (size,), generator=random))
            for _ in range(batches)
        ]
        for d, name in enumerate(names)
    }


@pytest.fixture
def recorded(monkeypatch):
    """What the core is given."""
    seen = {}
    core = module.correlate_held_out

    def record(profile, **given):
        seen.update(given, profile=profile)
        return core(profile, **given)

    monkeypatch.setattr(module, "correlate_held_out", record)
    return seen


def squares(net, x, y):
    """Mean squared gradient and mean gradient, sample by sample."""
    each = []
    for i in range(len(x)):
        net.zero_grad()
        nn.functional.cross_entropy(net(x[i : i + 1]), y[i : i + 1]).backward()
        each.append(torch.cat([p.grad.reshape(-1) for p in net.parameters()]))
    g = torch.stack(each)
    net.zero_grad(set_to_none=True)
    return g.square().mean(0), g.mean(0)


@pytest.mark.parametrize("estimator", ["persample", "loop"])
def test_sensitivities_are_those_of_disjoint_samples(recorded, estimator):
    """Found among all by brute force: a part is 60 samples of its domain, and no sample is in two parts."""
    net, data = network().double(), {n: [(x.double(), y) for x, y in b] for n, b in loaders().items()}
    before = [p.clone() for p in net.parameters()]
    found = dspreg.compare_held_out(net, data, "t", images=60, batch=16, estimator=estimator)
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    assert (found.images, found.unseen, found.sources) == (60, "t", ("a", "b", "c"))
    s = {
        name: squares(net, *(torch.cat(part) for part in zip(*batches, strict=True))) for name, batches in data.items()
    }
    flat = {k: v.flat() for k, v in recorded.items() if k in ("unseen", "again", "mixed")}
    # two halves make the whole
    torch.testing.assert_close((flat["unseen"] + flat["again"]) / 2, s["t"][0])
    for name in "abc":
        both = (recorded["profile"].s[name].flat() + recorded["held"][name].flat()) / 2
        torch.testing.assert_close(both, s[name][0])
        assert not torch.allclose(recorded["profile"].s[name].flat(), recorded["held"][name].flat())
    assert not torch.allclose(flat["mixed"], sum(v.flat() for v in recorded["held"].values()) / 3)


def test_gradients_are_signed_means_of_the_images_for_c(recorded, monkeypatch):
    net, data = network().double(), {n: [(x.double(), y) for x, y in b] for n, b in loaders().items()}
    given = {}
    real = module.mean_gradient

    def record(meter, f, d, batches):
        given[d] = [*batches]
        return real(meter, f, d, given[d])

    monkeypatch.setattr(module, "mean_gradient", record)
    dspreg.compare_held_out(net, data, "t", images=60, batch=16)
    assert set(given) == {0, 1, 2}
    for d, batches in given.items():
        x, y = (torch.cat(part) for part in zip(*((b.inputs, b.y) for b in batches), strict=True))
        s, g = squares(net, x, y)
        torch.testing.assert_close(recorded["gradients"][d].flat(), g)
        torch.testing.assert_close(recorded["profile"].s["abc"[d]].flat(), s)


def test_the_mixed_part_has_a_share_of_each_source(recorded):
    """Every source yields one sample again and again, so that s of any part of it is s of the sample."""
    net = network().double()
    one = {n: (torch.randn(1, 6).double(), torch.tensor([1])) for n in "abct"}
    data = {n: [(x.repeat(20, 1), y.repeat(20)) for _ in range(3)] for n, (x, y) in one.items()}
    dspreg.compare_held_out(net, data, "t", images=512, batch=8)
    s = {name: squares(net, *pair)[0] for name, pair in one.items()}
    torch.testing.assert_close(recorded["mixed"].flat(), (s["a"] + s["b"] + s["c"]) / 3)
    torch.testing.assert_close(recorded["held"]["b"].flat(), s["b"])
    torch.testing.assert_close(recorded["unseen"].flat(), s["t"])


@pytest.mark.parametrize("of", ["output", "fisher"])
def test_without_labels_there_is_no_agreement(of):
    data = {n: [x for x, _ in b] for n, b in loaders().items()}
    found = dspreg.compare_held_out(network(), data, "t", of=of, null=False)
    assert not {"agreement", "null"} & set(found.correlations)
    assert found.settings["of"] == of


def test_the_same_key_gives_the_same_numbers():
    first, again, other = (dspreg.compare_held_out(network(), loaders(), "t", key=key) for key in (0, 0, 1))
    assert first == again
    assert first.correlations != other.correlations


def test_two_sources_have_no_third():
    found = dspreg.compare_held_out(network(), loaders(("a", "b", "t")), "b")
    assert found.sources == ("a", "t")
    assert found.third == {}


def test_what_is_wrong_is_said():
    with pytest.raises(ConfigError, match="held_out='x'; wanted one of 'a', 'b', 'c', 't'"):
        dspreg.compare_held_out(network(), loaders(), "x")
    with pytest.raises(DataError, match="at least two"):
        dspreg.compare_held_out(network(), loaders(("a", "t")), "t")
    with pytest.raises(DataError, match="wanted at least 3, one for each source"):
        dspreg.compare_held_out(network(), loaders(batches=1, size=4), "t")
    with pytest.raises(ConfigError, match="images=0"):
        dspreg.compare_held_out(network(), loaders(), "t", images=0)


def test_the_figure_has_two_lines_and_all_predictors():
    found = dspreg.compare_held_out(network(), loaders(), "t")
    left, middle, right = found.figure().axes
    assert [line.get_label() for line in left.lines] == ["on t", "on held-out images of the sources"]
    medians = [[row[1] for row in found.parts[f"{name}_less_level"]] for name in ("unseen", "sources")]
    assert [list(line.get_ydata()) for line in left.lines] == medians
    assert [each.get_text() for each in middle.get_yticklabels()] == list(found.to_json()["labels"].values())
    shown = [line for line in right.lines if line.get_label() == "over all parameters"]
    values = [row["excess_less_level"].all.value for row in found.correlations.values()]
    assert list(shown[0].get_xdata()) == values
