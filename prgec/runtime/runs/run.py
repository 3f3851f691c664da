"""A training run as a whole: open, evaluate, train, evaluate, and leave a run folder."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence

from prgec.core.contract.arrays import State
from prgec.core.contract.listener import CallListener
from prgec.core.formats.adapter import masters_sha256, save_adapter, save_snapshot
from prgec.core.formats.journal import Journal
from prgec.core.formats.run_folder import PARTIAL_JOURNAL_NAME, SNAPSHOT_NAME, RunFolder
from prgec.core.machine.folder_lock import FolderLock
from prgec.errors import NumericsError
from prgec.runtime.rewards.judge import Judge
from prgec.runtime.runs.best import BestState
from prgec.runtime.runs.evaluations import Evaluations
from prgec.runtime.runs.log import RunLog, check_nothing_is_lost
from prgec.runtime.runs.open import Opened, open_run
from prgec.runtime.runs.option_checks import check_run
from prgec.runtime.runs.options import RunOptions, plain_values
from prgec.runtime.runs.result import Listener, RunResult
from prgec.runtime.runs.resume import go_back, header_of, resume
from prgec.runtime.runs.write import write_run
from prgec.runtime.trackers.feed import Feeds
from prgec.runtime.trackers.sink import TrackedRun
from prgec.runtime.trackers.table import make_sinks
from prgec.runtime.training.divergence import Divergence
from prgec.runtime.training.evaluate import Evaluation
from prgec.runtime.training.step import StepResult

logger = logging.getLogger(__name__)

# A first loss this many times that of guessing between all tokens has a cause outside the text.
_WORSE_THAN_CHANCE = 1.05

# The reported training loss is a mean over this many last steps: one step's loss is mostly noise.
LOSS_WINDOW = 50
# Reported for the first step alone: a program or an eps that does not perturb shows there.
_FLAT = "both signs of every query have the same loss, so nothing is learnt; raise --eps"


def run(
    options: RunOptions,
    listener: Listener | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    judge: Judge | None = None,
) -> RunResult:
    """Train a program and leave a run folder.

    Args:
        options: Options of the run.
        listener: Observes progress.
        should_stop: Checked after every step and evaluation call; True ends the run early, with everything done so far
            flushed and written.
        judge: Computes rewards, in a run by rewards; None for those that the options name.

    Raises:
        PrgecError: A fitting subclass, before anything is written, if an option, the program or the data are bad.
        NumericsError: If a loss is not finite, or training diverges; the run folder then holds the state kept.
    """
    check_run(options)
    start = time.monotonic()
    listener = listener or Listener()
    folder = RunFolder.choose(options.out, options.program.stem, force=options.force)
    with FolderLock(folder.path):
        folder.sweep()
        if not (options.resume or options.force):
            check_nothing_is_lost(folder)
        opened = open_run(options, listener, judge).with_feedback(folder, _interrupting(should_stop))
        initial = opened.program.read_state() if options.diverged else {}
        header = header_of(opened)
        journal = resume(opened.program, folder, header) if options.resume else None
        session = _Session(opened, folder, listener, should_stop, initial, start)
        steps = session.take_up(journal) if journal is not None else ()
        told = TrackedRun(folder.path, plain_values(opened.options))
        with (
            Feeds(make_sinks(options.log_to), told) as trackers,
            RunLog(folder, header, journal, steps, trackers.write) as log,
        ):
            result = session.train(log)
            trackers.summary = result.to_json()
        return result


def _interrupting(should_stop: Callable[[], bool]) -> CallListener:
    """Return a listener that ends, as Ctrl-C does, what is not worth keeping in part."""

    def check(done: int, total: int) -> None:
        if done < total and should_stop():
            raise KeyboardInterrupt

    return check


class _Session:
    """A run while it is under way.

    Args:
        opened: The program, in the state after the last step done, and its data.
        folder: The run folder.
        listener: Observes progress.
        should_stop: Checked after every step and evaluation call.
        initial: State before the first step, where the run may have to go back.
        start: When the run began.
    """

    def __init__(
        self,
        opened: Opened,
        folder: RunFolder,
        listener: Listener,
        should_stop: Callable[[], bool],
        initial: State,
        start: float,
    ) -> None:
        self.opened, self.options, self.program = opened, opened.options, opened.program
        self.folder, self.listener, self.should_stop = folder, listener, should_stop
        self.initial, self.start = initial, start
        self.trainer = opened.trainer()
        self.loop = opened.loop(self.trainer, opened.rates)
        self.evaluations = Evaluations(opened, listener, should_stop)
        self.best = BestState(opened.options.patience, folder)
        self.divergence = Divergence(opened.options.diverged, opened.options.window)
        self.losses: list[float] = []

    def take_up(self, journal: Journal) -> Sequence[StepResult]:
        """Continue after the last step of a journal, with everything it knows; return the results of its steps."""
        steps = self.trainer.take_up(journal.steps)
        self.losses += [result.loss for result in steps]
        self.evaluations.take_up(journal.records)
        # Scores on other data before the first step do not count as the best.
        self.best.take_up(self.evaluations.comparable)
        self.listener.on_resume(self.trainer.step_number)
        return steps

    def train(self, log: RunLog) -> RunResult:
        """Evaluate, train, evaluate, and write the folder."""
        before = self.evaluations.after(0)
        if before is None and self.trainer.step_number == 0:
            # A score before it would hold memory of its own size while a step takes more.
            self.program.make_room()
            before = self.evaluations.measure(log, 0)
            if before is not None and self.evaluations.is_one_set:
                self.best.hear(0, before, self.program)
        if self.should_stop():
            raise KeyboardInterrupt
        after: Evaluation | None = None
        failure: NumericsError | None = None
        try:
            self._steps(log)
            self.trainer.flush()
            self._keep_state(log)
            after = self._end(log)
        except NumericsError as error:
            failure = error
            self.trainer.flush()
            self._keep_state(log)
            if self.divergence.is_over:
                self._go_back()
        result = self._result(before, after)
        write_run(self.folder, self.opened, log, result, self.losses, self.evaluations.done, failure)
        if failure is not None:
            raise NumericsError(failure.what, where=self.folder.path, hint=failure.hint) from failure
        return result

    def _steps(self, log: RunLog) -> None:
        for loss in self.losses:
            self.divergence.hear(loss)
        if self.trainer.step_number and not self._between_steps(log):
            return
        for result in self.loop:
            self.losses.append(result.loss)
            log.step(result)
            if result.step == 1 and (remark := self._remark_on_first(result)):
                logger.warning("%s", remark)
            self.listener.on_step(result)
            self.divergence.hear(result.loss)
            if self.should_stop() or not self._between_steps(log):
                return

    def _remark_on_first(self, result: StepResult) -> str:
        """Return what is suspicious of the first step; empty if nothing is."""
        if result.is_flat:
            return _FLAT
        # A label need not be what the text leads to, and a new head of an encoder knows nothing of its classes.
        has_labels = self.program.manifest.answers or self.program.tokenizer.classes
        chance = math.log(self.program.manifest.vocab_size)
        if not has_labels and result.loss > _WORSE_THAN_CHANCE * chance:
            return (
                f"the first loss is {result.loss:.2f}, and guessing would have {chance:.2f}: is the tokenizer or the "
                "chat template of another model?"
            )
        return ""

    def _between_steps(self, log: RunLog) -> bool:
        """Evaluate and keep a snapshot where they are due and not done yet; return whether the run goes on."""
        options, step = self.options, self.trainer.step_number
        if step == options.steps and not options.patience:
            return True
        if options.eval_every and step % options.eval_every == 0 and self.evaluations.after(step) is None:
            self.trainer.flush()
            result = self.evaluations.measure(log, step, between=True)
            if result is not None:
                self.best.hear(step, result, self.program)
        if options.snapshot_every and step % options.snapshot_every == 0:
            if self._record_state(log):
                self._save_snapshot()
        return not self.best.is_over

    def _keep_state(self, log: RunLog) -> None:
        """Record the last state, and keep all of it where the run can go on and no replay brings it back."""
        if self._record_state(log) and self.program.manifest.has_gradients and len(self.losses) < self.options.steps:
            self._save_snapshot()

    def _save_snapshot(self) -> None:
        path = self.folder.file(SNAPSHOT_NAME)
        if self.program.manifest.has_gradients:
            save_snapshot(path, self.program, len(self.losses))
        else:
            save_adapter(path, self.program)

    def _record_state(self, log: RunLog) -> bool:
        """Record the hash of the present state, unless the journal has it already."""
        # The copies of a dual state are not what its masters become after a replay.
        is_new = self.program.manifest.state != "dual" and log.last_state != len(self.losses)
        if is_new:
            self.trainer.flush()
            log.state(len(self.losses), masters_sha256(self.program))
        return is_new

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
        """Go back to the best state, if one is kept, and evaluate the final state."""
        kept = self.best.restore(self.program)
        if kept is not None and self.evaluations.is_one_set and not kept.is_recorded:
            return kept
        last = self.trainer.step_number
        # An impatient user gets the trained state at once, not after an evaluation.
        is_known = self.best.step is None and self.evaluations.after(last) is not None
        return self.evaluations.measure(log, last if self.best.step is None else self.best.step, is_known=is_known)

    def _result(self, before: Evaluation | None, after: Evaluation | None) -> RunResult:
        recent = [loss for loss in self.losses[-LOSS_WINDOW:] if math.isfinite(loss)]
        return RunResult(
            run=self.folder.path,
            steps=len(self.losses),
            loss=sum(recent) / len(recent) if recent else 0.0,
            before=before,
            after=after,
            seconds=time.monotonic() - self.start,
            steps_per_second=len(self.losses) / self.loop.wall_seconds if self.loop.wall_seconds else 0.0,
            state_sha256=self.program.state_sha256(),
            interrupted=len(self.losses) < self.options.steps and not self.best.is_over,
            best_step=self.best.step,
        )
