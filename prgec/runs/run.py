"""A whole training run: read data, evaluate, train, flush, evaluate again, leave a run folder.

Letters: B examples a step, N rows of a forward call.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import prgec
from prgec.contract.arrays import State
from prgec.contract.engine import Engine
from prgec.contract.names import CONTRACT_VERSION
from prgec.data.batches import step_indices, training_batch
from prgec.data.encode import Row
from prgec.data.rows_file import RowSet
from prgec.engines.choose import open_program
from prgec.errors import NumericsError
from prgec.formats.adapter import load_adapter, masters_sha256, save_adapter
from prgec.formats.journal import EvaluationRecord, Header, Journal
from prgec.formats.run_folder import ADAPTER_NAME, PARTIAL_JOURNAL_NAME, PLOT_NAME, SNAPSHOT_NAME, RunFolder
from prgec.machine.folder_lock import FolderLock
from prgec.report.plot import plot_run
from prgec.runs.best import BestState
from prgec.runs.data import RunFiles
from prgec.runs.log import RunLog, check_nothing_is_lost, mean_loss
from prgec.runs.options import RunOptions
from prgec.runs.result import Listener, RunResult
from prgec.runs.resume import go_back, header_of, resume
from prgec.runs.samples import peak_rss_bytes, samples
from prgec.training.divergence import Divergence
from prgec.training.estimators import find_estimator
from prgec.training.evaluate import Evaluation, evaluate
from prgec.training.schedules import learning_rate
from prgec.training.trainer import Trainer

logger = logging.getLogger(__name__)

# The reported training loss is a mean over this many last steps: one step's loss is mostly noise.
LOSS_WINDOW = 50


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
        NumericsError: If a loss is not finite, or training diverges; the run folder then holds the state kept.
    """
    options.check()
    folder = RunFolder.choose(options.out, options.program.stem, force=options.force)
    with FolderLock(folder.path):
        folder.sweep()
        session = _Session.open(options, folder, listener or Listener(), should_stop)
        with RunLog(folder, session.header, session.journal, options.eps) as log:
            return session.train(log)


