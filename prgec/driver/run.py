"""A whole training run: read data, evaluate, train, flush, evaluate again, leave a run folder.

Letters: B examples a step, N rows of a forward call.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import prgec
from prgec.contract import CONTRACT_VERSION
from prgec.data.batches import step_indices, training_batch
from prgec.data.encode import Row, encode_rows
from prgec.data.rows_file import RowSet, read_rows
from prgec.data.tasks import Dataset, load_dataset
from prgec.driver.adapter import load_adapter, save_adapter
from prgec.driver.estimators import find_estimator
from prgec.driver.evaluate import Evaluation, encode_eval_set, evaluate
from prgec.driver.options import RunOptions
from prgec.driver.plot import plot_run
from prgec.driver.program import Program
from prgec.driver.run_folder import ADAPTER_NAME, PLOT_NAME, MetricsWriter, RunFolder
from prgec.driver.schedules import find_schedule
from prgec.driver.trainer import StepResult, Trainer
from prgec.errors import NumericsError

logger = logging.getLogger(__name__)

# The reported training loss is a mean over this many last steps: one step's loss is mostly noise.
LOSS_WINDOW = 50


@dataclass(frozen=True)
class RunResult:
    """What a run achieved.

    Attributes:
        run: The run folder.
        steps: Steps done.
        loss: Mean training loss over the last steps (at most 50).
        before: Evaluation before training; None without evaluation data.
        after: Evaluation after training; None without evaluation data or when interrupted.
        seconds: Wall time of everything.
        steps_per_second: Of training alone.
        state_sha256: Hash of the trained state.
        interrupted: Whether the user stopped it early.
    """

    run: Path
    steps: int
    loss: float
    before: Evaluation | None
    after: Evaluation | None
    seconds: float
    steps_per_second: float
    state_sha256: str
    interrupted: bool

    def to_json(self) -> dict[str, Any]:
        """Return the document `--json` prints; `accuracy` is the one after training."""
        before, after = self.before, self.after
        return {
            "run": str(self.run),
            "steps": self.steps,
            "loss": self.loss,
            "accuracy": after.accuracy if after else None,
            "accuracy_before": before.accuracy if before else None,
            "eval_loss": after.loss if after else None,
            "eval_loss_before": before.loss if before else None,
            "seconds": round(self.seconds, 3),
            "steps_per_second": round(self.steps_per_second, 3),
            "state_sha256": self.state_sha256,
            "interrupted": self.interrupted,
        }


class Listener:
    """Hears of a run's progress; the base class ignores all of it."""

    def on_ready(self, program: Program, num_examples: int, num_eval_examples: int) -> None:
        """Hear that the program is open and the data are encoded."""

    def on_step(self, result: StepResult) -> None:
        """Hear of one training step."""

    def on_eval_batch(self, rows_done: int, num_rows: int) -> None:
        """Hear of one forward call of an evaluation."""

    def on_evaluation(self, step: int, evaluation: Evaluation) -> None:
        """Hear of a finished evaluation."""


def run(
    options: RunOptions, listener: Listener | None = None, should_stop: Callable[[], bool] = lambda: False
) -> RunResult:
    """Train a program and leave a run folder.

    Args:
        options: What to do.
        listener: Hears of progress.
        should_stop: Asked after every step and evaluation call; True ends the run early, with everything done so far
            flushed and written.

    Raises:
        PrgecError: Of the fitting kind, before anything is written, if an option, the program or the data are bad.
        NumericsError: If a loss is not finite; the run folder then holds the state kept.
    """
    options.check()
    session = _Session.open(options, listener or Listener(), should_stop)
    with MetricsWriter(session.folder) as metrics:
        return session.train(metrics)


