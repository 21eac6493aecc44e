"""The index: one import per algorithm."""

from dspreg.algorithms.agreement import Agreement
from dspreg.algorithms.anchor import Anchor
from dspreg.algorithms.arm import ARM
from dspreg.algorithms.base import ERM, Algorithm
from dspreg.algorithms.compatibility import Compatibility
from dspreg.algorithms.consensus import Consensus
from dspreg.algorithms.coral import CORAL
from dspreg.algorithms.dann import DANN
from dspreg.algorithms.domainbed import DomainBed as DomainBed
from dspreg.algorithms.dsp_reg import DSPReg
from dspreg.algorithms.ema import EMA
from dspreg.algorithms.fish import Fish
from dspreg.algorithms.fishr import Fishr
from dspreg.algorithms.gga import GGA
from dspreg.algorithms.ggal import GGAL
from dspreg.algorithms.gmdg import GMDG
from dspreg.algorithms.group_dro import GroupDRO
from dspreg.algorithms.gsam import GSAM
from dspreg.algorithms.irm import IRM
from dspreg.algorithms.miro import MIRO
from dspreg.algorithms.mix_style import MixStyle
from dspreg.algorithms.mixup import Mixup
from dspreg.algorithms.mldg import MLDG
from dspreg.algorithms.mmd import MMD
from dspreg.algorithms.mtl import MTL
from dspreg.algorithms.registry import describe, parse
from dspreg.algorithms.rsc import RSC
from dspreg.algorithms.sagm import SAGM
from dspreg.algorithms.sagnet import SagNet
from dspreg.algorithms.sam import SAM
from dspreg.algorithms.swa import SWA
from dspreg.algorithms.task import SourceValidation, Task
from dspreg.algorithms.vrex import VREx

__all__ = [
    "ARM",
    "CORAL",
    "DANN",
    "EMA",
    "ERM",
    "GGA",
    "GGAL",
    "GMDG",
    "GSAM",
    "IRM",
    "MIRO",
    "MLDG",
    "MMD",
    "MTL",
    "RSC",
    "SAGM",
    "SAM",
    "SWA",
    "Agreement",
    "Algorithm",
    "Anchor",
    "Compatibility",
    "Consensus",
    "DSPReg",
    "Fish",
    "Fishr",
    "GroupDRO",
    "MixStyle",
    "Mixup",
    "SagNet",
    "SourceValidation",
    "Task",
    "VREx",
    "describe",
    "parse",
]
