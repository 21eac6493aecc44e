"""The check for a user's own data set finds each way to break it."""

import random

import pytest
import torch

from dspreg.data import Digits, DomainDataset, Folder
from dspreg.testing import LawBroken, check_dataset
from helpers.images import picture, small_tree


class Fine(DomainDataset):
    name, domains, classes = "fine", ("a", "b"), ("x", "y")

    def domain(self, name):
        self.check_domain(name)
        return [(picture(i), i % 2) for i in range(5)]


class Tensors(Fine):
    channels = 5

    def domain(self, name):
        self.check_domain(name)
        return [(torch.full((5, 6, 7), i / 8), i % 2) for i in range(5)]


def test_ours_pass(tmp_path):
    check_dataset(Fine())
    check_dataset(Digits())
    check_dataset(Tensors())
    check_dataset(Folder(small_tree(tmp_path)))


def pairs(change):
    def domain(self, name):
        self.check_domain(name)
        return change([(picture(i), i % 2) for i in range(5)])

    return domain


class Targets(list):
    targets = (1, 1, 1, 1, 1)


def drawn(items):
    return [(picture(random.randrange(10**6)), y) for _, y in items]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": ""}, "has no name"),
        ({"name": 3}, "name must be a text"),
        ({"classes": ()}, "has no classes: set it in the class"),
        ({"domains": ["a", "b"]}, "domains must be a tuple of texts"),
        ({"domains": ("a", "b", "a")}, "domains names a more than once"),
        ({"domains": ("b", "a")}, "domains must be sorted"),
        ({"classes": ("x", "x")}, "classes names x more than once"),
        ({"num_classes": 3}, "num_classes is 3, but classes has 2 names"),
        ({"steps": 0}, "steps must be a whole number of at least 1"),
        ({"image_size": 22.5}, "image_size must be a whole number"),
        ({"domain": pairs(lambda items: [])}, r"domain\('a'\) has no images"),
        ({"domain": pairs(iter)}, "must be a sequence, but a list_iterator has no __len__"),
        ({"domain": pairs(lambda items: [(x, 2) for x, _ in items])}, r"\[0\] has the label 2, outside 0 … 1"),
        (
            {"domain": pairs(lambda items: [(torch.ones(3), y) for _, y in items])},
            r"is a Tensor of float32 \(3,\); wanted a PIL image",
        ),
        ({"domain": pairs(lambda items: [("x.jpg", y) for _, y in items])}, "wanted a PIL image, or a tensor"),
        ({"domain": pairs(lambda items: [(2 * torch.ones(3, 4, 4), y) for _, y in items])}, "values go from 2 to 2"),
        ({"domain": pairs(lambda items: [(torch.ones(4, 4, 4), y) for _, y in items])}, "has 4 channels where 3 are"),
        ({"channels": 0}, "channels must be a whole number"),
        ({"domain": pairs(lambda items: [(x, y, 0) for x, y in items])}, r"must be \(image, label\)"),
        ({"domain": pairs(Targets)}, "has the label 0, but its labels or targets say 1"),
        ({"domain": pairs(drawn)}, "has other pixels when read again"),
        ({"domain": lambda self, name: [(picture(0), 0)]}, "domain.'no such domain'. gives something"),
    ],
)
def test_each_fault_is_told(change, said):
    with pytest.raises(LawBroken, match=said):
        check_dataset(type("Mine", (Fine,), change)())


def test_another_length_each_time_is_told():
    sizes = iter((3, 4))
    changed = type("Mine", (Fine,), {"domain": pairs(lambda items: items[: next(sizes)])})
    with pytest.raises(LawBroken, match="has 3 images when first read and 4 afterwards"):
        check_dataset(changed())


def test_another_order_each_time_is_told():
    orders = iter(([0, 1, 2, 3, 4], [1, 0, 2, 3, 4]))
    changed = type("Mine", (Fine,), {"domain": pairs(lambda items: [items[i] for i in next(orders)])})
    with pytest.raises(LawBroken, match="in another order when read again: label 0 was 0 and is 1"):
        check_dataset(changed())


def test_what_can_t_be_sent_to_a_worker_is_told():
    class Local(list):
        labels = property(lambda self: [y for _, y in self])

        def __reduce__(self):
            raise TypeError("not me")

    with pytest.raises(LawBroken, match="can't be sent to another process: TypeError: not me"):
        check_dataset(type("Mine", (Fine,), {"domain": pairs(Local)})())


def test_a_class_is_no_data_set():
    with pytest.raises(TypeError, match="give an object, not its class"):
        check_dataset(Fine)
