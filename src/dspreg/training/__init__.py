"""Training: one step, and later the loop around it."""

from dspreg.training.step import train_step

__all__ = ["train_step"]
