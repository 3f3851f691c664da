"""A short sweep over learning rates, so that a run does not start with a wrong one.

Every rate trains the same program from the same state on the same steps with the same noise, at a constant rate; what
differs is the rate alone. The probe leaves the program as it found it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from prgec.core.contract.arrays import State
from prgec.core.contract.engine import Engine
from prgec.core.data.rows_file import RowSet
from prgec.errors import NumericsError
from prgec.runtime.runs.open import Opened, open_run
from prgec.runtime.runs.options import RunOptions
from prgec.runtime.runs.result import Listener
from prgec.runtime.training.evaluate import evaluate
from prgec.runtime.training.schedules import CONSTANT, Rates

# Half a decade apart, around what was given: the paper searches 5e-5 to 1e-3 on models a thousand times the demo's.
FACTORS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
DEFAULT_STEPS = 50
# Rows of the training data the rates are judged by, where there are no evaluation data.
MAX_JUDGED = 128


@dataclass(frozen=True)
class Probe:
    """The result of one learning rate.

    Attributes:
        lr: The rate.
        loss: Loss afterwards on the rows it is judged by; None if it diverged.
        accuracy: Accuracy there, where the task has one.
    """

    lr: float
    loss: float | None
    accuracy: float | None


@dataclass(frozen=True)
class ProbeResult:
    """The sweep.

    Attributes:
        steps: Training steps of each rate.
        before: Loss before any step.
        probes: One entry a rate, lowest first.
    """

    steps: int
    before: float
    probes: tuple[Probe, ...]

    @property
    def best(self) -> Probe | None:
        """The rate with the lowest loss, if any is better than not training."""
        finite = [probe for probe in self.probes if probe.loss is not None]
        best = min(finite, key=lambda probe: probe.loss or 0.0, default=None)
        return best if best is not None and best.loss is not None and best.loss < self.before else None

    def advice(self) -> str:
        """Return one line: which rate to take, and how far to trust it."""
        best = self.best
        if best is None:
            return "no rate lowered the loss: probe longer, or at other rates around another --lr"
        if best is self.probes[0] or best is self.probes[-1]:
            return f"take --lr {best.lr:g}, and probe again around it: it lies at the end of the sweep"
        return f"take --lr {best.lr:g}; the best after {self.steps} steps, so a long run may want the next lower one"

    def to_json(self) -> dict[str, Any]:
        """Return the document `--json` prints."""
        return {
            "steps": self.steps,
            "loss_before": self.before,
            "probes": [vars(probe) for probe in self.probes],
            "lr": self.best.lr if self.best else None,
            "advice": self.advice(),
        }


def probe_rates(options: RunOptions, listener: Listener, on_probe: Callable[[Probe], None]) -> ProbeResult:
    """Try rates around that of a run on the program and the data of a run; nothing is written.

    Args:
        options: The run the rates are for, with the training steps of each rate.
        listener: Observes the data and evaluation calls.
        on_probe: Observes each rate as it is done.

    Raises:
        PrgecError: As a run would.
    """
    opened = open_run(options, listener)
    few = opened.rows[:MAX_JUDGED]
    judged = opened.dev_set or opened.eval_set or RowSet(tuple(few), 1, (0,) * len(few))
    program = opened.program
    start = program.read_state(), program.read_optimizer()
    before = evaluate(program, judged, listener.on_eval_batch)
    probes = []
    for factor in FACTORS:
        _set_back(program, *start)
        rates = Rates(options.steps, _rounded(opened.rates.lr * factor), CONSTANT)
        probes.append(_probe(opened, judged, rates))
        on_probe(probes[-1])
    _set_back(program, *start)
    return ProbeResult(options.steps, before.loss, tuple(probes))


def _set_back(program: Engine, state: State, optimizer: State) -> None:
    program.write_state(state)
    if optimizer:
        program.write_optimizer(optimizer)


def _probe(opened: Opened, judged: RowSet, rates: Rates) -> Probe:
    trainer = opened.trainer()
    try:
        for _ in opened.loop(trainer, rates):
            pass
        trainer.flush()
        result = evaluate(opened.program, judged)
    except NumericsError:
        return Probe(rates.lr, None, None)
    return Probe(rates.lr, result.loss, result.accuracy)


def _rounded(lr: float) -> float:
    """Return a rate of two digits, as a person would write it."""
    return float(f"{lr:.1e}") if lr > 0 and math.isfinite(lr) else lr
