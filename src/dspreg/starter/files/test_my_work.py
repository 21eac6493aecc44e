"""What must hold of a method that stacks with others, and of a data set: python -m pytest -q"""

import torch
from dspreg.testing import check_algorithm, check_dataset, ready, toy_batches, toy_task
from dspreg.training import train_step
from my_data import Turned
from my_method import LogitNorm


def test_the_method_keeps_the_laws_that_let_it_stack():
    check_algorithm(LogitNorm)


def test_the_data_set_is_the_same_whenever_it_is_read():
    check_dataset(Turned())


def test_the_method_does_what_it_is_for():
    """The stronger the penalty, the smaller the logits."""

    def size_of_logits(weight):
        algorithm = ready(LogitNorm(weight=weight), toy_task())
        for t in range(30):
            train_step(algorithm, toy_batches(t))
        with torch.no_grad():
            return float(algorithm.predict(toy_batches(0)[0].x).square().sum(1).mean())

    assert size_of_logits(1.0) < size_of_logits(0.0)
