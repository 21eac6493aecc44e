"""Domain-sensitive parameter regularisation, and the workbench around it.

Names are imported when they are first used, so that what needs no torch, such as reading results, starts at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dspreg.algorithms import ERM as ERM
    from dspreg.algorithms import Algorithm as Algorithm
    from dspreg.algorithms import DSPReg as DSPReg
    from dspreg.algorithms import Task as Task
    from dspreg.algorithms import describe as describe
    from dspreg.algorithms import parse as parse
    from dspreg.batches import Batch as Batch
    from dspreg.batches import Outputs as Outputs
    from dspreg.config.train_config import Execution as Execution
    from dspreg.data import DomainDataset as DomainDataset
    from dspreg.errors import ConfigError as ConfigError
    from dspreg.errors import DataError as DataError
    from dspreg.errors import DspregError as DspregError
    from dspreg.errors import IntegrityError as IntegrityError
    from dspreg.errors import Notice as Notice
    from dspreg.errors import ResourceError as ResourceError
    from dspreg.penalty import Penalty as Penalty
    from dspreg.protocol.leave_one_out import leave_one_out as leave_one_out
    from dspreg.runs.run import Run as Run
    from dspreg.sensitivity import Profile as Profile
    from dspreg.sensitivity import RunningVariance as RunningVariance
    from dspreg.sensitivity import coefficient_of_variation as coefficient_of_variation
    from dspreg.sensitivity import measure as measure
    from dspreg.training import load as load
    from dspreg.training import train as train
    from dspreg.training import train_step as train_step
    from dspreg.vectors import ParamVector as ParamVector

__version__ = "0.1.0"

_HOMES = {
    # look at a network
    "measure": "sensitivity",
    "Profile": "sensitivity",
    "RunningVariance": "sensitivity",
    "coefficient_of_variation": "sensitivity",
    # add it to a loop of your own
    "Penalty": "penalty",
    # train
    "DSPReg": "algorithms",
    "ERM": "algorithms",
    "parse": "algorithms",
    "describe": "algorithms",
    "train": "training",
    "load": "training",
    "Execution": "config.train_config",
    "Run": "runs.run",
    "leave_one_out": "protocol.leave_one_out",
    "train_step": "training",
    # write your own
    "Algorithm": "algorithms",
    "Task": "algorithms",
    "Batch": "batches",
    "Outputs": "batches",
    "ParamVector": "vectors",
    "DomainDataset": "data",
    # what can go wrong
    "DspregError": "errors",
    "ConfigError": "errors",
    "DataError": "errors",
    "IntegrityError": "errors",
    "ResourceError": "errors",
    "Notice": "errors",
}

__all__ = ["__version__", *_HOMES]  # pyright: ignore


_MODULES = ("algorithms", "data", "networks", "penalty", "priors", "sensitivity", "testing", "training", "vectors")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"dspreg.{name}")
    if name in _HOMES:
        return getattr(import_module(f"dspreg.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'dspreg' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
