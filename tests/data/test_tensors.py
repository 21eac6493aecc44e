"""Which samples a step sees: keyed by the experiment and the step, and by nothing else."""

import pytest
import torch

from dspreg import DataError
from dspreg.data.tensors import TensorDomains

X, Y = torch.arange(200.0)[:, None], torch.arange(200) % 3


def domains(*key, **changes):
    return TensorDomains({"a": (X, Y), "b": (X[:50] + 1000, Y[:50])} | changes, *key)


def test_batches_depend_on_key_and_step_alone():
    one, two = domains("k", 0), domains("k", 0)
    two.samples(3, 2)  # measuring moves nothing
    torch.rand(3)
    for t in (0, 7):
        for a, b in zip(one.batches(t), two.batches(t), strict=True):
            assert torch.equal(a.x, b.x)
            assert torch.equal(a.y, b.y)
    assert not torch.equal(one.batches(0)[0].x, one.batches(1)[0].x)
    assert not torch.equal(one.batches(0)[0].x, domains("k", 1).batches(0)[0].x)


def test_another_domain_moves_no_batch_of_this_one():
    """A target that is added, removed or changed must not be seen by training."""
    plain, more = domains("k"), domains("k", c=(X, Y))
    assert torch.equal(plain.batches(5)[0].x, more.batches(5)[0].x)
    assert torch.equal(plain.samples(5, 1)["b"][0].x, more.samples(5, 1)["b"][0].x)


def test_samples_are_drawn_without_replacement_in_batches_of_32():
    given = domains("k").samples(2, 4)
    assert [len(b) for b in given["a"]] == [32, 32, 32, 32]
    assert [len(b) for b in given["b"]] == [32, 18]  # at most the whole domain
    for name, batches in given.items():
        values = torch.cat([b.x for b in batches])
        assert len(values.unique()) == len(values)
        assert all(b.domain == "ab".index(name) for b in batches)
        for b in batches:
            assert torch.equal(b.y, (b.x[:, 0].long() % 1000) % 3)  # labels stay with their images


def test_a_domain_smaller_than_the_batch_still_gives_one():
    batch = domains("k", b=(X[:2], Y[:2])).batches(0, size=32)[1]
    assert len(batch) == 32
    assert set(batch.x[:, 0].tolist()) <= {0.0, 1.0}


@pytest.mark.parametrize("x", [X[:0], X[:3]])
def test_empty_or_uneven_domains_are_refused(x):
    with pytest.raises(DataError, match=f"'b' has {len(x)} images and 0 labels"):
        domains(b=(x, Y[:0]))
