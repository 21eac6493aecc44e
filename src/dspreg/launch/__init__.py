"""Sweeps: the queue of their runs, and the launchers that have them trained."""

from dspreg.launch.launcher import LAUNCHERS, Launcher, sweep

__all__ = ["LAUNCHERS", "Launcher", "sweep"]
