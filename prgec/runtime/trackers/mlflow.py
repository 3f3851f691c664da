"""MLflow: a run in the store and the experiment that its own variables name."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from prgec.runtime.trackers.sink import TrackedRun, finite, scalars

_EXPERIMENT = "prgec"
# Limits of one request to a server.
_MOST_METRICS, _MOST_PARAMS = 1000, 100


class MlflowSink:
    """Logs to MLflow through its client, which leaves the process's own active run alone."""

    def begin(self, run: TrackedRun) -> None:
        """Make a run with the options as parameters."""
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client = MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", _EXPERIMENT)
        experiment = self._client.get_experiment_by_name(name)
        number = self._client.create_experiment(name) if experiment is None else experiment.experiment_id
        self._run = self._client.create_run(number, run_name=run.name).info.run_id
        params = [Param(name, str(value)) for name, value in run.options.items()]
        for first in range(0, len(params), _MOST_PARAMS):
            self._client.log_batch(self._run, params=params[first : first + _MOST_PARAMS])

    def log(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Log each curve's points."""
        self._log([(name, value, line["step"]) for line in lines for name, value in scalars(line).items()])

    def end(self, summary: Mapping[str, Any]) -> None:
        """Log the results, and end the run."""
        self._log([(f"result/{name}", value, summary["steps"]) for name, value in finite(summary).items()])
        self._client.set_terminated(self._run, "FINISHED" if summary else "FAILED")

    def _log(self, points: Sequence[tuple[str, float, int]]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics = [Metric(name, value, now, step) for name, value, step in points]
        for first in range(0, len(metrics), _MOST_METRICS):
            self._client.log_batch(self._run, metrics=metrics[first : first + _MOST_METRICS])
