"""A network with batch norm, whose statistics tell how often a batch was taken in."""

import torch

from dspreg.networks import TinyMLP
from dspreg.testing import toy_batches, toy_task
from dspreg.training import train_step


class Normalised(TinyMLP):
    def __init__(self):
        super().__init__(5)
        self.layers.append(torch.nn.BatchNorm1d(8))


def statistics_after_a_step(algorithm):
    """Running mean, running variance and count."""
    task = toy_task(3)
    task = type(task)(task.num_classes, task.domains, 2, Normalised, task.key, task.samples)
    stack = algorithm.setup(task, lambda p: torch.optim.SGD(p, lr=0.1)).double()
    train_step(stack, toy_batches(0, 3))
    return dict(stack.net.named_buffers())


def assert_taken_in_once(algorithm, erm):
    ours, expected = statistics_after_a_step(algorithm), statistics_after_a_step(erm)
    assert ours.keys() == expected.keys()
    for name, buffer in ours.items():
        assert torch.equal(buffer, expected[name]), name
