"""Outputs of several domains in one tensor, against loops over samples."""

import math
from itertools import pairwise

import pytest
import torch

from dspreg.batches import Batch, Outputs, join_labels, mean_over_pairs, soft_labels

SIZES = (4, 1, 7)
CLASSES = 3


def outputs(soft=False):
    random = torch.Generator().manual_seed(0)
    batches = []
    for domain, size in enumerate(SIZES):
        y = torch.randint(CLASSES, (size,), generator=random)
        if soft:
            y = torch.rand(size, CLASSES, generator=random, dtype=torch.float64)
            y = y / y.sum(1, keepdim=True)
        batches.append(Batch(torch.zeros(size, 2), y, domain + 5))
    logits = torch.randn(sum(SIZES), CLASSES, generator=random, dtype=torch.float64)
    return Outputs.of(batches, features=logits * 2, logits=logits)


def cross_entropy(logits, label):
    """−Σ_c y_c log softmax_c, by numbers alone."""
    total = sum(math.exp(z) for z in logits)
    return -sum(y * math.log(math.exp(z) / total) for y, z in zip(label, logits, strict=True))


@pytest.mark.parametrize("soft", [False, True])
def test_risks_are_the_mean_cross_entropy_of_each_domain(soft):
    out = outputs(soft)
    starts = [0, 4, 5, 12]
    for risk, (start, end) in zip(out.risks().tolist(), pairwise(starts), strict=True):
        losses = []
        for i in range(start, end):
            label = out.labels[i].tolist() if soft else [float(c == out.labels[i]) for c in range(CLASSES)]
            losses.append(cross_entropy(out.logits[i].tolist(), label))
        assert risk == pytest.approx(sum(losses) / len(losses), rel=1e-13)


def test_every_sample_counts_the_same():
    out = outputs()
    assert out.weights.tolist() == [4 / 12, 1 / 12, 7 / 12]
    assert out.weights.dtype == torch.float64
    losses = [cross_entropy(out.logits[i].tolist(), [float(c == out.labels[i]) for c in range(3)]) for i in range(12)]
    assert float(out.weights @ out.risks()) == pytest.approx(sum(losses) / 12, rel=1e-13)


def test_domains_are_views_in_their_order():
    out = outputs()
    assert out.sizes == SIZES
    assert out.domains == (5, 6, 7)
    parts = out.by_domain(out.features)
    assert torch.equal(parts[1], out.features[4:5])
    assert [len(part) for part in parts] == list(SIZES)
    parts[2].zero_()
    assert not out.features[5:].any()
    assert out.features[:5].all()


def test_replace_changes_a_copy():
    out = outputs()
    other = out.replace(weights=torch.ones(3))
    assert other.weights.tolist() == [1, 1, 1]
    assert out.weights.tolist() != [1, 1, 1]
    assert other.logits is out.logits


def test_hard_and_soft_labels_do_not_mix():
    hard, soft = torch.tensor([0, 1]), torch.eye(3)
    assert join_labels([hard, hard]).tolist() == [0, 1, 0, 1]
    assert join_labels([soft, soft]).shape == (6, 3)
    with pytest.raises(ValueError, match=r"hard and soft labels.*give every domain \(B,\) labels or every domain"):
        join_labels([hard, soft])


def test_soft_labels():
    softened = soft_labels(torch.tensor([2, 0]), 3, torch.float64)
    assert softened.tolist() == [[0, 0, 1], [1, 0, 0]]
    assert softened.dtype == torch.float64
    mixed = torch.tensor([[0.25, 0.75]])
    assert torch.equal(soft_labels(mixed, 2, torch.float32), mixed)


def test_mean_over_pairs():
    parts = [torch.tensor(float(x)) for x in (1, 4, 9)]
    assert mean_over_pairs(lambda a, b: (a - b).abs(), parts).item() == pytest.approx((3 + 8 + 5) / 3)
    assert mean_over_pairs(lambda a, b: (a - b).abs(), parts[:2]).item() == 3


def test_a_single_part_has_nothing_to_compare():
    alone = mean_over_pairs(lambda a, b: a / 0, [torch.ones(2, 3, dtype=torch.float64)])
    assert alone.item() == 0
    assert alone.shape == ()
    assert alone.dtype == torch.float64
