"""Images may lie channels last in memory: other strides, the same numbers."""

import pytest
import torch

import dspreg
from helpers import problems
from reference.sensitivity import largest_difference


def laid(name, layout):
    return {
        domain: [(x.contiguous(memory_format=layout), y) for x, y in items]
        for domain, items in problems.domains(name).items()
    }


CASES = [
    ("lite0", "persample", "loss"),
    ("lite0", "persample", "output"),
    ("lite0", "signed", "loss"),
    ("lite0", "minibatch", "loss"),
    ("resnet18", "persample", "fisher"),
]


@pytest.mark.parametrize(("name", "estimator", "of"), CASES)
def test_every_estimator_takes_images_and_parameters_that_lie_channels_last(name, estimator, of):
    plain, other = (
        dspreg.measure(problems.model(name).to(memory_format=how), laid(name, how), estimator=estimator, of=of)
        for how in (torch.contiguous_format, torch.channels_last)
    )
    for domain in plain.s:
        assert largest_difference(other.s[domain], plain.s[domain]) < 1e-10
    assert largest_difference(other.c, plain.c) < 1e-10
