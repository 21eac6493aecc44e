"""Training: one step, the loop around it, and what it leaves."""

from dspreg.training.loop import train
from dspreg.training.step import train_step

__all__ = ["train", "train_step"]
