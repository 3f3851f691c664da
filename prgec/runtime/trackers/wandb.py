"""Weights & Biases, and trackio, which has its interface; where they log to is theirs to say (WANDB_MODE=offline)."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from prgec.runtime.trackers.sink import TrackedRun, finite, scalars

_PROJECT = "prgec"


class TrackioSink:
    """Logs to trackio."""

    def begin(self, run: TrackedRun) -> None:
        """Make a run with the options as its configuration."""
        config = {name: str(value) for name, value in run.options.items()}
        self._run = self._init(run, project=_PROJECT, name=run.name, config=config)

    def log(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Log each line's points."""
        for line in lines:
            self._log(scalars(line), line["step"])

    def end(self, summary: Mapping[str, Any]) -> None:
        """Log the results, and end the run."""
        results = {f"result/{name}": value for name, value in finite(summary).items()}
        if results:
            self._log(results, summary["steps"])
        self._run.finish()

    def _init(self, run: TrackedRun, **named: Any) -> Any:
        return importlib.import_module("trackio").init(**named, embed=False)

    def _log(self, values: dict[str, float], step: int) -> None:
        self._run.log(values, step=step)


class WandbSink(TrackioSink):
    """Logs to Weights & Biases."""

    def _init(self, run: TrackedRun, **named: Any) -> Any:
        wandb = importlib.import_module("wandb")
        # Its messages would mix with the run's. Its own steps only increase, but an evaluation of an earlier state is
        # reported after later steps.
        began = wandb.init(**named, settings=wandb.Settings(silent=True, console="off"))
        began.define_metric("*", step_metric="step")
        return began

    def _log(self, values: dict[str, float], step: int) -> None:
        self._run.log({**values, "step": step})