@dataclass
class _Session:
    """The parts of a run while it is under way."""

    options: RunOptions
    listener: Listener
    should_stop: Callable[[], bool]
    folder: RunFolder
    program: Engine
    trainer: Trainer
    rows: Sequence[Row]
    eval_set: RowSet | None
    dev_set: RowSet | None
    best: BestState
    header: Header
    journal: Journal | None
    initial: State
    divergence: Divergence
    start: float = field(default_factory=time.monotonic)
    losses: list[float] = field(default_factory=list)
    evaluations: list[tuple[int, Evaluation]] = field(default_factory=list)
    train_seconds: float = 0.0

    @classmethod
    def open(
        cls, options: RunOptions, folder: RunFolder, listener: Listener, should_stop: Callable[[], bool]
    ) -> _Session:
        """Check and load everything that can be bad, before anything is written."""
        estimator = find_estimator(options.estimator)
        learning_rate(options, 1)
        start = time.monotonic()
        files = RunFiles.read(options, listener)
        if not (options.resume or options.force):
            check_nothing_is_lost(folder)
        program = open_program(
            options.program, options.engine, base=options.base, device=options.device, compiled=options.compiled
        )
        if options.adapter is not None:
            load_adapter(options.adapter, program)
        if (remark := estimator.remark(program.manifest.q)) is not None:
            logger.warning("%s", remark)
        rows, eval_set, dev_set = files.encode(program)
        if options.prefix_cache is not None:
            program.keep_prefix_in(options.prefix_cache)
        listener.on_ready(program, len(rows), len(eval_set.answers) if eval_set else 0)
        header = header_of(options, program, rows)
        initial = program.read_state() if options.diverged else {}
        journal = resume(program, folder, header) if options.resume else None
        session = cls(
            options,
            listener,
            should_stop,
            folder,
            program,
            Trainer(program, estimator, eps=options.eps, seed=options.seed, limits=options.limits),
            rows,
            eval_set,
            dev_set,
            BestState(options.patience, folder),
            header,
            journal,
            initial,
            Divergence(options.diverged, options.window),
            start,
        )
        if journal is not None:
            session._take_up(journal)
        return session

    def _take_up(self, journal: Journal) -> None:
        """Go on behind the last step of a journal, with everything it knows."""
        self.trainer.take_up(journal.steps)
        self.losses += [mean_loss(record) for record in journal.steps]
        self.evaluations += [
            (record.step, Evaluation(record.loss, record.accuracy, record.num_examples, num_calls=0, seconds=0.0))
            for record in journal.records
            if isinstance(record, EvaluationRecord)
        ]
        # What was measured on other data before the first step is no score to beat.
        self.best.take_up([pair for pair in self.evaluations if pair[0] or self.dev_set is self.eval_set])
        self.listener.on_resume(self.trainer.step_number)

    def train(self, log: RunLog) -> RunResult:
        """Evaluate, train, evaluate, and write the folder."""
        before = self._evaluation_of(0)
        if before is None and self.trainer.step_number == 0:
            before = self._evaluate(log)
            if before is not None and self.dev_set is self.eval_set:
                self.best.hear(0, before, self.program)
        if self.should_stop():
            raise KeyboardInterrupt
        after: Evaluation | None = None
        failure: NumericsError | None = None
        try:
            self._steps(log)
            self.trainer.flush()
            self._record_state(log)
            after = self._end(log)
        except NumericsError as error:
            failure = error
            self.trainer.flush()
            self._record_state(log)
            if self.divergence.is_over:
                self._go_back()
        result = self._result(before, after)
        self._write(log, result, failure)
        if failure is not None:
            raise NumericsError(failure.what, where=self.folder.path, hint=failure.hint) from failure
        return result

    def _go_back(self) -> None:
        """Give the program the best state it had: the one that scored best, else the one with the lowest losses."""
        if self.best.restore(self.program) is not None:
            return
        step = self.divergence.best_step or 0
        if go_back(self.program, self.initial, self.folder.file(PARTIAL_JOURNAL_NAME), step):
            self.best.step = step
            logger.warning(
                "kept the state of step %d, the end of the %d steps with the lowest losses", step, self.options.window
            )
        else:
            logger.warning("this program's state cannot be replayed: kept the last one")

    def _end(self, log: RunLog) -> Evaluation | None:
        """Go back to the best state, if one is kept, and evaluate what the run leaves behind."""
        kept = self.best.restore(self.program)
        # What a journal tells of an evaluation is not all of it.
        if kept is not None and self.dev_set is self.eval_set and kept.num_calls:
            return kept
        # An impatient user gets the trained state at once, not after an evaluation.
        is_known = self.best.step is None and self._evaluation_of(self.trainer.step_number) is not None
        return self._evaluate(log, step=self.best.step, is_known=is_known)

    def _steps(self, log: RunLog) -> None:
        options, manifest = self.options, self.program.manifest
        for loss in self.losses:
            self.divergence.hear(loss)
        if self.trainer.step_number:
            self._between_steps(log)
        for step in range(self.trainer.step_number + 1, options.steps + 1):
            if self.best.is_over:
                return
            started = time.monotonic()
            indices = step_indices(len(self.rows), manifest.batch_size, options.seed, step)
            lr = learning_rate(options, step)
            result = self.trainer.step(training_batch(self.rows, indices, manifest), lr)
            self.train_seconds += time.monotonic() - started
            self.losses.append(result.loss)
            log.step(result)
            self.listener.on_step(result)
            self.divergence.hear(result.loss)
            if self.should_stop():
                return
            self._between_steps(log)

    def _between_steps(self, log: RunLog) -> None:
        """Evaluate and keep a snapshot where they are due and not done yet."""
        options, step = self.options, self.trainer.step_number
        if step == options.steps and not options.patience:
            return
        if options.eval_every and step % options.eval_every == 0 and self._evaluation_of(step) is None:
            self.trainer.flush()
            result = self._evaluate(log, self.dev_set)
            if result is not None:
                self.best.hear(step, result, self.program)
        if options.snapshot_every and step % options.snapshot_every == 0:
            if self._record_state(log):
                save_adapter(self.folder.file(SNAPSHOT_NAME), self.program)

    def _record_state(self, log: RunLog) -> bool:
        """Record the hash of the present state, unless the journal has it already."""
        # The copies of a dual state are not what its masters become after a replay.
        is_new = self.program.manifest.state == "seeded" and log.last_state != len(self.losses)
        if is_new:
            self.trainer.flush()
            log.state(len(self.losses), masters_sha256(self.program))
        return is_new

    def _evaluation_of(self, step: int) -> Evaluation | None:
        return next((evaluation for number, evaluation in self.evaluations if number == step), None)

    def _evaluate(
        self, log: RunLog, rows: RowSet | None = None, step: int | None = None, *, is_known: bool = False
    ) -> Evaluation | None:
        """Evaluate the present state, which is that after `step` steps if it is not the last one.

        What the journal has already, `is_known`, is not written again.
        """
        rows = rows or self.eval_set
        if rows is None:
            return None
        step = self.trainer.step_number if step is None else step
        result = evaluate(self.program, rows, self.listener.on_eval_batch, self.should_stop)
        if result is None:
            return None
        if not is_known:
            log.evaluation(step, result)
            self.evaluations.append((step, result))
        self.listener.on_evaluation(step, result)
        return result

    def _elapsed(self) -> float:
        return time.monotonic() - self.start

    def _result(self, before: Evaluation | None, after: Evaluation | None) -> RunResult:
        recent = [loss for loss in self.losses[-LOSS_WINDOW:] if math.isfinite(loss)]
        return RunResult(
            run=self.folder.path,
            steps=len(self.losses),
            loss=sum(recent) / len(recent) if recent else 0.0,
            before=before,
            after=after,
            seconds=self._elapsed(),
            steps_per_second=len(self.losses) / self.train_seconds if self.train_seconds else 0.0,
            state_sha256=self.program.state_sha256(),
            interrupted=len(self.losses) < self.options.steps and not self.best.is_over,
            best_step=self.best.step,
        )

    def _write(self, log: RunLog, result: RunResult, failure: NumericsError | None) -> None:
        save_adapter(self.folder.file(ADAPTER_NAME), self.program)
        points = [(step, evaluation.loss, evaluation.accuracy) for step, evaluation in self.evaluations]
        plot_run(self.folder.file(PLOT_NAME), self.losses, points, self.program.manifest.model)
        log.commit()
        self.best.clean()
        options = {key: str(value) if isinstance(value, Path) else value for key, value in asdict(self.options).items()}
        self.folder.write_summary(
            {
                **result.to_json(),
                "status": "stopped: " + failure.what
                if failure
                else "interrupted"
                if result.interrupted
                else "complete",
                "options": options,
                "prgec": prgec.__version__,
                "contract": CONTRACT_VERSION,
                "base_sha256": self.program.manifest.base_sha256,
                "manifest": json.loads(self.program.manifest.to_json()),
                "samples": samples(self.eval_set, result.before, result.after),
                "peak_rss_bytes": peak_rss_bytes(),
            }
        )
