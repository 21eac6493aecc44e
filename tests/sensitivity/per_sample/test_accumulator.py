"""Sums of squares against the sum written out, sample by sample."""

import pytest
import torch

from dspreg.sensitivity.per_sample import accumulator as module
from dspreg.sensitivity.per_sample.accumulator import Accumulator, index_pairs

WEIGHTS = torch.tensor([[1.0, 1, 1, 1, 1], [0, 2, 0, 0.5, 0], [0, 0, 0, 0, 0]], dtype=torch.float64)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def numbers(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def written_out(gradients):
    return torch.stack([sum(w * g**2 for w, g in zip(row.tolist(), gradients, strict=True)) for row in WEIGHTS])


def three(shape, **options):
    sums = Accumulator({"p": numbers(*shape)}, 3, **options)
    sums.set_weights(WEIGHTS)
    return sums


@pytest.mark.parametrize("positions", [1, 2, 4, 5, 20])  # up to 4 pairwise
@pytest.mark.parametrize("cached", [1, 40, 10**6])  # one sample at a time, two, and all
def test_products_of_positions(monkeypatch, positions, cached):
    monkeypatch.setattr(module, "CPU_CHUNK", cached)
    g, u = numbers(5, 4, positions), numbers(5, 5, positions)
    sums = three((4, 5))
    for _ in range(2):
        sums.add_products("p", g, u)
    expected = 2 * written_out([sum(torch.outer(a, b) for a, b in zip(i.T, j.T, strict=True)) for i, j in zip(g, u)])  # noqa: B905
    assert torch.allclose(sums.totals["p"], expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("looped", [1, 10**6])  # one sample at a time, and all
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_samples_with_the_same_weights_in_several_sums(monkeypatch, looped, scale):
    """As for a domain and its pseudo-domains: two kinds of samples in two sums each, two of them in no sum."""
    monkeypatch.setattr(module, "LOOPED", looped)
    weights = torch.tensor([[1.0, 1, 0, 1, 1, 1, 0], [3, 0, 0, 0, 3, 3, 0], [0, 0.5, 0, 0.5, 0, 0, 0]]).double()
    g, u = numbers(7, 4, 6), numbers(7, 5, 6)
    sums = Accumulator({"p": numbers(4, 5)}, 3, {"p": scale})
    sums.set_weights(weights)
    for _ in range(2):
        sums.add_products("p", g, u)
    each = [sum(torch.outer(a, b) for a, b in zip(i.T, j.T, strict=True)) for i, j in zip(g, u, strict=True)]
    expected = torch.stack(
        [sum(2 * w * (scale * e) ** 2 for w, e in zip(row.tolist(), each, strict=True)) for row in weights]
    )
    assert torch.allclose(sums.totals["p"], expected, rtol=1e-12, atol=1e-14)


def test_a_gradient_at_a_time_in_one_buffer_and_any_layout():
    each, buffer, asked = numbers(5, 3, 2), torch.empty(3, 2, dtype=torch.float64).T, []
    sums = Accumulator({"p": numbers(2, 3)}, 2)
    sums.permuted_view("p", (1, 0))  # sums are in the order of the buffer
    weights = torch.tensor([[1.0, 1, 0, 1, 1], [2, 2, 0, 0, 2]]).double()
    sums.set_weights(weights)

    def gradient_of(i):
        asked.append(i)
        return buffer.copy_(each[i].T)

    sums.add_each("p", gradient_of)
    expected = torch.stack([sum(w * e.T**2 for w, e in zip(row.tolist(), each, strict=True)) for row in weights])
    assert torch.allclose(sums.totals["p"], expected, rtol=1e-12)
    assert sorted(asked) == [0, 1, 3, 4]  # a sample without weight costs nothing


def test_gradients_from_some_sample_on():
    each = numbers(5, 2, 3)
    sums = three((2, 3))
    sums.add_gradients("p", each[:2].clone(), 0)
    sums.add_gradients("p", each[2:].mT.clone().mT, 2)  # not contiguous
    assert torch.allclose(sums.totals["p"], written_out(each), rtol=1e-12)


def test_one_gradient_is_not_overwritten():
    each = numbers(5, 2, 3)
    kept = each.clone()
    sums = three((2, 3))
    for i, g in enumerate(each):
        sums.add_sample("p", g, i)
    assert torch.equal(each, kept)
    assert torch.allclose(sums.totals["p"], written_out(each), rtol=1e-12)


def test_rows_of_a_table():
    g, which, places = numbers(4, 3), torch.tensor([0, 1, 1, 3]), torch.tensor([2, 2, 0, 1])
    full = torch.zeros(5, 6, 3, dtype=torch.float64)
    full[which, places] = g
    sums = three((6, 3))
    sums.add_sparse("p", g.clone(), which, places)
    assert torch.allclose(sums.totals["p"], written_out(full), rtol=1e-12)


def test_a_row_starts_again_and_the_others_stay():
    sums = three((2,))
    sums.add_gradients("p", torch.ones(5, 2, dtype=torch.float64))
    assert sums.mean(0, 5)["p"].tolist() == [1, 1]
    sums.clear(0)
    assert sums.mean(0, 5)["p"].tolist() == [0, 0]
    assert sums.mean(1, 5)["p"].tolist() == [0.5, 0.5]


def test_all_pairs():
    a, b = index_pairs(3)
    assert list(zip(a, b, strict=True)) == [(0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2)]


@pytest.mark.parametrize("size", [1e-25, 1e25])
def test_zeros_say_nothing_about_the_scale(size):
    sums = Accumulator({"p": torch.zeros(2)}, 1)
    sums.set_weights(torch.ones(1, 2))
    for i, g in enumerate((torch.zeros(2), torch.full((2,), size))):
        sums.choose_scale("p", g[None])
        sums.add_sample("p", g, i)
    s = sums.mean(0, 1)["p"].double() / sums.scales["p"] ** 2
    assert torch.allclose(s, torch.full((2,), size, dtype=torch.float32).double() ** 2, rtol=1e-5, atol=0)


def test_a_square_of_what_cancels_is_not_negative():
    """(g₁u₁ + g₂u₂)² with g₁u₁ = −g₂u₂ is 0; multiplied out in float32 it is whatever rounding leaves."""
    sums = Accumulator({"p": torch.zeros(64, 64)}, 1)
    sums.set_weights(torch.ones(1, 40))
    g, u = torch.randn(40, 64, 1).expand(-1, -1, 2), torch.randn(40, 64, 1) * torch.tensor([1.0, -1.0])
    sums.add_products("p", g, u)
    assert sums.totals["p"].amin() >= 0
    assert sums.totals["p"].amax() < 1e-3
