"""Types of the names in `__init__.py`, for editors and type checkers; a test holds the two equal."""

# fmt: off
# ruff: noqa: F401, I001
from dspreg import algorithms as algorithms
from dspreg import config as config
from dspreg import data as data
from dspreg import distributions as distributions
from dspreg import launch as launch
from dspreg import networks as networks
from dspreg import penalty as penalty
from dspreg import runs as runs
from dspreg import sensitivity as sensitivity
from dspreg import testing as testing
from dspreg import training as training
from dspreg import vectors as vectors
from dspreg.training.loop import train as train
from dspreg.config.train_config import TrainConfig as TrainConfig
from dspreg.config.train_config import Execution as Execution
from dspreg.training.callbacks import TrainingCallback as TrainingCallback
from dspreg.training.callbacks import ProgressBar as ProgressBar
from dspreg.launch.launcher import sweep as sweep
from dspreg.protocol.leave_one_out import leave_one_out as leave_one_out
from dspreg.runs.run import Run as Run
from dspreg.runs.status import RunStatus as RunStatus
from dspreg.reporting.report import report as report
from dspreg.reporting.report import Report as Report
from dspreg.reporting.load import load_runs as load_runs
from dspreg.protocol.selection import RunResult as RunResult
from dspreg.runs.archive import open_store as open_store
from dspreg.reporting.tables import select_rows as select_rows
from dspreg.reporting.tables import SelectedRow as SelectedRow
from dspreg.reporting.contrasts import contrast as contrast
from dspreg.reporting.contrasts import Contrast as Contrast
from dspreg.inference.load import load as load
from dspreg.inference.export import export as export
from dspreg.data.registry import open_dataset as open_dataset
from dspreg.sensitivity.measure import measure as measure
from dspreg.config.measure_config import MeasureConfig as MeasureConfig
from dspreg.sensitivity.profile import Profile as Profile
from dspreg.sensitivity.held_out import compare_held_out as compare_held_out
from dspreg.inference.held_out_run import compare_held_out_run as compare_held_out_run
from dspreg.sensitivity.held_out import HeldOutComparison as HeldOutComparison
from dspreg.sensitivity.variance import RunningVariance as RunningVariance
from dspreg.sensitivity.statistics import coefficient_of_variation as coefficient_of_variation
from dspreg.penalty.penalty import Penalty as Penalty
from dspreg.algorithms.base import Algorithm as Algorithm
from dspreg.algorithms.base import ERM as ERM
from dspreg.algorithms.dsp_reg import DSPReg as DSPReg
from dspreg.algorithms.compatibility import Compatibility as Compatibility
from dspreg.algorithms.task import SourceValidation as SourceValidation
from dspreg.algorithms.task import Task as Task
from dspreg.algorithms.registry import parse as parse
from dspreg.algorithms.registry import describe as describe
from dspreg.training.step import train_step as train_step
from dspreg.batches import Batch as Batch
from dspreg.batches import Outputs as Outputs
from dspreg.vectors import ParamVector as ParamVector
from dspreg.vectors import displaced as displaced
from dspreg.vectors import standing_at as standing_at
from dspreg.vectors import theta as theta
from dspreg.vectors import gradient as gradient
from dspreg.vectors import trainable as trainable
from dspreg.data.base import DomainDataset as DomainDataset
from dspreg.errors import DspregError as DspregError
from dspreg.errors import ConfigError as ConfigError
from dspreg.errors import DataError as DataError
from dspreg.errors import IntegrityError as IntegrityError
from dspreg.errors import ResourceError as ResourceError
from dspreg.errors import Notice as Notice
from dspreg.inference.evaluate_run import evaluate_run as evaluate
from dspreg.inference.predict import predict_images as predict
from dspreg.inference.profile_run import profile_run as measure_run
from dspreg.data.verify import verify as verify_dataset

__version__: str
__all__: list[str]
