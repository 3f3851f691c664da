"""The scores of a run so far, and its data: one set at its ends, maybe another in between."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prgec.core.data.rows_file import RowSet
from prgec.core.formats.journal_records import EvaluationRecord, Record
from prgec.errors import Cancelled
from prgec.runtime.runs.log import RunLog
from prgec.runtime.runs.open import Opened
from prgec.runtime.runs.result import Listener
from prgec.runtime.training.evaluate import Evaluation, evaluate
from prgec.runtime.training.feedback import evaluate_feedback


class Evaluations:
    """The evaluations of a run.

    Args:
        opened: The program and its data.
        listener: Observes every call and result.
        should_stop: Checked before every call; True ends an evaluation without a result.

    Attributes:
        done: (steps done, what was scored) of each, in order.
    """

    def __init__(self, opened: Opened, listener: Listener, should_stop: Callable[[], bool]) -> None:
        self._opened = opened
        self._listener = listener
        self._should_stop = should_stop
        self.done: list[tuple[int, Evaluation]] = []

    @property
    def is_one_set(self) -> bool:
        """Whether scores in between are comparable with those at the ends."""
        return self._opened.dev_set is self._opened.eval_set

    @property
    def comparable(self) -> list[tuple[int, Evaluation]]:
        """Those that score what the ones in between do."""
        return [pair for pair in self.done if pair[0] or self.is_one_set]

    def take_up(self, records: Iterable[Record]) -> None:
        """Restore past evaluations from a journal, which stores only loss and accuracy."""
        for record in records:
            if isinstance(record, EvaluationRecord):
                reward = -record.loss if self._opened.rewards is not None else None
                scores = record.loss, record.accuracy, record.num_examples
                self.done.append((record.step, Evaluation(*scores, 0, 0.0, reward=reward, is_recorded=True)))

    def after(self, step: int) -> Evaluation | None:
        """Return the one after so many steps, if there was one."""
        return next((evaluation for number, evaluation in self.done if number == step), None)

    def measure(self, log: RunLog, step: int, *, between: bool = False, is_known: bool = False) -> Evaluation | None:
        """Score the program's present, flushed state, which is that after `step` steps.

        Args:
            log: Where it is written.
            step: Steps done when the state was reached.
            between: Whether this is one between the ends.
            is_known: Whether the journal has it already; it is not written again.

        Returns:
            The scores; None where nothing is to be scored, or it was stopped.
        """
        rows = (self._opened.dev_set if between else None) or self._opened.eval_set
        if rows is None or self._should_stop():
            return None
        try:
            result = self._scores(rows)
        except Cancelled:
            return None
        if not is_known:
            log.evaluation(step, result)
            self.done.append((step, result))
        self._listener.on_evaluation(step, result)
        return result

    def _scores(self, rows: RowSet) -> Evaluation:
        """Score the program.

        Raises:
            Cancelled: If it was stopped.
        """
        feedback, rewards = self._opened.feedback, self._opened.rewards
        if rewards is not None:
            return rewards.evaluate(self._opened.program, self._on_batch)
        if feedback is not None and feedback.test is not None:
            return evaluate_feedback(self._opened.program, feedback.test, self._on_batch)
        return evaluate(self._opened.program, rows, self._on_batch)

    def _on_batch(self, done: int, total: int) -> None:
        self._listener.on_eval_batch(done, total)
        if done < total and self._should_stop():
            raise Cancelled
