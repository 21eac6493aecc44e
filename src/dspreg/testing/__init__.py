"""Checks for your own work: `check_algorithm` with the small problem it uses, and `check_dataset`."""

from dspreg.testing.datasets import check_dataset
from dspreg.testing.laws import check_algorithm
from dspreg.testing.probes import LawBroken
from dspreg.testing.toy import ready, toy_batch, toy_batches, toy_task

__all__ = ["LawBroken", "check_algorithm", "check_dataset", "ready", "toy_batch", "toy_batches", "toy_task"]
