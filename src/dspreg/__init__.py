"""Train image classifiers that generalise to unseen domains, and measure which parameters are domain-sensitive.

Names are imported when they are first used, so that what needs no torch, such as reading results, starts at once. Each
has its home here and its type in `__init__.pyi`; docs/api.md lists them.
"""

import warnings
from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    # train, compare, use
    "train": "training.loop",
    "TrainConfig": "config.train_config",
    "Execution": "config.train_config",
    "Callback": "training.callbacks",
    "ProgressBar": "training.callbacks",
    "sweep": "launch.launcher",
    "leave_one_out": "protocol.leave_one_out",
    "status": "runs.store_status:store_status",
    "StoreStatus": "runs.status",
    "Run": "runs.run",
    "RunStatus": "runs.status",
    "estimate": "sites.estimate",
    "Estimate": "sites.answer",
    "forecast_new_site": "forecast.sites",
    "SiteAccuracy": "forecast.sites",
    "Forecast": "forecast.sites",
    "report": "reporting.report",
    "Report": "reporting.report",
    "load": "inference.load",
    "LoadedModel": "inference.load",
    "calibrate": "inference.calibrate:calibrate_run",
    "evaluate": "inference.evaluate_run:evaluate_run",
    "predict": "inference.predict:predict_images",
    "export": "inference.export",
    "average_runs": "inference.soup",
    "interpolate_to_start": "inference.soup",
    "open_dataset": "data.registry",
    "verify_dataset": "data.verify:verify",
    # read results
    "load_runs": "reporting.load",
    "RunResult": "protocol.selection",
    "open_store": "runs.archive",
    "select_rows": "reporting.tables",
    "SelectedRow": "reporting.tables",
    "contrast": "reporting.contrasts",
    "Contrast": "reporting.contrasts",
    # look at a network
    "measure": "sensitivity.measure",
    "measure_run": "inference.profile_run:profile_run",
    "MeasureConfig": "config.measure_config",
    "Profile": "sensitivity.profile",
    "compare_held_out": "sensitivity.held_out",
    "compare_held_out_run": "inference.held_out_run",
    "HeldOutComparison": "sensitivity.held_out",
    "RunningVariance": "sensitivity.variance",
    "coefficient_of_variation": "sensitivity.statistics",
    # add it to a loop of your own
    "Penalty": "penalty.penalty",
    # write a method or a data set
    "Algorithm": "algorithms.base",
    "ERM": "algorithms.base",
    "DSPReg": "algorithms.dsp_reg",
    "Compatibility": "algorithms.compatibility",
    "SourceValidation": "algorithms.task",
    "Task": "algorithms.task",
    "parse": "algorithms.registry",
    "describe": "algorithms.registry",
    "train_step": "training.step",
    "Batch": "batches",
    "Outputs": "batches",
    "ParamVector": "vectors",
    "displaced": "vectors",
    "standing_at": "vectors",
    "theta": "vectors",
    "gradient": "vectors",
    "trainable": "vectors",
    "DomainDataset": "data.base",
    "join_domains": "data.joined",
    # what can go wrong
    "DspregError": "errors",
    "ConfigError": "errors",
    "DataError": "errors",
    "IntegrityError": "errors",
    "ResourceError": "errors",
    "Notice": "errors",
}

__all__ = ["__version__", *_HOMES]  # pyright: ignore

_MODULES = (
    "algorithms", "config", "data", "distributions", "integrations", "launch", "networks", "penalty", "runs",
    "sensitivity", "testing", "training", "vectors",
)  # fmt: skip
_RENAMED = {"priors": "distributions", "TrainingCallback": "Callback"}  # what users may have typed


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        from dspreg.errors import Notice

        warnings.warn(f"dspreg.{name} is now dspreg.{_RENAMED[name]}", Notice, stacklevel=2)
        name = _RENAMED[name]
    if name in _HOMES:
        module, _, attribute = _HOMES[name].partition(":")
        return getattr(import_module(f"dspreg.{module}"), attribute or name)
    if name in _MODULES:
        return import_module(f"dspreg.{name}")
    raise AttributeError(f"module 'dspreg' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES})