@dataclass
class _Session:
    """The parts of a run while it is under way."""

    options: RunOptions
    listener: Listener
    should_stop: Callable[[], bool]
    folder: RunFolder
    program: Program
    trainer: Trainer
    rows: list[Row]
    eval_set: RowSet | None
    start: float = field(default_factory=time.monotonic)
    losses: list[float] = field(default_factory=list)
    evaluations: list[tuple[int, Evaluation]] = field(default_factory=list)
    train_seconds: float = 0.0

    @classmethod
    def open(cls, options: RunOptions, listener: Listener, should_stop: Callable[[], bool]) -> _Session:
        """Check and load everything that can be bad, before anything is written."""
        estimator = find_estimator(options.estimator)
        find_schedule(options.schedule)
        start = time.monotonic()
        data = load_dataset(options.data, options.task) if options.data else None
        eval_data = load_dataset(options.eval_data, options.task) if options.eval_data else None
        folder = RunFolder.choose(options.out, options.program.stem, force=options.force)
        program = Program.open(options.program)
        if options.adapter is not None:
            load_adapter(options.adapter, program)
        if (remark := estimator.remark(program.manifest.q)) is not None:
            logger.warning("%s", remark)
        rows = _encode_training_rows(data, program) if data else _read_rows(options.rows, program).right_rows()
        eval_set = encode_eval_set(eval_data, program) if eval_data else None
        if options.eval_rows is not None:
            eval_set = _read_rows(options.eval_rows, program)
        if options.prefix_cache is not None:
            program.keep_prefix_in(options.prefix_cache)
        listener.on_ready(program, len(rows), len(eval_set.answers) if eval_set else 0)
        trainer = Trainer(program, estimator, eps=options.eps, seed=options.seed)
        return cls(options, listener, should_stop, folder, program, trainer, rows, eval_set, start)

    def train(self, metrics: MetricsWriter) -> RunResult:
        """Evaluate, train, evaluate, and write the folder."""
        before = self._evaluate(metrics)
        if self.should_stop():
            raise KeyboardInterrupt
        after: Evaluation | None = None
        failure: NumericsError | None = None
        try:
            self._steps(metrics)
            self.trainer.flush()
            # An impatient user gets the trained state at once, not after an evaluation.
            after = self._evaluate(metrics)
        except NumericsError as error:
            failure = error
            self.trainer.flush()
        result = self._result(before, after)
        self._write(metrics, result, failure)
        if failure is not None:
            raise NumericsError(failure.what, where=self.folder.path, hint=failure.hint) from failure
        return result

    def _steps(self, metrics: MetricsWriter) -> None:
        options, manifest = self.options, self.program.manifest
        schedule = find_schedule(options.schedule)
        for step in range(1, options.steps + 1):
            started = time.monotonic()
            indices = step_indices(len(self.rows), manifest.batch_size, options.seed, step)
            lr = options.lr * schedule((step - 1) / options.steps)
            result = self.trainer.step(training_batch(self.rows, indices, manifest), lr)
            self.train_seconds += time.monotonic() - started
            self.losses.append(result.loss)
            metrics.write(step=step, loss=result.loss, lr=lr, g=result.g.tolist(), seconds=round(self._elapsed(), 4))
            self.listener.on_step(result)
            if self.should_stop():
                return
            if options.eval_every and step % options.eval_every == 0 and step < options.steps:
                self.trainer.flush()
                self._evaluate(metrics)

    def _evaluate(self, metrics: MetricsWriter) -> Evaluation | None:
        if self.eval_set is None:
            return None
        step = self.trainer.step_number
        result = evaluate(self.program, self.eval_set, self.listener.on_eval_batch, self.should_stop)
        if result is None:
            return None
        metrics.write(
            step=step, eval_loss=result.loss, eval_accuracy=result.accuracy, seconds=round(self._elapsed(), 4)
        )
        self.evaluations.append((step, result))
        self.listener.on_evaluation(step, result)
        return result

    def _elapsed(self) -> float:
        return time.monotonic() - self.start

    def _result(self, before: Evaluation | None, after: Evaluation | None) -> RunResult:
        recent = self.losses[-LOSS_WINDOW:]
        return RunResult(
            run=self.folder.path,
            steps=len(self.losses),
            loss=sum(recent) / len(recent) if recent else 0.0,
            before=before,
            after=after,
            seconds=self._elapsed(),
            steps_per_second=len(self.losses) / self.train_seconds if self.train_seconds else 0.0,
            state_sha256=self.program.state_sha256(),
            interrupted=len(self.losses) < self.options.steps,
        )

    def _write(self, metrics: MetricsWriter, result: RunResult, failure: NumericsError | None) -> None:
        save_adapter(self.folder.file(ADAPTER_NAME), self.program)
        points = [(step, evaluation.loss, evaluation.accuracy) for step, evaluation in self.evaluations]
        plot_run(self.folder.file(PLOT_NAME), self.losses, points, self.program.manifest.model)
        metrics.commit()
        options = {key: str(value) if isinstance(value, Path) else value for key, value in asdict(self.options).items()}
        self.folder.write_summary({
            **result.to_json(),
            "status": "stopped: " + failure.what if failure else "interrupted" if result.interrupted else "complete",
            "options": options,
            "prgec": prgec.__version__,
            "contract": CONTRACT_VERSION,
            "base_sha256": self.program.manifest.base_sha256,
        })  # fmt: skip


def _read_rows(path: Path | None, program: Program) -> RowSet:
    assert path is not None, "options name data or rows"
    return read_rows(path, program.manifest, program.tokenizer.sha256)


def _encode_training_rows(data: Dataset, program: Program) -> list[Row]:
    pairs = [(example, example.completion) for example in data.examples if example.completion is not None]
    return encode_rows(pairs, program.tokenizer, program.manifest)
