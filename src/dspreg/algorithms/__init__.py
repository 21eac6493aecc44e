"""The index: one import per algorithm."""

from dspreg.algorithms.base import ERM, Algorithm
from dspreg.algorithms.coral import CORAL
from dspreg.algorithms.dsp_reg import DSPReg
from dspreg.algorithms.fish import Fish
from dspreg.algorithms.group_dro import GroupDRO
from dspreg.algorithms.mixup import Mixup
from dspreg.algorithms.sam import SAM
from dspreg.algorithms.spec import describe, parse
from dspreg.algorithms.task import Task

__all__ = ["CORAL", "ERM", "SAM", "Algorithm", "DSPReg", "Fish", "GroupDRO", "Mixup", "Task", "describe", "parse"]
