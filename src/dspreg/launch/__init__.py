"""Sweeps: the queue of runs, and the launchers that execute it."""

from dspreg.launch.launcher import LAUNCHERS, Launcher, sweep

__all__ = ["LAUNCHERS", "Launcher", "sweep"]
