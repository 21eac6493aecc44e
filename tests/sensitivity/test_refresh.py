"""c of a refresh against single samples in plain loops, and which batches share a pass through the network."""

import pytest
import torch
from torch import nn

from dspreg.errors import DataError
from dspreg.sensitivity import refresh
from dspreg.sensitivity.evaluation_mode import evaluation_mode
from dspreg.sensitivity.meter import Meter
from dspreg.sensitivity.samples import Samples
from helpers import problems
from reference.sensitivity import mean_squares


def ragged(name, count):
    """Domains with batches of unequal size."""
    items = problems.domains(name, 3, 6, count)
    return {d: [(x[: 6 - k], y[: 6 - k]) for x, y in batches] for k, (d, batches) in enumerate(items.items())}


def refreshed(model, domains, f=None, eps=0.0, **options):
    samples = {d: [Samples(x, y) for x, y in batches] for d, batches in domains.items()}
    with evaluation_mode(model):
        return refresh.measure_c(Meter(model, **options), f or (lambda *_: model), samples, eps)


def by_loops(model, domains, eps=0.0):
    each = [mean_squares(model, batches) for batches in domains.values()]
    found = {}
    for name in each[0]:
        s = torch.stack([one[name] for one in each])
        found[name] = torch.where(s.mean(0) > 0, s.std(0, correction=0) / (s.mean(0) + eps), 0.0)
    return found


@pytest.fixture
def passes(monkeypatch):
    """The numbers of samples of every pass that adds to sums."""
    seen = []
    add = Meter.add
    counted = lambda self, f, samples, *rest, **more: seen.append(len(samples)) or add(self, f, samples, *rest, **more)  # noqa: E731
    monkeypatch.setattr(Meter, "add", counted)
    return seen


@pytest.mark.parametrize("count", [2, 3, 4])  # up to three domains side by side, more one after the other
@pytest.mark.parametrize("together", [0, 11, 48])
@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_c_is_that_of_single_samples(monkeypatch, name, together, count):
    monkeypatch.setattr(refresh, "PASS_SIZE", together)
    model, domains = problems.model(name), ragged(name, count)
    for eps in (0.0, 1e-3):
        c, expected = refreshed(model, domains, eps=eps), by_loops(problems.model(name), domains, eps)
        for key, values in expected.items():
            assert c[key].is_contiguous()
            assert torch.allclose(c[key], values, rtol=1e-8, atol=1e-9), key


@pytest.mark.parametrize("options", [{}, {"of": "fisher"}, {"estimator": "signed", "draws": 2}], ids=str)
def test_c_does_not_depend_on_what_shares_a_pass(monkeypatch, options):
    found = []
    for together in (0, 48):
        monkeypatch.setattr(refresh, "PASS_SIZE", together)
        found.append(refreshed(problems.model("cnn"), ragged("cnn", 3), **options).flat())
    assert torch.allclose(*found, rtol=1e-9, atol=1e-10)


def test_c_holds_no_more_than_itself():
    """It is no view of the sums."""
    c = refreshed(problems.model("cnn"), ragged("cnn", 3))
    assert all(t.untyped_storage().nbytes() == t.numel() * t.element_size() for t in c.values())


def test_small_batches_share_a_pass(passes):
    domains = problems.domains("mlp", 1, 16, 3)
    refreshed(problems.model("mlp"), domains)
    assert passes == [48]


def test_large_ones_do_not(passes):
    refreshed(problems.model("mlp"), problems.domains("mlp", 2, 32, 2))
    assert passes == [32] * 4


def test_signs_belong_to_one_batch(passes):
    refreshed(problems.model("mlp"), problems.domains("mlp", 2, 4, 3), estimator="signed")
    assert passes == [4] * 6


def test_many_domains_come_one_after_the_other(passes):
    refreshed(problems.model("mlp"), problems.domains("mlp", 2, 4, 4))
    assert passes == [8] * 4


def test_domains_with_functions_of_their_own_do_not_share_a_pass(passes):
    model, domains = problems.model("mlp"), problems.domains("mlp", 1, 4, 3)
    functions = [lambda x, factor=factor: model(x) * factor for factor in (1.0, 2.0, 3.0)]
    c = refreshed(model, domains, lambda _, d: functions[d])
    assert passes == [4, 4, 4]
    assert not torch.allclose(c.flat(), refreshed(model, domains).flat(), rtol=1e-3)


def test_samples_of_different_sizes_do_not_share_a_pass(passes):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)).double()
    sizes = {"a": (8, 8), "b": (8, 9), "c": (8, 9)}
    domains = {d: [(torch.randn(5, 3, *s, dtype=torch.float64), torch.randint(3, (5,)))] for d, s in sizes.items()}
    c = refreshed(net, domains)
    assert passes == [5, 10]
    for key, values in by_loops(net, domains).items():
        assert torch.allclose(c[key], values, rtol=1e-8, atol=1e-9), key


@pytest.mark.parametrize("count", [3, 4])
def test_gradients_that_are_not_finite_are_told(count):
    model = problems.model("mlp")
    broken = lambda out, y: out.gather(1, y[:, None])[:, 0] * float("inf")  # noqa: E731
    with pytest.raises(DataError, match="NaN or infinite"):
        refreshed(model, problems.domains("mlp", 1, 4, count), loss=broken)


def test_a_domain_without_samples_is_refused():
    domains = problems.domains("mlp", 1, 4, 3)
    with pytest.raises(DataError, match="no samples of 'empty'"):
        refreshed(problems.model("mlp"), domains | {"empty": []})
    with pytest.raises(DataError, match="no samples of 'empty'"):
        refreshed(problems.model("mlp"), {"one": next(iter(domains.values())), "empty": []})
