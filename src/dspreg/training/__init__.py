"""Training: one step, the loop around it, and what it leaves."""

from dspreg.inference.load import load
from dspreg.training.loop import train
from dspreg.training.step import train_step

__all__ = ["load", "train", "train_step"]
