"""MLflow: a run of the experiment `dspreg`, at MLFLOW_TRACKING_URI or where MLflow keeps runs by itself."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Mapping
from functools import cache
from typing import Any

from dspreg.training.trackers.tracker import PROJECT, TrackedRun, Tracker

KEY = "dspreg.key"
STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
LONGEST = 500  # characters of a parameter, which the first versions of MLflow's tables allow
MAKING = 5.0  # seconds
TIMEOUTS = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "20", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2"}


class MLflow(Tracker):
    """Metrics of each record, the options as parameters, the selected step as metrics `selected …`."""

    name = "MLflow"

    def open(self, run: TrackedRun) -> None:
        for name, value in TIMEOUTS.items():  # MLflow's own would hold up the training for a quarter of an hour
            os.environ.setdefault(name, value)
        from mlflow.entities import Param

        for noisy in ("mlflow", "alembic"):  # tables of a new file are created, it says, line by line
            logging.getLogger(noisy).setLevel(logging.WARNING)
        experiment = self._connect(os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT))
        found = self.client.search_runs([experiment], filter_string=f"tags.`{KEY}` = '{run.key}'", max_results=1)
        if found:
            self.id, params = found[0].info.run_id, found[0].data.params
            self.client.update_run(self.id, status="RUNNING")
        else:
            tags = {KEY: run.key, "dspreg.id": run.id}
            self.id, params = self.client.create_run(experiment, tags=tags, run_name=run.title).info.run_id, {}
        lacks = [Param(k, str(v)[:LONGEST]) for k, v in run.settings.items() if k not in params]
        for start in range(0, len(lacks), 100):
            self.client.log_batch(self.id, params=lacks[start : start + 100])
        self.steps = cache(self._steps)

    def _connect(self, name: str) -> str:
        """The id of the experiment."""
        import mlflow

        for last in (False, True):
            try:
                self.client = mlflow.MlflowClient()
                return self._experiment(name)
            except (
                Exception
            ):  # the runs of a sweep that begins make the tables of a new file at once, and one of them can
                if last or not mlflow.get_tracking_uri().startswith("sqlite:"):
                    raise
            time.sleep(MAKING)
        raise AssertionError("unreachable")

    def _experiment(self, name: str) -> str:
        from mlflow.exceptions import MlflowException

        found = self.client.get_experiment_by_name(name)
        if found is None:
            try:
                return str(self.client.create_experiment(name))
            except MlflowException:  # another run of the sweep was faster
                found = self.client.get_experiment_by_name(name)
                if found is None:
                    raise
        return str(found.experiment_id)

    def _steps(self, metric: str) -> set[int]:
        return {each.step for each in self.client.get_metric_history(self.id, metric)}

    def has(self, name: str, step: int) -> bool:
        return step in self.steps(metric_name(name))

    def send(self, step: int, scalars: Mapping[str, float]) -> None:
        self._log(step, scalars)

    def select(self, scalars: Mapping[str, float]) -> None:
        step = int(scalars["selected_step"])
        last = {f"selected {name}": value for name, value in scalars.items()}
        self._log(step, {name: value for name, value in last.items() if not self.has(name, step)})

    def _log(self, step: int, scalars: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics: list[Any] = [Metric(metric_name(name), float(v), now, step) for name, v in scalars.items()]
        for start in range(0, len(metrics), 1000):  # a server takes no more at once
            self.client.log_batch(self.id, metrics=metrics[start : start + 1000])

    def close(self, status: str) -> None:
        self.client.set_terminated(self.id, STATUS[status])


def metric_name(name: str) -> str:
    """As MLflow takes it: a character that it refuses becomes its number, so that no two names become one."""
    return re.sub(r"[^\w.\-: /]", lambda match: f"-{ord(match[0]):x}-", name)
