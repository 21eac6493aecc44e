"""The index: one import per algorithm."""

from dspreg.algorithms.agreement import Agreement
from dspreg.algorithms.anchor import Anchor
from dspreg.algorithms.and_mask import ANDMask
from dspreg.algorithms.arm import ARM
from dspreg.algorithms.base import ERM, Algorithm
from dspreg.algorithms.cad import CAD, CondCAD
from dspreg.algorithms.compatibility import Compatibility
from dspreg.algorithms.consensus import Consensus
from dspreg.algorithms.coral import CORAL
from dspreg.algorithms.dann import DANN
from dspreg.algorithms.domain_drop import DomainDrop
from dspreg.algorithms.domainbed import DomainBed as DomainBed
from dspreg.algorithms.dsp_reg import DSPReg
from dspreg.algorithms.ema import EMA
from dspreg.algorithms.erm_plus_plus import ERMPlusPlus
from dspreg.algorithms.ewc import EWC
from dspreg.algorithms.fish import Fish
from dspreg.algorithms.fisher_tune import FisherTune
from dspreg.algorithms.fishr import Fishr
from dspreg.algorithms.gga import GGA
from dspreg.algorithms.ggal import GGAL
from dspreg.algorithms.gmdg import GMDG
from dspreg.algorithms.group_dro import GroupDRO
from dspreg.algorithms.gsam import GSAM
from dspreg.algorithms.iga import IGA
from dspreg.algorithms.irm import IRM
from dspreg.algorithms.jigen import JiGen
from dspreg.algorithms.l2_sp import L2SP
from dspreg.algorithms.lp_ft import LPFT
from dspreg.algorithms.miro import MIRO
from dspreg.algorithms.mix_style import MixStyle
from dspreg.algorithms.mixup import Mixup
from dspreg.algorithms.mldg import MLDG
from dspreg.algorithms.mmd import MMD
from dspreg.algorithms.mtl import MTL
from dspreg.algorithms.rand_conv import RandConv
from dspreg.algorithms.registry import describe, parse
from dspreg.algorithms.rsc import RSC
from dspreg.algorithms.sagm import SAGM
from dspreg.algorithms.sagnet import SagNet
from dspreg.algorithms.sam import SAM
from dspreg.algorithms.sand_mask import SANDMask
from dspreg.algorithms.sd import SD
from dspreg.algorithms.swa import SWA
from dspreg.algorithms.swad import SWAD
from dspreg.algorithms.task import SourceValidation, Task
from dspreg.algorithms.vrex import VREx

__all__ = [
    "ARM",
    "CAD",
    "CORAL",
    "DANN",
    "EMA",
    "ERM",
    "EWC",
    "GGA",
    "GGAL",
    "GMDG",
    "GSAM",
    "IGA",
    "IRM",
    "L2SP",
    "LPFT",
    "MIRO",
    "MLDG",
    "MMD",
    "MTL",
    "RSC",
    "SAGM",
    "SAM",
    "SD",
    "SWA",
    "SWAD",
    "ANDMask",
    "Agreement",
    "Algorithm",
    "Anchor",
    "Compatibility",
    "CondCAD",
    "Consensus",
    "DSPReg",
    "DomainDrop",
    "ERMPlusPlus",
    "Fish",
    "FisherTune",
    "Fishr",
    "GroupDRO",
    "JiGen",
    "MixStyle",
    "Mixup",
    "RandConv",
    "SANDMask",
    "SagNet",
    "SourceValidation",
    "Task",
    "VREx",
    "describe",
    "parse",
]
