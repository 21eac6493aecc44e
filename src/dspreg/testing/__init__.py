"""Checks for your own algorithms: `check_algorithm`, and the small problem it uses."""

from dspreg.testing.laws import LawBroken, check_algorithm
from dspreg.testing.toy import ready, toy_batch, toy_batches, toy_task

__all__ = ["LawBroken", "check_algorithm", "ready", "toy_batch", "toy_batches", "toy_task"]
