"""The floor of c: what it is when nothing differs, and that c tells apart what null does not."""

import pytest
import torch
from torch import nn

import dspreg
from dspreg.sensitivity.null import deal_samples, regroup_batches
from dspreg.sensitivity.samples import Samples
from helpers import problems


def test_dealing_keeps_sizes_and_is_keyed():
    members = deal_samples([5, 7, 9], "key")
    assert [len(m) for m in members] == [5, 7, 9]
    assert sorted(torch.cat(members).tolist()) == list(range(21))
    assert all(torch.equal(a, b) for a, b in zip(members, deal_samples([5, 7, 9], "key"), strict=True))
    assert not torch.equal(members[0], deal_samples([5, 7, 9], "other")[0])


def test_regrouped_batches_are_the_same_samples_in_the_same_sizes():
    x = torch.arange(13.0)
    domains = [[Samples(x[:4], x[:4]), Samples(x[4:6], x[4:6])], [Samples(x[6:13], x[6:13])]]
    again = regroup_batches(domains, "key")
    assert [[len(b) for b in batches] for batches in again] == [[4, 2], [7]]
    values = torch.cat([b.inputs for batches in again for b in batches])
    assert sorted(values.tolist()) == x.tolist()
    assert all(torch.equal(b.inputs, b.y) for batches in again for b in batches)  # labels stay with their inputs
    assert (
        values.long().tolist() == torch.cat(deal_samples([6, 7], "key")).tolist()
    )  # in no order that domains would show in


@pytest.mark.parametrize("estimator", ["loop", "persample", "signed", "minibatch"])
def test_null_is_c_of_the_dealt_samples(estimator):
    """Dealing the samples by hand and measuring those as domains gives the null, for per-sample estimators exactly."""
    model, domains = problems.model("mlp"), problems.domains("mlp", 3, 8, 3)
    options = {"estimator": estimator} | ({"draws": 512} if estimator == "signed" else {})
    profile = dspreg.measure(model, domains, **options)
    batches = [[Samples(x, y) for x, y in items] for items in domains.values()]
    by_hand = {
        str(i): [(b.inputs, b.y) for b in pseudo] for i, pseudo in enumerate(regroup_batches(batches, "measure", 0))
    }
    expected = dspreg.measure(model, by_hand, **options, null=False).c
    tolerance = 0.2 if estimator == "signed" else 1e-12  # its signs are drawn anew
    for n in expected:
        assert (profile.null[n] - expected[n]).abs().max() < tolerance


@pytest.mark.parametrize(("draws", "floor"), [(1, 0.84), (4, 0.48), (16, 0.25), (64, 0.13)])
def test_signed_has_this_floor_with_three_identical_domains(draws, floor):
    """The same samples three times: only the signs differ. The mean c is that of three χ² means of `draws` draws."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 60), nn.Tanh(), nn.Linear(60, 10)).double()
    x, y = torch.randn(512, 40, dtype=torch.float64), torch.randint(10, (512,))
    domains = {d: [(x, y)] for d in "abc"}
    with pytest.warns(dspreg.Notice, match="one batch"):
        c = dspreg.measure(model, domains, estimator="signed", draws=draws, null=False).c
    assert float(c.flat().mean()) == pytest.approx(floor, abs=0.02)


def test_identical_domains_have_c_near_null_and_different_ones_do_not():
    model = problems.model("mlp")
    torch.manual_seed(1)
    y = torch.randint(3, (3, 8, 32))
    x = torch.randn(3, 8, 32, 6, dtype=torch.float64)
    same = {str(d): list(zip(x[d], y[d], strict=True)) for d in range(3)}
    other = {str(d): list(zip(x[d] * (1 + d), y[d], strict=True)) for d in range(3)}
    alike, different = dspreg.measure(model, same), dspreg.measure(model, other)
    floor = float(alike.null.flat().mean())
    assert float(alike.c.flat().mean()) == pytest.approx(floor, rel=0.2)
    assert float(different.c.flat().mean()) > 2.5 * float(different.null.flat().mean())
    assert float(alike.c_debiased.flat().mean()) < 0.6 * float(alike.c.flat().mean())
    assert alike.reliability < 0.5 < different.reliability


class TwoWeights(nn.Module):
    """f(x) = a·x₀ + b·x₁: a reads the part of the input that domains scale differently, b the part they share."""

    def __init__(self):
        super().__init__()
        self.specific = nn.Parameter(torch.tensor([0.7], dtype=torch.float64))
        self.invariant = nn.Parameter(torch.tensor([0.7], dtype=torch.float64))

    def forward(self, x):
        return self.specific * x[:, :1] + self.invariant * x[:, 1:]


@pytest.mark.parametrize("estimator", ["loop", "persample", "signed"])
@pytest.mark.parametrize("of", ["output", "loss"])
def test_c_finds_the_domain_specific_parameter_and_null_does_not(estimator, of):
    """x₀ has scales 1, 2, 3 in three domains. For `output` s = E x₀² = 1, 4, 9, so c = std(1, 4, 9)/mean = 1/√2."""
    torch.manual_seed(2)
    x = torch.randn(3, 8, 128, 2, dtype=torch.float64)
    domains = {}
    for d in range(3):
        batches = x[d] * torch.tensor([1.0 + d, 1.0])
        domains[f"scale {1 + d}"] = [(b, torch.zeros(len(b), dtype=torch.float64)) for b in batches]

    def loss(out, y):  # the slope of the loss is the same for all samples, so that only x tells domains apart
        return out[:, 0] + y

    options = {"loss": loss} if of == "loss" else {}
    if estimator == "signed":
        options["draws"] = 64
    profile = dspreg.measure(TwoWeights(), domains, of=of, estimator=estimator, **options)
    specific, invariant = profile.c["specific"].item(), profile.c["invariant"].item()
    assert specific == pytest.approx(0.5**0.5, abs=0.06)
    assert invariant < 0.12
    assert profile.null["specific"].item() < 0.25
    assert profile.null["invariant"].item() < 0.12
    assert profile.c_debiased["specific"].item() == pytest.approx(0.70, abs=0.08)


def test_ragged_batches_have_no_null_in_a_second_pass():
    ragged = {d: [torch.randint(20, (3, 5 + i)) for i in range(2)] for d in "ab"}
    model = problems.model("transformer")
    with pytest.warns(dspreg.Notice, match="no null: samples of different shapes"):
        assert dspreg.measure(model, ragged, estimator="signed", of="output").null is None
    assert dspreg.measure(model, ragged, of="output").null is not None
